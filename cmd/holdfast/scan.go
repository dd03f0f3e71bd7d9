package main

import (
	"bufio"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"holdfast/internal/glob"
)

func newScan() *cobra.Command {
	var c connection
	command := &cobra.Command{
		Use:   "scan PATTERN",
		Short: "List the keys that match a pattern",
		Long: "Lists the keys that match a pattern and that the client may read, in the order of their bytes, one a line; with -o json each as a\n" +
			"JSON string. In the pattern * is any run of characters, ? one character, [abc] and [a-z] one of these, [!a] any other one. Keys that\n" +
			"are not valid UTF-8 are left out. A key with characters that do not print is printed as a Go string. --timeout bounds each page of\n" +
			"up to 1,000 keys.\n" + exitHelp,
		Example: "  holdfast scan '*'\n  holdfast scan 'lines/*/recipe'\n  holdfast scan 'lines/[0-9]/*' -o json",
		Args:    positional(cobra.ExactArgs(1)),
	}
	c.addFlags(command)
	command.RunE = func(command *cobra.Command, arguments []string) (err error) {
		if err := checkPattern(arguments[0]); err != nil {
			return err
		}
		store, err := c.open(command.Context(), command)
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }() // Close always returns nil
		out := bufio.NewWriter(stdout(command))
		defer func() {
			if flushErr := out.Flush(); err == nil {
				err = flushErr
			}
		}()
		for key, err := range store.Keys(command.Context(), arguments[0]) {
			if err != nil {
				return err
			}
			if err := c.printKey(out, key); err != nil {
				return err
			}
		}
		return nil
	}
	return command
}

// checkPattern returns a usage error that says what is wrong with a pattern. The store would report
// that only as a syntax error.
func checkPattern(pattern string) error {
	if _, err := glob.Compile(pattern); err != nil {
		return usagef("pattern %q: %w", pattern, err)
	}
	return nil
}

// printKey prints a key in a line of its own.
func (c *connection) printKey(out io.Writer, key string) error {
	if c.output == "json" {
		return printJSON(out, key)
	}
	_, err := fmt.Fprintln(out, printable(key))
	return err
}

// printable returns a text as it is, or as a quoted Go string if it has a quotation mark, a
// backslash, or characters that do not print.
func printable(text string) string {
	if quoted := strconv.Quote(text); quoted[1:len(quoted)-1] != text {
		return quoted
	}
	return text
}
