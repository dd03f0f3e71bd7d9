package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"holdfast/fsm"
	"holdfast/internal/httpapi"
)

// administration holds the flags of commands that talk to a node's admin API.
type administration struct {
	address string
	timeout time.Duration
	output  string
}

func (a *administration) add(command *cobra.Command) {
	address := os.Getenv("HOLDFAST_ADMIN")
	if address == "" {
		address = "http://127.0.0.1:7401"
	}
	command.Flags().StringVar(&a.address, "admin", address, "admin `address` of a node; also HOLDFAST_ADMIN")
	command.Flags().DurationVar(&a.timeout, "timeout", time.Minute, "how long to wait for an answer")
	command.Flags().StringVarP(&a.output, "output", "o", "text", "output `format`, text or json")
}

// request calls the admin API and hands the body of the answer to use.
func (a *administration) request(ctx context.Context, method, path string, use func(io.Reader) error) error {
	if a.output != "text" && a.output != "json" {
		return usagef("--output is %q: must be text or json", a.output)
	}
	if a.timeout <= 0 {
		return usagef("--timeout is %v: must be positive", a.timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(a.address, "/")+path, nil)
	if err != nil {
		return &usageError{fmt.Errorf("--admin: %w", err)}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096)) // as much as there is
		return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	return use(response.Body)
}

func newStatus() *cobra.Command {
	var a administration
	command := &cobra.Command{
		Use:     "status",
		Short:   "Show what a node knows of itself",
		Example: "  holdfast status\n  holdfast status --admin http://127.0.0.1:7401 -o json",
		Args:    positional(cobra.NoArgs),
	}
	a.add(command)
	command.RunE = func(command *cobra.Command, _ []string) error {
		return a.request(command.Context(), http.MethodGet, "/v1/status", func(body io.Reader) error {
			return a.printStatus(command.OutOrStdout(), body)
		})
	}
	return command
}

func (a *administration) printStatus(out io.Writer, body io.Reader) error {
	var s httpapi.Status
	if err := json.NewDecoder(body).Decode(&s); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if a.output == "json" {
		return printJSON(out, s)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range [][2]any{
		{"Node", s.Node},
		{"ID", s.ID},
		{"State", s.State},
		{"Serving", s.Serving},
		{"Ready", s.Ready},
		{"Term", s.Term},
		{"Commit Index", s.CommitIndex},
		{"Applied Index", s.AppliedIndex},
		{"State Hash", s.Hash},
		{"Keys", s.Keys},
		{"Bytes", s.Bytes},
		{"Watches", s.Watches},
		{"Remembered Outcomes", s.Remembered},
	} {
		_, _ = fmt.Fprintf(table, "%s\t%v\n", row[0], row[1]) // Flush reports the error
	}
	return table.Flush()
}

func newRaft() *cobra.Command {
	command := group(&cobra.Command{Use: "raft", Short: "Operate the cluster", Example: "  holdfast raft snapshot save backup.snap"})
	snapshot := group(&cobra.Command{Use: "snapshot", Short: "Take, save and inspect snapshots", Example: "  holdfast raft snapshot save backup.snap"})
	snapshot.AddCommand(newSnapshotTake(), newSnapshotSave(), newSnapshotInspect())
	command.AddCommand(snapshot)
	return command
}

func newSnapshotTake() *cobra.Command {
	var a administration
	command := &cobra.Command{
		Use:     "take",
		Short:   "Make the node write a snapshot into its data folder and cut its log behind it",
		Example: "  holdfast raft snapshot take",
		Args:    positional(cobra.NoArgs),
	}
	a.add(command)
	command.RunE = func(command *cobra.Command, _ []string) error {
		return a.request(command.Context(), http.MethodPost, "/v1/snapshot", func(body io.Reader) error {
			return a.printStatus(command.OutOrStdout(), body)
		})
	}
	return command
}

func newSnapshotSave() *cobra.Command {
	var a administration
	command := &cobra.Command{
		Use:     "save FILE",
		Short:   "Save a consistent, checksummed snapshot of the state to a file",
		Example: "  holdfast raft snapshot save backup.snap",
		Args:    positional(cobra.ExactArgs(1)),
	}
	a.add(command)
	command.RunE = func(command *cobra.Command, arguments []string) error {
		file := arguments[0]
		partial := file + ".part"
		err := a.request(command.Context(), http.MethodGet, "/v1/snapshot", func(body io.Reader) error {
			return saveTo(partial, body)
		})
		if err != nil {
			_ = os.Remove(partial) // there may be none
			return err
		}
		summary, err := inspect(partial) // what does not restore is no backup
		if err != nil {
			return err
		}
		if err := os.Rename(partial, file); err != nil {
			return err
		}
		return a.printSummary(command.OutOrStdout(), file, summary)
	}
	return command
}

func saveTo(name string, body io.Reader) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, body)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

func newSnapshotInspect() *cobra.Command {
	a := administration{}
	command := &cobra.Command{
		Use:     "inspect FILE",
		Short:   "Check a saved snapshot and say what is in it",
		Example: "  holdfast raft snapshot inspect backup.snap",
		Args:    positional(cobra.ExactArgs(1)),
	}
	command.Flags().StringVarP(&a.output, "output", "o", "text", "output `format`, text or json")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		summary, err := inspect(arguments[0])
		if err != nil {
			return err
		}
		return a.printSummary(command.OutOrStdout(), arguments[0], summary)
	}
	return command
}

// snapshotSummary is what is in a snapshot.
type snapshotSummary struct {
	File    string `json:"file"`
	Index   uint64 `json:"index"`
	Hash    string `json:"hash"`
	Keys    int    `json:"keys"`
	Bytes   int64  `json:"bytes"`
	Watches int    `json:"watches"`
	Size    int64  `json:"size"`
}

func inspect(name string) (summary snapshotSummary, err error) {
	file, err := os.Open(name)
	if err != nil {
		return summary, err
	}
	defer func() { _ = file.Close() }() // it was only read
	machine := fsm.New()
	if err := machine.Restore(file); err != nil {
		return summary, fmt.Errorf("%s: %w", name, err)
	}
	info, err := file.Stat()
	if err != nil {
		return summary, err
	}
	s := machine.Status()
	return snapshotSummary{
		Index: s.Index, Hash: fmt.Sprintf("%016x", s.Hash), Keys: s.Keys, Bytes: s.Bytes, Watches: s.Watches, Size: info.Size(),
	}, nil
}

func (a *administration) printSummary(out io.Writer, file string, s snapshotSummary) error {
	s.File = file
	if a.output == "json" {
		return printJSON(out, s)
	}
	_, err := fmt.Fprintf(out, "%s: index %d, %d keys, %d bytes, %d watches, state hash %s, %d bytes on disk\n", file, s.Index, s.Keys, s.Bytes, s.Watches, s.Hash, s.Size)
	return err
}
