package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"holdfast/client"
	"holdfast/internal/server/settings"
)

// Exit codes that scripts can rely on.
const (
	exitDone       = 0
	exitNotApplied = 1 // not found, the condition was not met, or a check failed
	exitUsage      = 2
	exitError      = 3 // any other error, of the store or of this program
	// no answer in time, or one that is not understood: the outcome is unknown; of `raft verify`: a
	// member did not answer
	exitUnknown  = 4
	exitNoLock   = 5 // the lock could not be acquired
	exitLockLost = 6
	exitRemoved  = 7 // this node was removed from its cluster
)

const exitHelp = `
Exit codes: 0 done, 1 not found or not applied, 2 usage, 3 error, 4 the outcome is unknown.`

// codeError is an error with an exit code of its own. If text is empty, nothing is printed.
type codeError struct {
	code int
	text string
}

func (e *codeError) Error() string { return e.text }

// exitCode returns the exit code for an error. silent says that the error must not be printed.
func exitCode(err error) (code int, silent bool) {
	var own *codeError
	var answered *client.ServerError
	switch {
	case err == nil:
		return exitDone, false
	case errors.As(err, &own):
		return own.code, own.text == ""
	case errors.As(err, &answered):
		// before the next case: it knows cobra's error by its text, and the store's error for an
		// unknown command has the same text
		return exitError, false
	case isUsage(err), errors.Is(err, settings.ErrInvalid),
		strings.HasPrefix(err.Error(), "unknown command"):
		return exitUsage, false
	case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrNotApplied):
		return exitNotApplied, false
	case errors.Is(err, client.ErrNotExecuted), // definitely not done
		errors.Is(err, client.ErrNoAnswer): // of a read, which changes nothing
		return exitError, false
	case errors.Is(err, client.ErrOutcomeUnknown), errors.Is(err, client.ErrProtocol),
		errors.Is(err, context.DeadlineExceeded):
		return exitUnknown, false
	default:
		return exitError, false
	}
}

// explanation returns an explanation to append to the text of an error, or an empty string. The
// commands of this program are well formed. A store that does not understand one is older, or has
// an older member.
func explanation(err error) string {
	for _, older := range []error{
		client.ErrUnknownCommand, client.ErrSyntax,
		client.ErrArgumentCount,
	} {
		if errors.Is(err, older) {
			return ": the store is older than this program and does not know this command or option; upgrade all its members (Log Version in `holdfast raft status`)"
		}
	}
	if errors.Is(err, client.ErrNoStore) {
		return ": is a node running (`holdfast health` on its host), is this its broker, and may this user publish requests to it and receive its answers?"
	}
	return ""
}

func usagef(format string, arguments ...any) error {
	return &usageError{fmt.Errorf(format, arguments...)}
}
