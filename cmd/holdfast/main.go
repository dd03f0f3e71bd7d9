// Holdfast is a replicated, highly available key-value state store for MQTT 5 systems.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// version is set by the build.
var version = "development"

func main() {
	ctx, stop := untilStopped(context.Background())
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run runs the program and returns its exit code.
func run(ctx context.Context, arguments []string) int {
	root := newRoot()
	root.SetArgs(arguments)
	err := root.ExecuteContext(ctx)
	code, silent := exitCode(err)
	if err != nil && !silent {
		// a failure to write to standard error cannot be reported
		_, _ = fmt.Fprintln(root.ErrOrStderr(), "holdfast:", err.Error()+explanation(err))
	}
	return code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "A replicated, highly available key-value state store for MQTT 5 systems",
		Long: "Holdfast serves the state store protocol (SET, GET, DEL, VDEL, TXN, KEYNOTIFY, SCAN over MQTT 5 request/response)\n" +
			"as a Raft cluster behind an MQTT 5 broker.\n\nStart with `holdfast dev`: the whole product in one process.",
		Example:       "  holdfast dev\n  holdfast set greeting hello",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.AddGroup(&cobra.Group{ID: "run", Title: "Run:"}, &cobra.Group{ID: "use", Title: "Use:"},
		&cobra.Group{ID: "operate", Title: "Operate:"})
	for group, commands := range map[string][]*cobra.Command{
		"run": {newDev(), newServer(), newBroker(), newConfig()},
		"use": {
			newGet(), newSet(), newDel(), newVDel(), newTxn(), newScan(), newWatch(),
			newLock(), newBench(),
		},
		"operate": {
			newHealth(), newStatus(), newRaft(), newKeys(), newWatches(), newMirror(), newTLS(),
			newVersion(),
		},
	} {
		for _, command := range commands {
			command.GroupID = group
			root.AddCommand(command)
		}
	}
	return root
}

// flagError makes a usage error of an error about flags. A key or value such as -5 looks like a
// flag.
func flagError(command *cobra.Command, err error) error {
	if strings.HasPrefix(err.Error(), "unknown shorthand flag") {
		return usagef("%w; put -- before a key or value that begins with a dash: %s … -- -5", err,
			command.CommandPath())
	}
	return &usageError{err}
}

// positional wraps a check of the arguments: its errors become usage errors.
func positional(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(command *cobra.Command, arguments []string) error {
		if err := check(command, arguments); err != nil {
			return &usageError{fmt.Errorf("%w; see `%s --help`", err, command.CommandPath())}
		}
		return nil
	}
}

// usageError is a mistake in what the user gave: the command line, a setting, or a file that one of
// them names. Its exit code is exitUsage.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// group completes a command that only has subcommands: without one of these, the command returns a
// usage error.
func group(command *cobra.Command) *cobra.Command {
	command.Args = positional(cobra.NoArgs)
	command.RunE = func(command *cobra.Command, _ []string) error {
		return usagef("want a subcommand; see `%s --help`", command.CommandPath())
	}
	return command
}

func isUsage(err error) bool {
	var usage *usageError
	return errors.As(err, &usage)
}
