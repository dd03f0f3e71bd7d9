package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/backoff"
	"holdfast/internal/server/httpapi"
)

func newKeysImport() *cobra.Command {
	i := importing{pending: make(map[int]bool)}
	command := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Store keys and values from lines of JSON, from a file or from the standard input",
		Long: `Stores the key of each line of an export with a SET, as any client does: the policy and the quotas apply, watchers are notified, and
each key gets a new version. A line has key or keyBase64, value or valueBase64, and perhaps ttl (milliseconds), token (the fencing token that
the SET carries and that the key then requires) and version, which is not used. Lines with the same key take effect in their order; to store an
earlier one again fails if a later one raised the token.

It stops at the first line that fails, and prints the number with which --from goes on. Lines before that number are stored; some after it
may be, too, and are stored again then.` + "\n" + exitHelp,
		Example: "  holdfast keys import keys.ndjson --dry-run\n  holdfast keys import keys.ndjson --if-absent\n  zcat lines.ndjson.gz | holdfast keys import",
		Args:    positional(cobra.MaximumNArgs(1)),
	}
	i.connection.addFlags(command)
	flags := command.Flags()
	flags.BoolVar(&i.ifAbsent, "if-absent", false, "leave keys that exist as they are")
	flags.BoolVar(&i.dryRun, "dry-run", false,
		"change nothing: check the form of each line, and say how many lines have a new key, another value or the same value")
	flags.IntVar(&i.from, "from", 1, "`number` of the first line to store")
	command.RunE = func(command *cobra.Command,
		arguments []string,
	) error {
		return i.run(command, arguments)
	}
	return command
}

// The bounds of an import.
const (
	importWorkers = 64 // number of requests at a time
	// bytes of a line; a value of 8 MiB of control characters has 48 MiB as JSON
	maxLine = 96 << 20
	// total bytes of the lines that are read and not yet stored; a single line may have more
	maxImportRead = 32 << 20
)

// importing is an import that is under way.
type importing struct {
	connection       connection
	ifAbsent, dryRun bool
	from             int

	mu      sync.Mutex
	room    *sync.Cond   // bytes has become smaller
	pending map[int]bool // numbers of the lines that are read and not stored
	bytes   int          // total size of the lines that are read and whose attempt has not ended
	next    int          // number of the line that is being read, or of the next one
	counts  importCounts
	err     error // the first error; after it no further line is read
	stopped bool  // a line could not be stored; no further line is stored
}

// importCounts is what an import prints with -o json.
type importCounts struct {
	Stored    int `json:"stored"`
	Skipped   int `json:"skipped"`   // with --if-absent: lines whose key exists
	New       int `json:"new"`       // with --dry-run: lines whose key does not exist
	Changed   int `json:"changed"`   // with --dry-run: lines whose key has another value
	Unchanged int `json:"unchanged"` // with --dry-run: lines whose key has the same value
}

// importLine is a line that a worker stores.
type importLine struct {
	number, size int
	key          httpapi.ExportedKey
}

func (i *importing) run(command *cobra.Command, arguments []string) (err error) {
	if i.from < 1 {
		return usagef("--from is %d: must be positive", i.from)
	}
	in, size := command.InOrStdin(), int64(0)
	if len(arguments) > 0 && arguments[0] != "-" {
		file, err := openFile(command.Context(), arguments[0], os.O_RDONLY)
		switch {
		case err != nil && command.Context().Err() != nil:
			return err
		case err != nil:
			return &usageError{err}
		}
		defer func() { _ = file.Close() }() // it was only read
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		in = file
	}
	store, err := i.connection.open(command.Context(), command)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // Close always returns nil
	i.room = sync.NewCond(&i.mu)
	last := i.store(command.Context(), store, in, size, newProgress(command.ErrOrStderr(), "lines"))
	if i.err == nil && i.from > last+1 {
		// last+1 is valid: an interrupted import may have printed it
		return usagef("--from is %d: there are %d lines", i.from, last)
	}
	if i.err != nil {
		return fmt.Errorf("%w; go on with --from %d", i.err, i.resume())
	}
	return i.print(command.OutOrStdout())
}

// store reads all lines and stores them. Lines with the same key go to the same worker, so that
// they take effect in their order. It returns the number of the last line that was read.
func (i *importing) store(ctx context.Context, store *client.Client, in io.Reader, size int64,
	shown *progress,
) (last int) {
	reading, stop := context.WithCancel(ctx) // ends with the first line that is not stored
	defer stop()
	var working sync.WaitGroup
	queues := make([]chan importLine, importWorkers)
	for n := range queues {
		queues[n] = make(chan importLine, 4)
		working.Go(func() {
			for line := range queues[n] {
				if i.mayStore() { // else it stays pending
					i.recordResult(line, i.storeLine(ctx, store, &line), stop)
				}
			}
		})
	}
	position := int64(0)
	for number, text := range readLines(reading, in) {
		last = number
		i.recordLine(number)
		if text.err != nil {
			i.fail(text.err)
			break
		}
		position += int64(len(text.line)) + 1
		line := importLine{number: number, size: len(text.line)}
		if number >= i.from && len(bytes.TrimSpace(text.line)) > 0 {
			var err error
			if line.key, err = httpapi.ParseExportedKey(text.line); err != nil {
				i.fail(&usageError{fmt.Errorf("line %d: %w", number, err)})
				break
			}
			if !i.admit(line) {
				break
			}
			hash := fnv.New32a()
			_, _ = hash.Write([]byte(line.key.Name())) // never fails
			queues[hash.Sum32()%importWorkers] <- line
		}
		share := -1.0
		if size > 0 {
			share = float64(position) / float64(size)
		}
		shown.show(int64(number), share)
	}
	for _, queue := range queues {
		close(queue)
	}
	working.Wait()
	shown.end()
	return last
}

// admit waits until there is room for a line and adds it to pending. It returns false, and adds
// nothing, once there is an error.
func (i *importing) admit(line importLine) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for i.bytes > 0 && i.bytes+line.size > maxImportRead && i.err == nil {
		i.room.Wait()
	}
	if i.err != nil {
		return false
	}
	i.pending[line.number] = true
	i.next = line.number + 1
	i.bytes += line.size
	return true
}

// recordLine notes the number of the line that is being read.
func (i *importing) recordLine(number int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.next = number
}

// recordResult records the result of storing a line. After an error the line stays pending, no
// further line is begun, and stop ends the reading.
func (i *importing) recordResult(line importLine, err error, stop func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.bytes -= line.size
	i.room.Broadcast()
	if err == nil {
		delete(i.pending, line.number)
		return
	}
	i.stopped = true
	if i.err == nil {
		i.err = fmt.Errorf("line %d: %w", line.number, err)
	}
	stop()
}

// fail records an error of the reading, if it is the first. The lines that were read before it are
// still stored.
func (i *importing) fail(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err == nil {
		i.err = err
	}
}

func (i *importing) mayStore() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.stopped
}

// resume returns the number of the first line that is not known to be stored.
func (i *importing) resume() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	first := i.next
	for number := range i.pending {
		first = min(first, number)
	}
	return max(first, i.from)
}

// overloadPatience is how long a line is tried again while the store answers ErrOverloaded.
// --timeout bounds each attempt.
const overloadPatience = time.Minute

// storeLine stores the key of a line, or with --dry-run compares it with the one in the store.
func (i *importing) storeLine(ctx context.Context, store *client.Client, line *importLine) error {
	options, err := i.options(&line.key)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(overloadPatience); ; {
		try, cancel := context.WithTimeout(ctx, i.connection.timeout)
		if i.dryRun {
			err = i.compare(try, store, &line.key)
		} else {
			err = i.set(try, store, &line.key, options)
		}
		cancel()
		if !errors.Is(err, client.ErrOverloaded) || time.Now().After(deadline) {
			return err
		}
		if !backoff.Pause(ctx, 200*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

func (i *importing) compare(ctx context.Context, store *client.Client,
	key *httpapi.ExportedKey,
) error {
	value, _, err := store.Get(ctx, key.Name())
	switch {
	case errors.Is(err, client.ErrNotFound):
		i.count(&i.counts.New)
	case err != nil:
		return err
	case i.ifAbsent:
		i.count(&i.counts.Skipped)
	case bytes.Equal(value, key.Data()):
		i.count(&i.counts.Unchanged)
	default:
		i.count(&i.counts.Changed)
	}
	return nil
}

func (i *importing) set(ctx context.Context, store *client.Client, key *httpapi.ExportedKey,
	options []client.Option,
) error {
	_, err := store.Set(ctx, key.Name(), key.Data(), options...)
	switch {
	case errors.Is(err, client.ErrNotApplied), i.ifAbsent && isFenced(err):
		// only a key that exists is fenced
		i.count(&i.counts.Skipped)
	case err != nil:
		return err
	default:
		i.count(&i.counts.Stored)
	}
	return nil
}

// options returns the options of the SET of a key.
func (i *importing) options(key *httpapi.ExportedKey) (options []client.Option, err error) {
	if key.Token != "" {
		token, err := client.ParseVersion(key.Token)
		if err != nil {
			return nil, err
		}
		options = append(options, client.Fence(token))
	}
	if key.TTL != nil {
		const longest = int64(1<<63-1) / int64(time.Millisecond)
		options = append(options,
			client.Expire(time.Duration(min(*key.TTL, longest))*time.Millisecond))
	}
	if i.ifAbsent {
		options = append(options, client.IfAbsent())
	}
	return options, nil
}

func isFenced(err error) bool {
	return errors.Is(err, client.ErrFencingTokenRequired) ||
		errors.Is(err, client.ErrFencingTokenLower)
}

func (i *importing) count(what *int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	*what++
}

func (i *importing) print(out io.Writer) error {
	if i.connection.output == "json" {
		return printJSON(out, i.counts)
	}
	c := i.counts
	var err error
	switch {
	case i.dryRun:
		_, err = fmt.Fprintf(out,
			"nothing is changed: of the lines %d have a new key, %d another value, %d the same value, and %d would be skipped\n", c.New, c.Changed, c.Unchanged, c.Skipped)
	case i.ifAbsent:
		_, err = fmt.Fprintf(out, "%d keys stored, %d skipped\n", c.Stored, c.Skipped)
	default:
		_, err = fmt.Fprintf(out, "%d keys stored\n", c.Stored)
	}
	return err
}
