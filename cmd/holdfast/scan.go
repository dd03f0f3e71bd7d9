package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func newScan() *cobra.Command {
	var c connection
	command := &cobra.Command{
		Use:   "scan PATTERN",
		Short: "List the keys that match a pattern",
		Long: "Lists the keys that match a pattern and that the client may read, in the order of their bytes, one a line; with -o json each as a\n" +
			"JSON string. In the pattern * is any run of characters, ? one character, [abc] and [a-z] one of these, [!a] any other one. Keys that\n" +
			"are not valid UTF-8 are left out.",
		Example: "  holdfast scan '*'\n  holdfast scan 'lines/*/recipe'\n  holdfast scan 'lines/[0-9]/*' -o json",
		Args:    positional(cobra.ExactArgs(1)),
	}
	c.add(command)
	command.RunE = func(command *cobra.Command, arguments []string) (err error) {
		store, err := c.open(command.Context(), command)
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }() // Close always returns nil
		out := bufio.NewWriter(command.OutOrStdout())
		defer func() {
			if flushErr := out.Flush(); err == nil {
				err = flushErr
			}
		}()
		for key, err := range store.Keys(command.Context(), arguments[0]) { // --timeout bounds each page
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

func (c *connection) printKey(out io.Writer, key string) error {
	if c.output == "json" {
		return json.NewEncoder(out).Encode(key)
	}
	_, err := fmt.Fprintln(out, key)
	return err
}
