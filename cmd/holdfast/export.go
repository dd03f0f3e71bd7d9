package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/httpapi"
)

func newKeysExport() *cobra.Command {
	a := administration{timeout: time.Minute, output: "text"}
	var pattern string
	command := &cobra.Command{
		Use:   "export [FILE]",
		Short: "Write keys and values as lines of JSON, to a file or to the standard output",
		Long: `Writes each key with its value, version, remaining time to live in milliseconds and fencing token as a line of JSON, in the order of
the keys' bytes. A key or value that is not valid UTF-8 is in keyBase64 or valueBase64. The pattern is that of ` + "`holdfast scan`" + `; keys that are
not valid UTF-8 match none.

Each key is as it was when it was read, while clients go on writing. For a copy of one moment save a snapshot (` + "`holdfast raft snapshot save`" + `).
FILE gets its name when it is whole. --timeout bounds each page of up to 1,000 keys.`,
		Example: "  holdfast keys export backup.ndjson\n  holdfast keys export --pattern 'lines/*' | gzip > lines.ndjson.gz",
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
		return e.writeFile(command.Context(), arguments[0])
	}
	return command
}

// exporting is an export that is under way.
type exporting struct {
	*administration
	progress *progress
	pattern  *string // nil is all keys
}

// writeFile exports beside the file first, so that a file that has the name is whole.
func (e *exporting) writeFile(ctx context.Context, name string) error {
	partial := name + ".part"
	file, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = e.write(ctx, file)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = os.Remove(partial) // the earlier error is returned
		return err
	}
	return os.Rename(partial, name)
}

func (e *exporting) write(ctx context.Context, to io.Writer) error {
	total, err := e.count(ctx)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(to, 1<<20)
	done := int64(0)
	var line []byte
	for after := ""; ; {
		page, next, err := e.page(ctx, after)
		if err != nil {
			return fmt.Errorf("after %d keys: %w", done, err)
		}
		for i := range page {
			line = page[i].AppendLine(line[:0])
			if _, err := out.Write(line); err != nil {
				return err
			}
		}
		done += int64(len(page))
		share := -1.0
		if total > 0 {
			share = float64(done) / float64(total)
		}
		e.progress.show(done, share)
		if after = next; after == "" {
			return out.Flush()
		}
	}
}

// count returns how many keys there are, and 0 if that is not known to be the number of keys that match.
func (e *exporting) count(ctx context.Context) (int, error) {
	if e.pattern != nil {
		return 0, nil
	}
	var count httpapi.KeyCount
	err := e.get(ctx, "/v1/keys/count", &count)
	return count.Count, err
}

func (e *exporting) page(ctx context.Context, after string) (keys []httpapi.ExportedKey, next string, err error) {
	query := url.Values{"after": {after}}
	if e.pattern != nil {
		query.Set("pattern", *e.pattern)
	}
	var page httpapi.ExportPage
	if err := e.get(ctx, "/v1/keys/export?"+query.Encode(), &page); err != nil {
		return nil, "", err
	}
	decoded, err := base64.StdEncoding.DecodeString(page.Next)
	if err != nil {
		return nil, "", fmt.Errorf("read the answer: %w", err)
	}
	return page.Keys, string(decoded), nil
}
