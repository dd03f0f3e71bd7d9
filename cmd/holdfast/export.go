package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/backoff"
	"holdfast/internal/server/httpapi"
)

func newKeysExport() *cobra.Command {
	a := administration{timeout: 30 * time.Second, output: "text"}
	var pattern string
	command := &cobra.Command{
		Use:   "export [FILE]",
		Short: "Write keys and values as lines of JSON, to a file or to the standard output",
		Long: `Writes each key with its value, version, remaining time to live in milliseconds and fencing token as a line of JSON, in the order of
the keys' bytes. A key or value that is not valid UTF-8 is in keyBase64 or valueBase64. The pattern is that of ` + "`holdfast scan`" + `; keys that are
not valid UTF-8 match none.

Each key is as it was when it was read, while clients go on writing. For a copy of one moment save a snapshot (` + "`holdfast raft snapshot save`" + `).
The export is written to a file beside FILE, which is renamed to FILE when it is whole. --timeout bounds an attempt to read a page of up to 1,000
keys, and how long a page is attempted again, as after the end of a leader.`,
		Example: "  holdfast keys export keys.ndjson\n  holdfast keys export --pattern 'lines/*' | gzip > lines.ndjson.gz",
		Args:    positional(cobra.MaximumNArgs(1)),
	}
	a.addAddress(command)
	command.Flags().StringVar(&pattern, "pattern", "", "only keys that match this `pattern`")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		e := &exporting{administration: &a, progress: newProgress(command.ErrOrStderr(), "keys")}
		if command.Flags().Changed("pattern") {
			e.pattern = &pattern
		}
		defer e.progress.end()
		if len(arguments) == 0 || arguments[0] == "-" {
			return e.write(command.Context(), command.OutOrStdout())
		}
		ctx := command.Context()
		export := func(to io.Writer) error { return e.write(ctx, to) }
		file := output{
			whole:  func(partial string) error { return saveTo(partial, export) },
			stream: export,
		}
		return file.write(ctx, arguments[0])
	}
	return command
}

// exporting is an export that is under way.
type exporting struct {
	*administration
	progress *progress
	pattern  *string // nil is all keys
}

func (e *exporting) write(ctx context.Context, to io.Writer) (err error) {
	total, err := e.count(ctx)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(interruptibleWriter{ctx, to}, 1<<20)
	defer func() {
		if flushErr := out.Flush(); err == nil {
			// the pages that were read are written, also when the export fails
			err = flushErr
		}
	}()
	done := int64(0)
	var line []byte
	for after := ""; ; {
		page, err := e.page(ctx, after)
		if err != nil {
			return fmt.Errorf("after %d keys: %w", done, err)
		}
		for i := range page.Keys {
			line = page.Keys[i].AppendLine(line[:0])
			if _, err := out.Write(line); err != nil {
				return err
			}
		}
		done += int64(len(page.Keys))
		share := -1.0
		if total > 0 {
			share = float64(done) / float64(total)
		}
		e.progress.show(done, share)
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// count returns the number of keys. It returns 0 if there is a pattern: how many keys match is not
// known.
func (e *exporting) count(ctx context.Context) (int, error) {
	if e.pattern != nil {
		return 0, nil
	}
	var count httpapi.KeyCount
	err := e.retry(ctx, func() error { return e.get(ctx, "/v1/keys/count", &count) })
	return count.Count, err
}

func (e *exporting) page(ctx context.Context, after string) (page httpapi.ExportPage, err error) {
	body, err := json.Marshal(httpapi.ExportRequest{Pattern: e.pattern, After: after})
	if err != nil {
		return page, err
	}
	err = e.retry(ctx, func() error {
		page = httpapi.ExportPage{}
		return e.request(ctx, http.MethodPost, httpapi.ExportPath, bytes.NewReader(body),
			func(body io.Reader) error {
				if err := decode(body, &page); err != nil {
					// the answer is incomplete, as when the node stops
					return fmt.Errorf("%w: %w", errUnavailable, err)
				}
				return nil
			})
	})
	return page, err
}

// retry calls ask again for up to --timeout while no leader answers, as after a leader has failed.
func (e *exporting) retry(ctx context.Context, ask func() error) error {
	for deadline := time.Now().Add(e.timeout); ; {
		err := ask()
		if !errors.Is(err, errUnavailable) || time.Now().After(deadline) {
			return err
		}
		if !backoff.Pause(ctx, 200*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}
