package httpapi

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"unicode/utf8"

	"holdfast/cluster/peer"
	"holdfast/fsm"
)

var errNotFound = errors.New("there is no such key")

const (
	defaultPage = 100
	maxPage     = 1000
)

// Bytes is a byte string in JSON: always in Base64, and as text, too, if it is valid UTF-8.
type Bytes struct {
	Base64 string `json:"base64"`
	Text   string `json:"text,omitempty"`
}

func toBytes(data string) Bytes {
	b := Bytes{Base64: base64.StdEncoding.EncodeToString([]byte(data))}
	if utf8.ValidString(data) {
		b.Text = data
	}
	return b
}

// Key is what the API shows of a key.
type Key struct {
	Key     Bytes  `json:"key"`
	Size    int    `json:"size"` // of the value, bytes
	Version string `json:"version"`
	Token   string `json:"token,omitempty"` // the fencing token
	// milliseconds of cluster time; null when the key does not expire
	TTL *int64 `json:"ttl"`
	// client ids; only GET /v1/key includes clients that watch the key by a pattern
	Watchers []string `json:"watchers"`
	// only in GET /v1/key, and for locks in GET /v1/overview
	Value *Bytes `json:"value,omitempty"`
}

func toKey(info *fsm.KeyInfo) Key {
	key := Key{
		Key: toBytes(info.Key), Size: len(info.Value), Version: info.Version.String(),
		Watchers: []string{},
	}
	if info.Token != nil {
		key.Token = info.Token.String()
	}
	if info.TTL >= 0 {
		key.TTL = &info.TTL
	}
	for i := range info.Watchers {
		key.Watchers = append(key.Watchers, info.Watchers[i].ClientID)
	}
	return key
}

// Keys is a page of keys.
type Keys struct {
	Keys []Key `json:"keys"`
	// Next is the last key of this page, in Base64. Decoded, it is the query parameter "after" of
	// the next page. It is empty if this page is not full.
	Next string `json:"next"`
}

// parseLimit returns the limit of a page.
func parseLimit(query url.Values) (int, error) {
	text := query.Get("limit")
	if text == "" {
		return defaultPage, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > maxPage {
		return 0, badRequest{fmt.Errorf("limit is %q: must be between 1 and %d", text, maxPage)}
	}
	return limit, nil
}

func (a *admin) keys(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	limit, err := parseLimit(query)
	if err != nil {
		return err
	}
	if err := a.Node.Confirm(r.Context()); err != nil {
		return err
	}
	answer := Keys{Keys: []Key{}}
	a.Node.View(func(m *fsm.Machine) {
		found := m.ListKeys(query.Get("prefix"), query.Get("after"), limit)
		for i := range found {
			answer.Keys = append(answer.Keys, toKey(&found[i]))
		}
		if len(found) == limit {
			answer.Next = toBytes(found[limit-1].Key).Base64
		}
	})
	return writeJSON(w, answer)
}

// KeyCount is the number of keys with a prefix.
type KeyCount struct {
	Count int   `json:"count"`
	Bytes int64 `json:"bytes"` // keys and values
}

func (a *admin) countKeys(w http.ResponseWriter, r *http.Request) error {
	// keys that are counted while the state is locked once, so that commands do not wait for the
	// whole count
	const step = 10_000
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	if err := a.Node.Confirm(ctx); err != nil {
		return err
	}
	total, err := countInSteps(ctx, step, func(after string) (count int, bytes int64, last string) {
		a.Node.View(func(m *fsm.Machine) {
			count, bytes,
				last = m.CountKeys(r.URL.Query().Get("prefix"), after, step)
		})
		return count, bytes, last
	})
	if err != nil {
		return err
	}
	return writeJSON(w, total)
}

// countInSteps adds up what countAfter returns for the next step keys after the last one, until
// there are fewer. It stops when the context ends.
func countInSteps(ctx context.Context, step int,
	countAfter func(after string) (count int, bytes int64, last string)) (total KeyCount,
	err error,
) {
	for after := ""; ; {
		if err := ctx.Err(); err != nil {
			return total, fmt.Errorf("%w: count the keys: %w", peer.ErrNotDone, err)
		}
		count, bytes, last := countAfter(after)
		total.Count += count
		total.Bytes += bytes
		if count < step {
			return total, nil
		}
		after = last
	}
}

func (a *admin) key(w http.ResponseWriter, r *http.Request) error {
	if err := a.Node.Confirm(r.Context()); err != nil {
		return err
	}
	var info fsm.KeyInfo
	found := false
	a.Node.View(func(m *fsm.Machine) { info, found = m.FindKey(r.URL.Query().Get("key")) })
	if !found {
		return errNotFound
	}
	answer := toKey(&info)
	value := toBytes(info.Value)
	answer.Value = &value
	return writeJSON(w, answer)
}

// Owner is a client, and what counts for its share: the keys that it wrote last.
type Owner struct {
	Name string `json:"name"`
	// Name is the user that the broker says; otherwise the client id
	IsUser bool  `json:"isUser"`
	Keys   int64 `json:"keys"`
	Bytes  int64 `json:"bytes"` // keys and values
}

// Owners are the owners with the most bytes, the largest first.
type Owners struct {
	Owners []Owner `json:"owners"`
}

func (a *admin) owners(w http.ResponseWriter, r *http.Request) error {
	limit, err := parseLimit(r.URL.Query())
	if err != nil {
		return err
	}
	if err := a.Node.Confirm(r.Context()); err != nil {
		return err
	}
	answer := Owners{Owners: []Owner{}}
	a.Node.View(func(m *fsm.Machine) {
		for _, its := range m.ListOwners(limit) {
			answer.Owners = append(answer.Owners, Owner{its.Name, its.IsUser, its.Keys, its.Bytes})
		}
	})
	return writeJSON(w, answer)
}

// Watch is what the API shows of a watch.
type Watch struct {
	Key     Bytes  `json:"key"`     // or the pattern
	Pattern bool   `json:"pattern"` // the watch is on all keys that match Key
	Client  string `json:"client"`
	Dialect string `json:"dialect"` // documented or sdk
	Age     int64  `json:"age"`     // milliseconds since it was last renewed
}

func toWatch(info *fsm.WatchInfo) Watch {
	dialect := "documented"
	if info.Dialect == fsm.SDK {
		dialect = "sdk"
	}
	return Watch{toBytes(info.Key), info.Pattern, info.ClientID, dialect, info.Age}
}

// Watches is a page of watches.
type Watches struct {
	Watches []Watch `json:"watches"`
	// Next is the last key or pattern of this page, in Base64. Decoded, it is the query parameter
	// "after" of the next page. NextPattern and NextClient are "afterPattern" and "afterClient".
	// All are empty or false if this page is not full.
	Next        string `json:"next"`
	NextPattern bool   `json:"nextPattern"`
	NextClient  string `json:"nextClient"`
}

func (a *admin) watches(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	limit, err := parseLimit(query)
	if err != nil {
		return err
	}
	if err := a.Node.Confirm(r.Context()); err != nil {
		return err
	}
	answer := Watches{Watches: []Watch{}}
	after := fsm.WatchInfo{
		Key: query.Get("after"), Pattern: query.Get("afterPattern") == "true",
		ClientID: query.Get("afterClient"),
	}
	a.Node.View(func(m *fsm.Machine) {
		found := m.ListWatches(query.Get("prefix"), query.Get("client"), after, limit)
		for i := range found {
			answer.Watches = append(answer.Watches, toWatch(&found[i]))
		}
		if len(found) == limit {
			last := &found[limit-1]
			answer.Next, answer.NextPattern, answer.NextClient = toBytes(last.Key).Base64,
				last.Pattern, last.ClientID
		}
	})
	return writeJSON(w, answer)
}

// EndedWatches is how many watches were ended.
type EndedWatches struct {
	Dropped int `json:"dropped"`
}

// partialError returns the error of a request one of whose commands failed. If earlier commands
// have ended watches, the outcome of the request is unknown, whatever the failed command's error
// says. partialError does not wrap that error then: it could say that nothing was done, or that a
// retry is safe.
func partialError(ended int, err error) error {
	if ended == 0 {
		return err
	}
	return fmt.Errorf("%w: %d watches were ended before: %v", peer.ErrOutcomeUnknown, ended, err)
}

// dropWatches ends the watches of a client, of a key or pattern, or of a client for a key or
// pattern. client, key or pattern is required; key and pattern exclude each other. It stops after
// requestTimeout. The request can then be repeated for the remaining watches.
func (a *admin) dropWatches(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	client, key, pattern := query.Get("client"), query.Get("key"), query.Get("pattern")
	if (client == "" && key == "" && pattern == "") || (key != "" && pattern != "") {
		return badRequest{errors.New(
			"client, key or pattern is required, and not both key and pattern")}
	}
	// `holdfast watches drop` of earlier versions sends all of them, empty ones included
	const parameters = 3
	for name := range query {
		if query.Get(name) == "" && len(query) < parameters {
			// an ignored filter would end more watches than were meant
			return badRequest{fmt.Errorf("%s is empty", name)}
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	if err := a.Node.Confirm(ctx); err != nil { // a deposed leader may not know the latest watches
		return err
	}
	text := key + pattern // one of them is empty
	var dropped EndedWatches
	for after := (fsm.WatchInfo{}); ; {
		var found []fsm.WatchInfo
		a.Node.View(func(m *fsm.Machine) { found = m.ListWatches(text, client, after, maxPage) })
		for i := range found {
			if text != "" && (found[i].Key != text || found[i].Pattern != (pattern != "")) {
				continue
			}
			if _, err := a.Node.Execute(ctx, found[i].EndCommand()); err != nil {
				return partialError(dropped.Dropped, err)
			}
			dropped.Dropped++
		}
		if len(found) < maxPage {
			return writeJSON(w, dropped)
		}
		after = found[len(found)-1]
	}
}
