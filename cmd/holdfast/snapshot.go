package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/fsm"
	"holdfast/internal/server/httpapi"
)

func newSnapshot() *cobra.Command {
	command := group(&cobra.Command{
		Use:     "snapshot",
		Short:   "Take, save, restore and inspect snapshots",
		Example: "  holdfast raft snapshot save backup.snap",
	})
	command.AddCommand(
		newAdmin("take", "Make the node write a snapshot into its data folder and cut its log behind it", "holdfast raft snapshot take", cobra.NoArgs, takeSnapshot),
		newSnapshotSave(),
		newAdmin("restore FILE",
			"Replace the state of the whole cluster by that of a file; - is the standard input",
			"holdfast raft snapshot restore backup.snap --yes", cobra.ExactArgs(1),
			restoreSnapshot, true),
		newSnapshotInspect())
	return command
}

func takeSnapshot(a *administration, command *cobra.Command, _ []string) error {
	return a.request(command.Context(), http.MethodPost, "/v1/snapshot/take", nil,
		func(body io.Reader) error {
			var s httpapi.Status
			if err := decode(body, &s); err != nil {
				return err
			}
			return a.printStatus(command.OutOrStdout(), &s)
		})
}

func newSnapshotSave() *cobra.Command {
	keep := 0
	command := newAdmin("save FILE", "Save a consistent, checksummed snapshot of the state",
		"holdfast raft snapshot save backup.snap", cobra.ExactArgs(1),
		func(a *administration, command *cobra.Command, arguments []string) error {
			if keep < 0 {
				return usagef("--keep is %d: must not be negative", keep)
			}
			return a.saveSnapshot(command, arguments[0], keep)
		})
	command.Long = `Saves the leader's state, and reads the file once more before it gets its name: what does not restore is no backup. Into a folder
it is saved under a name with the time, ` + savedPrefix + "2026-01-31T120000Z" + savedSuffix + `; with --keep only the newest of such names stay. To the
standard output (-) it is written as it comes: only the exit code 0 says that it is whole.`
	command.Example += "\n  mkdir -p backups && holdfast raft snapshot save backups --keep 14"
	command.Flags().IntVar(&keep, "keep", 0,
		"how `many` snapshots to leave in the folder, this one among them; 0 is all")
	return command
}

// The parts of the name of a snapshot in a folder: prefix, time, suffix. The names sort by time.
const (
	savedPrefix = "holdfast-"
	savedTime   = "2006-01-02T150405Z"
	savedSuffix = ".snap"
)

func (a *administration) saveSnapshot(command *cobra.Command, target string, keep int) error {
	if err := a.checkFlags(); err != nil {
		return err
	}
	// bounds the wait for the reader of a pipe, too
	ctx, cancel := context.WithTimeout(command.Context(), a.timeout)
	defer cancel()
	if target == "-" {
		return a.streamSnapshot(ctx, command.OutOrStdout())
	}
	info, err := os.Stat(target)
	folder := err == nil && info.IsDir()
	if keep > 0 && !folder {
		return usagef("--keep goes with a folder, which %q is not", target)
	}
	file := target
	if folder {
		file = filepath.Join(target, savedPrefix+time.Now().UTC().Format(savedTime)+savedSuffix)
	}
	if keep > 0 {
		// make room first: otherwise a full volume stays full after --keep was lowered or a command
		// was interrupted
		if err := removeOld(target, keep, time.Now()); err != nil {
			return err
		}
	}
	summary, err := a.saveFile(ctx, file)
	if err != nil || summary == (snapshotSummary{}) {
		return err
	}
	if keep > 0 { // the new snapshot counts, too
		if err := removeOld(target, keep, time.Now()); err != nil {
			return err
		}
		if _, err := os.Stat(file); err != nil { // another command with a lower --keep
			return fmt.Errorf("the snapshot was removed again: %w", err)
		}
	}
	return a.printSummary(command.OutOrStdout(), file, summary)
}

// saveFile writes the snapshot to a temporary file, checks that file, and then renames it to file.
// The summary of a pipe or a device is empty.
func (a *administration) saveFile(ctx context.Context, file string) (summary snapshotSummary,
	err error,
) {
	saved := output{
		whole: func(partial string) error {
			err := a.request(ctx, http.MethodGet, "/v1/snapshot", nil, func(body io.Reader) error {
				return saveTo(partial, func(file io.Writer) error {
					_, err := io.Copy(file, body)
					return err
				})
			})
			if err == nil {
				// a snapshot that cannot be restored is no backup
				summary, err = inspectSnapshot(partial)
			}
			return err
		},
		stream: func(to io.Writer) error { return a.streamSnapshot(ctx, to) },
	}
	return summary, saved.write(ctx, file)
}

// streamSnapshot writes the snapshot as it comes, and checks it on the way.
func (a *administration) streamSnapshot(ctx context.Context, to io.Writer) error {
	return a.request(ctx, http.MethodGet, "/v1/snapshot", nil, func(body io.Reader) error {
		_, err := fsm.Inspect(io.TeeReader(body, interruptibleWriter{ctx, to}))
		return err
	})
}

// removeOld removes all but the keep newest snapshots of a folder, and partial files older than a
// day, which interrupted commands have left. It removes only files whose name has the time, as
// saveSnapshot gives it. The newest are those whose names have the latest times. But a name whose
// time is still to come is of a clock that was wrong: it counts as older than all others.
func removeOld(folder string, keep int, now time.Time) error {
	entries, err := os.ReadDir(folder) // sorted by name, which is by time
	if err != nil {
		return err
	}
	const tolerance = time.Hour // clocks of several machines that save into one folder
	var saved, ahead, old []string
	for _, entry := range entries {
		name, isSaved := strings.CutPrefix(entry.Name(), savedPrefix)
		name, rest, ends := strings.Cut(name, savedSuffix)
		written, err := time.Parse(savedTime, name)
		switch {
		case !isSaved || !ends || err != nil:
		case rest == "" && written.After(now.Add(tolerance)):
			ahead = append(ahead, entry.Name())
		case rest == "":
			saved = append(saved, entry.Name())
		case strings.HasSuffix(rest, ".part") && time.Since(written) > 24*time.Hour:
			// the command that wrote it has ended
			old = append(old, entry.Name())
		}
	}
	saved = append(ahead, saved...)
	for _, name := range append(old, saved[:max(0, len(saved)-keep)]...) {
		if err := os.Remove(filepath.Join(folder, name)); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			// another command may have removed it
			return err
		}
	}
	return nil
}

func restoreSnapshot(a *administration, command *cobra.Command, arguments []string) error {
	name := arguments[0]
	if name == "-" {
		// not inspected here: the cluster refuses a damaged snapshot, and changes nothing
		if err := a.requireYes(
			"replaces all keys of the cluster by those of the standard input"); err != nil {
			return err
		}
		if err := a.uploadSnapshot(command.Context(), command.InOrStdin()); err != nil {
			return err
		}
		return a.done(command.OutOrStdout(),
			"the state of the cluster is that of the standard input")
	}
	summary, err := inspectSnapshot(name)
	if err != nil {
		return err
	}
	if err := a.requireYes(fmt.Sprintf("replaces all keys of the cluster by the %d of %s",
		summary.Keys, name)); err != nil {
		return err
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	if err := a.uploadSnapshot(command.Context(), file); err != nil {
		return err
	}
	return a.done(command.OutOrStdout(), "the state of the cluster is that of %s: %d keys", name,
		summary.Keys)
}

func (a *administration) uploadSnapshot(ctx context.Context, snapshot io.Reader) error {
	return a.request(ctx, http.MethodPut, "/v1/snapshot", io.NopCloser(snapshot),
		func(io.Reader) error { return nil })
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
		summary, err := inspectSnapshot(arguments[0])
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
	Bytes   int64  `json:"bytes"` // of keys and values
	Watches int    `json:"watches"`
	Size    int64  `json:"size"` // of the file in bytes
}

func inspectSnapshot(name string) (summary snapshotSummary, err error) {
	file, err := os.Open(name)
	if err != nil {
		return summary, err
	}
	defer func() { _ = file.Close() }() // it was only read
	s, err := fsm.Inspect(file)
	if err != nil {
		return summary, fmt.Errorf("%s: %w", name, err)
	}
	info, err := file.Stat()
	if err != nil {
		return summary, err
	}
	return snapshotSummary{
		Index: s.Index, Hash: fmt.Sprintf("%016x", s.Hash), Keys: s.Keys, Bytes: s.Bytes,
		Watches: s.Watches, Size: info.Size(),
	}, nil
}

func (a *administration) printSummary(out io.Writer, file string, s snapshotSummary) error {
	s.File = file
	if a.output == "json" {
		return printJSON(out, s)
	}
	_, err := fmt.Fprintf(out,
		"%s: index %d, %d keys, %d bytes, %d watches, state hash %s, %d bytes on disk\n", file,
		s.Index, s.Keys, s.Bytes, s.Watches, s.Hash, s.Size)
	return err
}
