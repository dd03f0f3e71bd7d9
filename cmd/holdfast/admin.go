package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/server/httpapi"
	"holdfast/internal/tlsconfig"
)

// administration holds the flags of commands that talk to a node's admin API.
type administration struct {
	address string
	tls     tlsconfig.Files
	timeout time.Duration
	output  string
	yes     bool
}

func (a *administration) addFlags(command *cobra.Command) {
	a.addAddress(command)
	command.Flags().StringVarP(&a.output, "output", "o", "text", "output `format`, text or json")
}

// addAddress adds the flags that say where the node is and how to reach it.
func (a *administration) addAddress(command *cobra.Command) {
	address := os.Getenv("HOLDFAST_ADMIN")
	if address == "" {
		address = "http://127.0.0.1:7401"
	}
	flags := command.Flags()
	flags.StringVar(&a.address, "admin", address,
		"admin `address` of any node; also HOLDFAST_ADMIN")
	flags.StringVar(&a.tls.CA, "ca-file", os.Getenv("HOLDFAST_ADMIN_CA"),
		"`file` with the certificates that vouch for the node (https); also HOLDFAST_ADMIN_CA")
	flags.StringVar(&a.tls.Certificate, "cert-file", os.Getenv("HOLDFAST_ADMIN_CERT"),
		"`file` with a client certificate (https); also HOLDFAST_ADMIN_CERT")
	flags.StringVar(&a.tls.Key, "key-file", os.Getenv("HOLDFAST_ADMIN_KEY"),
		"`file` with the key of the client certificate (https); also HOLDFAST_ADMIN_KEY")
	flags.StringVar(&a.tls.ServerName, "server-name", "",
		"`name` that the node's certificate must have (https)")
	flags.DurationVar(&a.timeout, "timeout", a.timeout, "how long to wait for an answer")
}

// addYes adds the flag --yes, which confirms a dangerous command.
func (a *administration) addYes(command *cobra.Command) {
	command.Flags().BoolVar(&a.yes, "yes", false, "really do it")
}

// requireYes returns a usage error that says what the command does, unless --yes was given.
func (a *administration) requireYes(what string) error {
	if a.yes {
		return nil
	}
	return usagef("this %s; say --yes if you want it", what)
}

// parseAddress returns the address of the admin API as a URL. The error is a usageError.
func (a *administration) parseAddress() (*url.URL, error) {
	address, err := url.Parse(a.address)
	if err != nil {
		return nil, &usageError{fmt.Errorf("--admin: %w", err)}
	}
	if address.Scheme != "http" && address.Scheme != "https" || address.Host == "" {
		return nil, usagef("--admin is %q: must begin with http:// or https:// and a host",
			a.address)
	}
	return address, nil
}

// checkFlags returns a usageError for the first flag that makes no sense.
func (a *administration) checkFlags() error {
	if a.output != "text" && a.output != "json" {
		return usagef("--output is %q: must be text or json", a.output)
	}
	if a.timeout <= 0 {
		return usagef("--timeout is %v: must be positive", a.timeout)
	}
	return nil
}

// request calls the admin API and passes the body of the answer to the function use. --timeout
// bounds both together.
func (a *administration) request(ctx context.Context, method, path string, body io.Reader,
	use func(io.Reader) error,
) error {
	if err := a.checkFlags(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var connected atomic.Bool // the request may have been sent
	traced := httptrace.WithClientTrace(ctx,
		&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	if _, err := a.parseAddress(); err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(traced, method, strings.TrimSuffix(a.address, "/")+
		path, body)
	if err != nil {
		return &usageError{fmt.Errorf("--admin: %w", err)}
	}
	transport, err := a.tls.HTTP()
	if err != nil {
		return &usageError{err}
	}
	defer transport.CloseIdleConnections()
	changes := method != http.MethodGet && path != httpapi.ExportPath
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		switch {
		case changes && connected.Load():
			return &codeError{exitUnknown, "the outcome is unknown: " + err.Error()}
		case changes:
			// nothing was sent: %v hides a timeout, for which exitCode would return exitUnknown
			return fmt.Errorf("%w: %v", errUnavailable, err)
		default:
			return fmt.Errorf("%w: %w", errUnavailable, err)
		}
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	if response.StatusCode != http.StatusOK {
		return answerError(response, changes)
	}
	return use(response.Body)
}

// errUnavailable says that nothing was changed, because no node answered, or there is no leader.
// The request may be made again.
var errUnavailable = errors.New("no answer")

// unavailableError is an errUnavailable with the text of the node that answered.
type unavailableError struct{ text string }

func (e *unavailableError) Error() string        { return e.text }
func (e *unavailableError) Is(target error) bool { return target == errUnavailable }

// answerError returns the error for an answer with a status other than 200. changes says that the
// request was meant to change something.
func answerError(response *http.Response, changes bool) error {
	// after an error: the part that was read
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	var told httpapi.Error
	if json.Unmarshal(text, &told) != nil || told.Error == "" {
		answer := fmt.Sprintf("%s: %s", response.Status, strings.TrimSpace(string(text)))
		if changes && response.StatusCode >= http.StatusInternalServerError {
			// the answer is a proxy's, or was cut: a node may have executed the request
			return &codeError{exitUnknown, "the outcome is unknown: " + answer}
		}
		return errors.New(answer)
	}
	if response.StatusCode == http.StatusNotFound {
		return &codeError{exitNotApplied, told.Error}
	}
	if told.Outcome == "unknown" {
		return &codeError{exitUnknown, "the outcome is unknown: " + told.Error}
	}
	if response.StatusCode == http.StatusServiceUnavailable {
		return &unavailableError{told.Error}
	}
	return errors.New(told.Error)
}

// get reads an answer of the admin API.
func (a *administration) get(ctx context.Context, path string, into any) error {
	return a.request(ctx, http.MethodGet, path, nil,
		func(body io.Reader) error { return decode(body, into) })
}

// do asks the admin API to change something.
func (a *administration) do(ctx context.Context, method, path string, body any) error {
	var encoded io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		encoded = bytes.NewReader(data)
	}
	return a.request(ctx, method, path, encoded, func(io.Reader) error { return nil })
}

func decode(body io.Reader, into any) error {
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// done prints what was done.
func (a *administration) done(out io.Writer, format string, arguments ...any) error {
	text := fmt.Sprintf(format, arguments...)
	if a.output == "json" {
		return printJSON(out, map[string]string{"done": text})
	}
	_, err := fmt.Fprintln(out, text)
	return err
}

// printTable prints rows in columns. heading has the titles of the columns, separated by ", ".
func printTable(out io.Writer, heading string, rows [][]any) error {
	head := []any{}
	for cell := range strings.SplitSeq(heading, ", ") {
		head = append(head, cell)
	}
	return printRows(out, append([][]any{head}, rows...))
}

// printRows prints rows in columns.
func printRows(out io.Writer, rows [][]any) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				_, _ = fmt.Fprint(table, "\t") // Flush reports the error
			}
			_, _ = fmt.Fprint(table, cell)
		}
		_, _ = fmt.Fprintln(table)
	}
	return table.Flush()
}

// newAdmin returns a command that talks to the admin API. Its default --timeout is a minute, or an
// hour if use ends in " FILE": such a command transfers a snapshot. A dangerous command has the
// flag --yes.
func newAdmin(use, short, example string, arguments cobra.PositionalArgs,
	run func(*administration, *cobra.Command, []string) error, dangerous ...bool,
) *cobra.Command {
	a := administration{timeout: time.Minute}
	if strings.HasSuffix(use, " FILE") { // a large snapshot takes long
		a.timeout = time.Hour
	}
	command := &cobra.Command{
		Use: use, Short: short, Example: "  " + example,
		Args: positional(arguments),
	}
	a.addFlags(command)
	if slices.Contains(dangerous, true) {
		a.addYes(command)
	}
	command.RunE = func(command *cobra.Command,
		arguments []string,
	) error {
		return run(&a, command, arguments)
	}
	return command
}

func newStatus() *cobra.Command {
	return newAdmin("status", "Show what a node knows of itself",
		"holdfast status --admin http://127.0.0.1:7401 -o json", cobra.NoArgs,
		func(a *administration, command *cobra.Command, _ []string) error {
			var s httpapi.Status
			if err := a.get(command.Context(), "/v1/status", &s); err != nil {
				return err
			}
			return a.printStatus(command.OutOrStdout(), &s)
		})
}

func (a *administration) printStatus(out io.Writer, s *httpapi.Status) error {
	if a.output == "json" {
		return printJSON(out, s)
	}
	return printRows(out, [][]any{
		{"Node", s.Node},
		{"ID", s.ID},
		{"State", s.State},
		{"Leader", s.Leader},
		{"Serving", s.Serving},
		{"Ready", s.Ready},
		{"Notes", strings.Join(s.Notes, "; ")},
		{"Term", s.Term},
		{"Last Term", s.LastTerm},
		{"Last Index", s.LastIndex},
		{"Commit Index", s.CommitIndex},
		{"Applied Index", s.AppliedIndex},
		{"Log Version", s.LogVersion},
		{"State Hash", s.Hash},
		{"Keys", s.Keys},
		{"Bytes", s.Bytes},
		{"Watches", s.Watches},
		{"Remembered Outcomes", s.Remembered},
	})
}
