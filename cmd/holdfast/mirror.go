package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/server/httpapi"
)

func newMirror() *cobra.Command {
	command := group(&cobra.Command{
		Use: "mirror", Short: "Look at the mirrors: keys whose values the broker retains",
		Example: "  holdfast mirror list\n  holdfast mirror check",
	})
	command.AddCommand(
		newAdmin("list", "List the mirrors, and whether the broker has what they show",
			"holdfast mirror list", cobra.NoArgs, (*administration).listMirrors),
		newAdmin("resync", "Compare the broker's retained messages with the state, and wait until they are in line", "holdfast mirror resync", cobra.NoArgs,
			func(a *administration, command *cobra.Command, _ []string) error {
				m, err := a.resyncMirrors(command.Context())
				if err != nil {
					return err
				}
				return a.printComparison(command, m)
			}),
		newMirrorCheck(),
	)
	return command
}

func newMirrorCheck() *cobra.Command {
	command := newAdmin("check",
		"Like resync, with exit code 1 if a message was missing or stale, or could not be compared",
		"holdfast mirror check", cobra.NoArgs,
		func(a *administration, command *cobra.Command, _ []string) error {
			m, err := a.resyncMirrors(command.Context())
			if err != nil {
				return err
			}
			if err := a.printComparison(command, m); err != nil || m.Missing+m.Stale == 0 &&
				!m.Blind {
				return err
			}
			return &codeError{code: exitNotApplied}
		})
	command.Long = "Compares the broker's retained messages with the state. What was missing or not as in the state is brought in line, and the exit code is\n1 then. It is 1, too, if the broker does not send what it retains."
	return command
}

func (a *administration) listMirrors(command *cobra.Command, _ []string) error {
	var m httpapi.Mirrors
	if err := a.get(command.Context(), "/v1/mirrors", &m); err != nil {
		return err
	}
	if a.output == "json" {
		return printJSON(command.OutOrStdout(), m)
	}
	var rows [][]any
	for _, one := range m.Mirrors {
		rows = append(rows, []any{one.Keys, one.Topic})
	}
	if err := printTable(command.OutOrStdout(), "Keys, Topic", rows); err != nil || len(rows) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(command.OutOrStdout(), "\n"+mirrorState(&m)); err != nil || !m.Blind {
		return err
	}
	_, err := fmt.Fprintln(command.OutOrStdout(), blindBroker)
	return err
}

const blindBroker = "The broker does not send what it retains below some mirror, so that was published again: topics of keys that were deleted while no node led, or while the leader had no connection for mirrors, may stay."

// mirrorState says in words whether the broker's retained messages are as in the state, and if not,
// why.
func mirrorState(m *httpapi.Mirrors) string {
	lag := (time.Duration(m.Lag) * time.Millisecond).Round(100 * time.Millisecond)
	switch {
	case m.Fault != "" && !m.Connected:
		return fmt.Sprintf("The leader has no connection for mirrors, since %v: %s", lag, m.Fault)
	case m.Fault != "":
		return fmt.Sprintf("The leader cannot compare the broker's retained messages with the state, since %v: %s", lag, m.Fault)
	case m.Refused > 0:
		return fmt.Sprintf("The broker refuses %d topics: do its access rules let nodes publish there?", m.Refused)
	case m.InSync:
		return "The broker has what the mirrors show." + unshown(m)
	case m.Comparing:
		return fmt.Sprintf("The leader compares the broker's retained messages with the state, since %v.", lag)
	case m.Dropped:
		return "The broker drops retained messages, so it is not known whether all are in line: let it queue as many bytes for a client as it retains below the mirrors."
	case m.Unretained > 0:
		return fmt.Sprintf("The broker acknowledges %d retained messages, and does not retain them: has it a bound for their size or number?", m.Unretained)
	default:
		return fmt.Sprintf("%d topics are not in line yet; the oldest change is %v old.",
			m.LagTopics, lag)
	}
}

// resyncMirrors makes the leader compare the broker's retained messages with the state, and waits
// until they are in sync (httpapi.Mirrors.InSync).
func (a *administration) resyncMirrors(ctx context.Context) (m httpapi.Mirrors, err error) {
	const poll = 200 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := a.do(ctx, http.MethodPost, "/v1/mirrors/resync", nil); err != nil {
		return m, err
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		m = httpapi.Mirrors{}
		if err := a.get(ctx, "/v1/mirrors", &m); err != nil || m.InSync {
			return m, err
		}
		select {
		case <-ctx.Done():
			return m, fmt.Errorf("not in line within %v: %s", a.timeout, mirrorState(&m))
		case <-ticker.C:
		}
	}
}

func (a *administration) printComparison(command *cobra.Command, m httpapi.Mirrors) error {
	if a.output == "json" {
		return printJSON(command.OutOrStdout(), m)
	}
	if m.Blind {
		return a.done(command.OutOrStdout(), blindBroker)
	}
	return a.done(command.OutOrStdout(),
		"%d keys have a mirror. %d retained messages were missing and %d were not as in the state; they are now.%s", m.Keys, m.Missing, m.Stale, unshown(&m))
}

// unshown returns a sentence about the keys that no valid topic can show, to append to another
// sentence. It is empty if there are none.
func unshown(m *httpapi.Mirrors) string {
	if m.Unshown == 0 {
		return ""
	}
	return fmt.Sprintf(" %d keys make no topic that brokers take, and are not shown.", m.Unshown)
}
