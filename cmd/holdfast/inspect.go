package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/server/httpapi"
)

func newKeys() *cobra.Command {
	command := group(&cobra.Command{
		Use: "keys", Short: "Look at the keys in the store",
		Example: "  holdfast keys list --prefix lines/7/",
	})
	command.AddCommand(newKeysList(), newKeysCount(), newKeysOwners(), newKeysExport(),
		newKeysImport(),
		newAdmin("inspect KEY",
			"Show a key with its value, version, fencing token, time to live and watchers",
			"holdfast keys inspect lines/7/recipe", cobra.ExactArgs(1), inspectKey))
	return command
}

func newKeysList() *cobra.Command {
	var prefix string
	var limit int
	command := newAdmin("list", "List keys in the order of their bytes",
		"holdfast keys list --prefix lines/7/ --limit 20", cobra.NoArgs,
		func(a *administration, command *cobra.Command, _ []string) error {
			if limit < 1 {
				return usagef("--limit is %d: must be positive", limit)
			}
			return a.listKeys(command, prefix, limit)
		})
	command.Flags().StringVar(&prefix, "prefix", "", "only keys that begin with this `text`")
	command.Flags().IntVar(&limit, "limit", 1000, "`number` of keys at most")
	return command
}

func (a *administration) listKeys(command *cobra.Command, prefix string, limit int) error {
	const page = 1000
	list := []httpapi.Key{}
	for after := ""; len(list) < limit; {
		query := url.Values{
			"prefix": {prefix}, "after": {after},
			"limit": {strconv.Itoa(min(limit-len(list), page))},
		}
		var keys httpapi.Keys
		if err := a.get(command.Context(), "/v1/keys?"+query.Encode(), &keys); err != nil {
			return err
		}
		list = append(list, keys.Keys...)
		next, err := base64.StdEncoding.DecodeString(keys.Next)
		if err != nil {
			return fmt.Errorf("read where the next page begins: %w", err)
		}
		if after = string(next); after == "" {
			break
		}
	}
	if a.output == "json" {
		return printJSON(command.OutOrStdout(), list)
	}
	var rows [][]any
	for i := range list {
		k := &list[i]
		rows = append(rows, []any{
			quote(&k.Key), k.Size, k.Version, orDash(k.Token), ttl(k.TTL),
			len(k.Watchers),
		})
	}
	return printTable(command.OutOrStdout(), "Key, Size, Version, Token, TTL, Watchers", rows)
}

func ttl(milliseconds *int64) string {
	if milliseconds == nil {
		return "-"
	}
	if *milliseconds > math.MaxInt64/int64(time.Millisecond) {
		// a time to live may have up to 2^53 ms
		return strconv.FormatInt(*milliseconds/1000, 10) + "s"
	}
	return (time.Duration(*milliseconds) * time.Millisecond).String()
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// quote returns bytes as text that is safe on a terminal. Bytes that are empty, or have a space, a
// quotation mark, a backslash or anything that does not print, become a quoted Go string.
func quote(b *httpapi.Bytes) string {
	data, err := base64.StdEncoding.DecodeString(b.Base64)
	if err != nil {
		return "?"
	}
	quoted := strconv.Quote(string(data))
	if plain := quoted[1 : len(quoted)-1]; plain == string(data) &&
		!strings.ContainsAny(plain, " \t") && plain != "" {
		return plain
	}
	return quoted
}

func newKeysCount() *cobra.Command {
	var prefix string
	command := newAdmin("count", "Count keys, and the bytes of keys and values",
		"holdfast keys count --prefix line-7/", cobra.NoArgs,
		func(a *administration, command *cobra.Command, _ []string) error {
			var count httpapi.KeyCount
			if err := a.get(command.Context(), "/v1/keys/count?"+
				url.Values{"prefix": {prefix}}.Encode(), &count); err != nil {
				return err
			}
			if a.output == "json" {
				return printJSON(command.OutOrStdout(), count)
			}
			return printTable(command.OutOrStdout(), "Keys, Bytes",
				[][]any{{count.Count, count.Bytes}})
		})
	command.Flags().StringVar(&prefix, "prefix", "", "only keys that begin with this `text`")
	return command
}

func newKeysOwners() *cobra.Command {
	var limit int
	command := newAdmin("owners", "List the clients whose keys have the most bytes",
		"holdfast keys owners --limit 5", cobra.NoArgs,
		func(a *administration, command *cobra.Command, _ []string) error {
			if limit < 1 || limit > 1000 {
				return usagef("--limit is %d: must be between 1 and 1000", limit)
			}
			var answer httpapi.Owners
			if err := a.get(command.Context(), "/v1/keys/owners?"+
				url.Values{"limit": {strconv.Itoa(limit)}}.Encode(), &answer); err != nil {
				return err
			}
			if a.output == "json" {
				return printJSON(command.OutOrStdout(), answer.Owners)
			}
			var rows [][]any
			for _, o := range answer.Owners {
				kind := "client"
				if o.IsUser {
					kind = "user"
				}
				rows = append(rows, []any{kind, orDash(printable(o.Name)), o.Keys, o.Bytes})
			}
			return printTable(command.OutOrStdout(), "Kind, Name, Keys, Bytes", rows)
		})
	command.Long = "Lists the clients whose keys have the most bytes. A key counts for the client that wrote it last: for its user, where the\n" +
		"broker says who that is, and otherwise for its client id. limits.keysPerClient and limits.bytesPerClient bound what one may have."
	command.Flags().IntVar(&limit, "limit", 20, "`number` of clients at most")
	return command
}

func inspectKey(a *administration, command *cobra.Command, arguments []string) error {
	var k httpapi.Key
	if err := a.get(command.Context(), "/v1/key?"+url.Values{"key": {arguments[0]}}.Encode(),
		&k); err != nil {
		return err
	}
	if a.output == "json" {
		return printJSON(command.OutOrStdout(), k)
	}
	return printRows(command.OutOrStdout(), [][]any{
		{"Key", quote(&k.Key)},
		{"Version", k.Version},
		{"Token", orDash(k.Token)},
		{"TTL", ttl(k.TTL)},
		{"Watchers", orDash(printable(strings.Join(k.Watchers, " ")))},
		{"Size", k.Size},
		{"Value", quote(k.Value)},
	})
}

func newWatches() *cobra.Command {
	command := group(&cobra.Command{
		Use: "watches", Short: "List watches, and end them",
		Example: "  holdfast watches list --client line-7",
	})
	command.AddCommand(newWatchesList(), newWatchesDrop())
	return command
}

func newWatchesList() *cobra.Command {
	var prefix, client string
	var limit int
	command := newAdmin("list", "List watches in the order of keys and clients",
		"holdfast watches list --client line-7", cobra.NoArgs,
		func(a *administration, command *cobra.Command, _ []string) error {
			if limit < 1 {
				return usagef("--limit is %d: must be positive", limit)
			}
			return a.listWatches(command, prefix, client, limit)
		})
	command.Flags().StringVar(&prefix, "prefix", "",
		"only keys and patterns that begin with this `text`")
	command.Flags().StringVar(&client, "client", "", "only watches of the client with this `id`")
	command.Flags().IntVar(&limit, "limit", 1000, "list at most this `number` of watches")
	return command
}

func (a *administration) listWatches(command *cobra.Command, prefix, client string,
	limit int,
) error {
	const pageSize = 1000
	list := []httpapi.Watch{}
	for page := (httpapi.Watches{}); len(list) < limit; {
		next, err := base64.StdEncoding.DecodeString(page.Next)
		if err != nil {
			return fmt.Errorf("read where the next page begins: %w", err)
		}
		query := url.Values{
			"prefix": {prefix}, "client": {client}, "after": {string(next)},
			"afterClient":  {page.NextClient},
			"afterPattern": {strconv.FormatBool(page.NextPattern)},
			"limit":        {strconv.Itoa(min(limit-len(list), pageSize))},
		}
		page = httpapi.Watches{}
		if err := a.get(command.Context(), "/v1/watches?"+query.Encode(), &page); err != nil {
			return err
		}
		list = append(list, page.Watches...)
		if page.Next == "" {
			break
		}
	}
	if a.output == "json" {
		return printJSON(command.OutOrStdout(), list)
	}
	var rows [][]any
	for i := range list {
		w := &list[i]
		of := "key"
		if w.Pattern {
			of = "pattern"
		}
		rows = append(rows, []any{
			of, quote(&w.Key), printable(w.Client), w.Dialect,
			(time.Duration(w.Age) * time.Millisecond).Round(time.Second),
		})
	}
	return printTable(command.OutOrStdout(), "Of, Key, Client, Dialect, Renewed Ago", rows)
}

func newWatchesDrop() *cobra.Command {
	var client, key, pattern string
	command := newAdmin("drop",
		"End the watches of a client, of a key or pattern, or of a client on that key or pattern",
		"holdfast watches drop --client line-7 --yes", cobra.NoArgs,
		func(a *administration, command *cobra.Command, _ []string) error {
			query := url.Values{}
			for name, value := range map[string]string{
				"client": client, "key": key,
				"pattern": pattern,
			} {
				if !command.Flags().Changed(name) {
					continue
				}
				if value == "" {
					// as from an unset shell variable: ignoring the flag would end more watches
					// than are meant
					return usagef("--%s is empty", name)
				}
				query.Set(name, value)
			}
			switch {
			case len(query) == 0:
				return usagef("give at least one of --client, --key and --pattern")
			case key != "" && pattern != "":
				return usagef("--key and --pattern cannot be combined")
			}
			if err := a.requireYes("ends watches, and does not tell their clients"); err != nil {
				return err
			}
			var dropped httpapi.EndedWatches
			err := a.request(command.Context(), http.MethodDelete, "/v1/watches?"+query.Encode(),
				nil, func(body io.Reader) error { return decode(body, &dropped) })
			if err != nil {
				return err
			}
			return a.done(command.OutOrStdout(), "%d watches ended", dropped.Dropped)
		}, true)
	command.Flags().StringVar(&client, "client", "", "of this client `id`")
	command.Flags().StringVar(&key, "key", "", "of this `key`")
	command.Flags().StringVar(&pattern, "pattern", "", "of this `pattern`, as the clients gave it")
	return command
}
