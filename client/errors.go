package client

import (
	"errors"
	"fmt"
	"strings"

	"holdfast/hlc"
)

// Errors that say what became of a command. ErrNotFound and ErrNotApplied are answers of the store;
// ErrOutcomeUnknown means that no answer came: a write may have taken effect, or may yet. A read
// has no outcome that could be unknown: its error is ErrNoAnswer then.
var (
	ErrNotFound       = errors.New("not found")
	ErrNotApplied     = errors.New("not applied: the condition was not met")
	ErrOutcomeUnknown = errors.New("no answer in time: the outcome is unknown")
	ErrNoAnswer       = errors.New("no answer in time")
	// ErrNotExecuted says that a command was certainly not executed: it was not sent, or the store
	// does not support its protocol version.
	ErrNotExecuted = errors.New("not executed")
	// ErrClosed says that the client was closed.
	ErrClosed = errors.New("the client is closed")
	// ErrProtocol says that an answer is not what the protocol allows. The command may have been
	// executed, as after ErrOutcomeUnknown.
	ErrProtocol = errors.New("the answer is not understood")
	// ErrRefused says that the broker refused a request, usually by its access control. The command
	// was not executed, unless the error is also ErrOutcomeUnknown.
	ErrRefused = errors.New("the broker refused the request")
	// ErrNoStore says that the broker has nobody who receives requests, or that nobody has ever
	// answered this client: no node runs, or it is at another broker, or this user may not publish
	// to it. The error is also ErrNotExecuted in the first case, and else ErrOutcomeUnknown or
	// ErrNoAnswer.
	ErrNoStore = errors.New("no Holdfast node answers at this broker")
	// ErrProtocolVersion says that the store does not support this protocol version.
	ErrProtocolVersion = errors.New("the store does not support this protocol version")
)

// The errors of the store, each with the text that the protocol gives it. errors.Is matches a
// ServerError with the error that has its text. A ServerError with any other text matches none of
// them.
var (
	ErrTimestampSkew = errors.New(
		"the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized")
	ErrFencingTokenRequired = errors.New("a fencing token is required for this request")
	ErrFencingTokenSkew     = errors.New(
		"the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized")
	ErrFencingTokenLower = errors.New(
		"the request fencing token is a lower version than the fencing token protecting the resource")
	ErrQuota                  = errors.New("the quota has been exceeded")
	ErrSyntax                 = errors.New("syntax error")
	ErrUnknownCommand         = errors.New("unknown command")
	ErrArgumentCount          = errors.New("wrong number of arguments")
	ErrEmptyKey               = errors.New("the key length is zero")
	ErrNotAuthorized          = errors.New("not authorized")
	ErrMissingTimestamp       = errors.New("missing timestamp")
	ErrMalformedTimestamp     = errors.New("malformed timestamp")
	ErrQoS                    = errors.New("request must be published with QoS 1")
	ErrMissingCorrelationData = errors.New("missing correlation data")
	ErrOverloaded             = errors.New("the service is overloaded; try again")
	ErrReplyTooLarge          = errors.New("the reply is larger than the broker accepts")
	ErrInvalidContinuation    = errors.New("invalid continuation token")
)

func serverErrors() []error {
	return []error{
		ErrTimestampSkew, ErrFencingTokenRequired, ErrFencingTokenSkew, ErrFencingTokenLower,
		ErrQuota, ErrSyntax, ErrUnknownCommand, ErrArgumentCount,
		ErrEmptyKey, ErrNotAuthorized, ErrMissingTimestamp, ErrMalformedTimestamp, ErrQoS,
		ErrMissingCorrelationData, ErrOverloaded, ErrReplyTooLarge,
		ErrInvalidContinuation,
	}
}

// readError is the error of a read that may have been sent: ErrNoAnswer instead of the
// ErrOutcomeUnknown in cause.
type readError struct{ cause error }

// ofRead returns the error of a read.
func ofRead(err error) error {
	if errors.Is(err, ErrOutcomeUnknown) {
		return &readError{err}
	}
	return err
}

// Error implements error.
func (e *readError) Error() string {
	return strings.Replace(e.cause.Error(), ErrOutcomeUnknown.Error(), ErrNoAnswer.Error(), 1)
}

// As finds an error of cause.
func (e *readError) As(target any) bool { return errors.As(e.cause, target) }

// Is finds ErrNoAnswer, and what cause wraps but ErrOutcomeUnknown.
func (e *readError) Is(target error) bool {
	return target == ErrNoAnswer || target != ErrOutcomeUnknown && errors.Is(e.cause, target)
}

// commandError is an error with the command and the key that it is about.
type commandError struct {
	command, key string
	err          error
}

// about names the command and the key of an error. It returns nil for nil.
func about(command, key string, err error) error {
	if err == nil {
		return nil
	}
	return &commandError{command, key, err}
}

// Error implements error.
func (e *commandError) Error() string {
	const most = 64 // bytes of the key that are shown
	if len(e.key) > most {
		return fmt.Sprintf("%s %.64q…: %v", e.command, e.key, e.err)
	}
	return fmt.Sprintf("%s %q: %v", e.command, e.key, e.err)
}

// Unwrap returns the error without command and key.
func (e *commandError) Unwrap() error { return e.err }

// ServerError is an error that the store answered with. The command was not executed.
type ServerError struct {
	Text string
	// Limit says, with ErrQuota, which limit was met, and its bound, as in "limits.keys: 1000". It
	// is empty where the store does not say it.
	Limit string
}

// Error returns the store's text, and the limit.
func (e *ServerError) Error() string {
	if e.Limit != "" {
		return e.Text + " (" + e.Limit + ")"
	}
	return e.Text
}

// Is makes errors.Is find the error of this package that has the same text.
func (e *ServerError) Is(target error) bool {
	for _, known := range serverErrors() {
		if known == target {
			return known.Error() == e.Text
		}
	}
	return false
}

// NotAppliedError is an ErrNotApplied with the version of the key's value. The zero version means
// that the key does not exist.
type NotAppliedError struct{ Version hlc.Timestamp }

// Error implements error.
func (e *NotAppliedError) Error() string {
	if e.Version.IsZero() {
		return fmt.Sprintf("%v (the key does not exist)", ErrNotApplied)
	}
	return fmt.Sprintf("%v (the value is of version %v)", ErrNotApplied, e.Version)
}

// Is makes errors.Is find ErrNotApplied.
func (e *NotAppliedError) Is(target error) bool { return target == ErrNotApplied }
