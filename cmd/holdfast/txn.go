package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"holdfast/client"
)

func newTxn() *cobra.Command {
	var c connection
	var f fence
	command := &cobra.Command{
		Use:   "txn [FILE]",
		Short: "Execute several commands as a transaction: all of them, or none",
		Long: "Reads up to 128 commands from a file, or from the standard input, one a line, and executes all of them at one moment, or none. Two may not write\n" +
			"the same key, and none may read what another writes. What a command reads or expects is what is there before the transaction.\n\n" +
			"  set KEY VALUE [--nx | --nex[=TEXT] | --if-version VERSION] [--px TIME]\n" +
			"  get KEY\n" +
			"  del KEY [--if-version VERSION]\n" +
			"  vdel KEY VALUE\n\n" +
			"A VALUE that begins with @, also in quotation marks, names a file with the value; @@ stands for one @. Words are separated by blanks. In\n" +
			"'text' there are no escapes, in \"text\" those of Go, such as \\n and \\x00. A word that begins with # begins a comment. -- ends the flags.\n\n" +
			"Prints what each command did, and the version that the values got last.\n" + `
Exit codes: 0 done, also if there was nothing to get or to delete, 1 not applied, 2 usage, 3 error, 4 the outcome is unknown.`,
		Example: "  printf 'set lines/7/speed 1200\\nset lines/7/mode ready\\ndel lines/7/draft\\n' | holdfast txn\n" +
			"  version=$(holdfast set lines/7/recipe 'steel, 2mm')\n" +
			"  echo \"set lines/7/recipe 'steel, 3mm' --if-version $version\" | holdfast txn -o json\n" +
			"  echo '{\"speed\": 1200}' > settings.json\n" +
			"  echo 'set lines/7/settings @settings.json' > change.txt\n" +
			"  holdfast lock lines/7/master -- sh -c 'holdfast txn change.txt --fence \"$HOLDFAST_FENCING_TOKEN\"'",
		Args: positional(cobra.MaximumNArgs(1)),
	}
	c.addFlags(command)
	f.addFlags(command)
	command.RunE = func(command *cobra.Command, arguments []string) error {
		fenced, err := f.options(command)
		if err != nil {
			return err
		}
		operations, err := openOperations(command, arguments, fenced)
		if err != nil {
			return err
		}
		return c.do(command, func(ctx context.Context, store *client.Client) error {
			ops := make([]client.Op, len(operations))
			for i := range operations {
				ops[i] = operations[i].op
			}
			result, err := store.Txn(ctx, ops...)
			return c.finishTxn(stdout(command), operations, &result, err)
		})
	}
	return command
}

// openOperations reads the operations of a transaction from the file in arguments, or from the
// standard input.
func openOperations(command *cobra.Command, arguments []string,
	fenced []client.Option,
) ([]operation, error) {
	if len(arguments) == 0 || arguments[0] == "-" {
		return readOperations(command.Context(), command.InOrStdin(), fenced)
	}
	file, err := openFile(command.Context(), arguments[0], os.O_RDONLY)
	if err != nil {
		return nil, &usageError{fmt.Errorf("read the transaction: %w", err)}
	}
	operations, err := readOperations(command.Context(), file, fenced)
	return operations, errors.Join(err, file.Close())
}

// txnResult is what `holdfast txn` prints with -o json. Operations is empty if the transaction was
// not applied. Version is then the version of the first key whose condition is not met; otherwise
// it is the last version that a value got.
type txnResult struct {
	Result     string      `json:"result"` // ok or not_applied
	Version    string      `json:"version,omitempty"`
	Operations []keyResult `json:"operations,omitempty"`
}

// finishTxn prints the result of a transaction.
func (c *connection) finishTxn(out io.Writer, operations []operation, result *client.TxnResult,
	err error,
) error {
	var notApplied *client.NotAppliedError
	printed, version := txnResult{Result: "ok"}, result.Version
	switch {
	case errors.As(err, &notApplied):
		printed.Result, version = "not_applied", notApplied.Version
	case err != nil:
		return err
	}
	if !version.IsZero() {
		printed.Version = version.String()
	}
	for i := range result.Results {
		one := resultOf(operations[i].key)
		one.Result = "ok"
		if !result.Results[i].Found {
			one.Result = "not_found"
		} else if operations[i].verb == "get" {
			one.setValue(result.Results[i].Value)
		}
		printed.Operations = append(printed.Operations, one)
	}
	if c.output == "json" {
		return printResult(out, printed, err)
	}
	for i, one := range printed.Operations {
		text := " ok"
		switch {
		case one.Result == "not_found":
			text = " not found"
		case operations[i].verb == "get":
			text = ": " + printableValue(result.Results[i].Value)
		}
		if _, err := fmt.Fprintf(out, "%s %s%s\n", operations[i].verb, printable(one.Key),
			text); err != nil {
			return err
		}
	}
	if err == nil && printed.Version != "" {
		_, err = fmt.Fprintln(out, printed.Version)
	}
	return err
}

// printableValue returns a value as it is, or as a Go string if it has characters that do not
// print.
func printableValue(value []byte) string {
	text := string(value)
	if !utf8.ValidString(text) ||
		strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}
