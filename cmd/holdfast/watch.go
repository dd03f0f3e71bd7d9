package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"holdfast/client"
)

// watchEvent is what `holdfast watch -o json` prints.
type watchEvent struct {
	Event       string  `json:"event"` // set, deleted or gap
	Key         string  `json:"key,omitempty"`
	KeyBase64   []byte  `json:"keyBase64,omitempty"` // instead of Key if that is not valid UTF-8
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"valueBase64,omitempty"`
	Version     string  `json:"version,omitempty"`
}

func newWatch() *cobra.Command {
	var c connection
	var glob bool
	command := &cobra.Command{
		Use:   "watch KEY...",
		Short: "Print the changes of keys until interrupted",
		Long: "Prints a line for each change: SET KEY VALUE or DELETED KEY. Prints GAP KEY when changes may have been missed: the connection was\n" +
			"lost, or the output was read too slowly. An expired key is printed as DELETED.\n\n" +
			"A key or a value that has control characters, or is not valid UTF-8, is printed in quotes. -o json shows it as it is,\n" +
			"or as keyBase64 and valueBase64 if it is not valid UTF-8.\n" +
			"Keys are literal. With --glob they are patterns, as those of `holdfast scan`. A change is printed once for each pattern that its key matches.\n" + exitHelp,
		Example: "  holdfast watch lines/7/owner lines/7/state\n  holdfast watch --glob 'lines/*/owner'\n  holdfast watch lines/7/owner -o json",
		Args:    positional(cobra.MinimumNArgs(1)),
	}
	c.addFlags(command)
	command.Flags().BoolVar(&glob, "glob", false,
		"each KEY is a pattern, and all keys that match are watched")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		for _, pattern := range arguments {
			if err := checkPattern(pattern); glob && err != nil {
				return err
			}
		}
		store, err := c.open(command.Context(), command)
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }() // the store ends the watches with the connection
		events := make(chan client.Event)
		ended := make(chan error, len(arguments))
		var options []client.WatchOption
		what := "key"
		if glob {
			options, what = append(options, client.Glob()), "pattern"
		}
		slices.Sort(arguments)
		arguments = slices.Compact(arguments)
		for _, key := range arguments {
			watcher, err := store.Watch(command.Context(), key, options...)
			if err != nil {
				return fmt.Errorf("watch %s: %w", key, err)
			}
			go forward(command, watcher, events, ended)
		}
		if c.output == "text" {
			// for people only
			_, _ = fmt.Fprintf(command.ErrOrStderr(), "watching %d %s(s)\n", len(arguments), what)
		}
		out := stdout(command)
		for {
			select {
			case <-command.Context().Done():
				return nil
			case err := <-ended:
				return err
			case event := <-events:
				err := c.printEvent(out, event)
				switch {
				case command.Context().Err() != nil:
					// the write was cut short, and must not be followed by another one
					return nil
				case err != nil:
					return err
				}
			}
		}
	}
	return command
}

// forward sends the events of one watcher to events. When the watcher ends, forward sends the
// watcher's error to ended. It also returns when the context ends.
func forward(command *cobra.Command, watcher *client.Watcher, events chan<- client.Event,
	ended chan<- error,
) {
	for event := range watcher.Events() {
		select {
		case events <- event:
		case <-command.Context().Done():
			return
		}
	}
	ended <- watcher.Err()
}

func (c *connection) printEvent(out io.Writer, event client.Event) error {
	if c.output == "json" {
		result := resultOf(event.Key)
		if event.Kind == client.EventSet {
			result.setValue(event.Value)
		}
		printed := watchEvent{
			Event: event.Kind.String(), Key: result.Key, KeyBase64: result.KeyBase64,
			Value: result.Value, ValueBase64: result.ValueBase64,
		}
		if !event.Version.IsZero() {
			printed.Version = event.Version.String()
		}
		return printJSON(out, printed)
	}
	var err error
	switch event.Kind {
	case client.EventSet:
		_, err = fmt.Fprintf(out, "SET %s %s\n", printable(event.Key), printableValue(event.Value))
	case client.EventDeleted:
		_, err = fmt.Fprintf(out, "DELETED %s\n", printable(event.Key))
	default:
		_, err = fmt.Fprintf(out, "GAP %s\n", printable(event.Key))
	}
	return err
}
