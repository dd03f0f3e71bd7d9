package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"holdfast/fsm"
	"holdfast/internal/httpapi"
)

func newSnapshot() *cobra.Command {
	command := group(&cobra.Command{Use: "snapshot", Short: "Take, save, restore and inspect snapshots", Example: "  holdfast raft snapshot save backup.snap"})
	command.AddCommand(
		newAdmin("take", "Make the node write a snapshot into its data folder and cut its log behind it", "holdfast raft snapshot take", cobra.NoArgs, takeSnapshot),
		newAdmin("save FILE", "Save a consistent, checksummed snapshot of the state to a file", "holdfast raft snapshot save backup.snap", cobra.ExactArgs(1), saveSnapshot),
		newAdmin("restore FILE", "Replace the state of the whole cluster by that of a file", "holdfast raft snapshot restore backup.snap --yes", cobra.ExactArgs(1), restoreSnapshot, true),
		newSnapshotInspect())
	return command
}

func takeSnapshot(a *administration, command *cobra.Command, _ []string) error {
	return a.request(command.Context(), http.MethodPost, "/v1/snapshot/take", nil, func(body io.Reader) error {
		var s httpapi.Status
		if err := decode(body, &s); err != nil {
			return err
		}
		return a.printStatus(command.OutOrStdout(), &s)
	})
}

func saveSnapshot(a *administration, command *cobra.Command, arguments []string) error {
	file := arguments[0]
	partial := file + ".part"
	err := a.request(command.Context(), http.MethodGet, "/v1/snapshot", nil, func(body io.Reader) error {
		return saveTo(partial, body)
	})
	if err != nil {
		_ = os.Remove(partial) // there may be none
		return err
	}
	summary, err := inspect(partial) // what does not restore is no backup
	if err != nil {
		return errors.Join(err, os.Remove(partial))
	}
	if err := os.Rename(partial, file); err != nil {
		return err
	}
	return a.printSummary(command.OutOrStdout(), file, summary)
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

func restoreSnapshot(a *administration, command *cobra.Command, arguments []string) error {
	summary, err := inspect(arguments[0])
	if err != nil {
		return err
	}
	if err := a.confirmed(fmt.Sprintf("replaces all keys of the cluster by the %d of %s", summary.Keys, arguments[0])); err != nil {
		return err
	}
	file, err := os.Open(arguments[0])
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	err = a.request(command.Context(), http.MethodPut, "/v1/snapshot", file, func(io.Reader) error { return nil })
	if err != nil {
		return err
	}
	return a.done(command.OutOrStdout(), "the state of the cluster is that of %s: %d keys", arguments[0], summary.Keys)
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
		if a.output != "text" && a.output != "json" {
			return usagef("--output is %q: must be text or json", a.output)
		}
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
