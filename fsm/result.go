package fsm

import "holdfast/hlc"

// ErrorCode is an error that a client is told. The numbers are part of the log and snapshot
// formats: only ever added.
type ErrorCode uint8

// The errors. Text returns what clients read. 0 is no error.
const (
	NoError ErrorCode = iota
	ErrorSyntax
	ErrorUnknownCommand
	ErrorArguments
	ErrorEmptyKey
	ErrorQuota
	ErrorMissingTimestamp
	ErrorMalformedTimestamp
	ErrorNotAuthorized
	ErrorTimestampSkew
	ErrorTokenRequired
	ErrorTokenSkew
	ErrorTokenLower
	ErrorOverloaded
	ErrorQoS
	ErrorMissingCorrelationData
	ErrorReplyTooLarge
	ErrorInvalidContinuationToken // never in the log
	errorCodes                    // the number of codes; not one of them
)

// Text returns the error as the protocol spells it, without "-ERR ".
func (e ErrorCode) Text() string {
	switch e {
	case ErrorSyntax:
		return "syntax error"
	case ErrorUnknownCommand:
		return "unknown command"
	case ErrorArguments:
		return "wrong number of arguments"
	case ErrorEmptyKey:
		return "the key length is zero"
	case ErrorQuota:
		return "the quota has been exceeded"
	case ErrorMissingTimestamp:
		return "missing timestamp"
	case ErrorMalformedTimestamp:
		return "malformed timestamp"
	case ErrorNotAuthorized:
		return "not authorized"
	case ErrorTimestampSkew:
		return "the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
	case ErrorTokenRequired:
		return "a fencing token is required for this request"
	case ErrorTokenSkew:
		return "the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
	case ErrorTokenLower:
		return "the request fencing token is a lower version than the fencing token protecting the resource"
	case ErrorOverloaded:
		return "the service is overloaded; try again"
	case ErrorQoS:
		return "request must be published with QoS 1"
	case ErrorMissingCorrelationData:
		return "missing correlation data"
	case ErrorReplyTooLarge:
		return "the reply is larger than the broker accepts"
	case ErrorInvalidContinuationToken:
		return "invalid continuation token"
	default:
		return "internal error"
	}
}

// Code says how a command ended. The numbers are part of the snapshot format: only ever added.
type Code uint8

// The codes of results.
const (
	// the command has no result to send: most commands of the cluster itself. While a command is
	// executed: not decided yet
	CodeNone       Code = 0
	CodeOK         Code = 1
	CodeNotApplied Code = 2 // the condition was not met
	CodeDeleted    Code = 3
	CodeMissing    Code = 4 // nothing there to delete, or to stop watching
	CodeValue      Code = 5
	CodeNull       Code = 6 // GET of a key that does not exist
	CodeError      Code = 7
	// refused without a reply: the client may have had another one, or the dedup table has no room
	CodeNoReply Code = 8
	CodeKeys    Code = 9  // never in a snapshot
	CodeReplies Code = 10 // a transaction took effect
)

// Result is how one command ended.
type Result struct {
	Code    Code
	Error   ErrorCode // with CodeError
	Dialect Dialect   // in which to answer
	// an earlier copy of the request was answered like this; this one had no effect
	Repeat bool
	// Rule is the number, from 1 on and at most 65535, of the policy rule that allowed the command.
	// It is 0 without a policy, if no single rule decided, with CodeError and CodeNotApplied, and
	// in a Repeat.
	Rule uint16
	// Operation is the index, from 0 on, of the operation that made a transaction fail: it was
	// refused, or its condition was not met. 0 in a Repeat.
	Operation uint8
	Limit     Limit    // with ErrorQuota, but in a Repeat
	Value     string   // with CodeValue
	Page      *KeyPage // with CodeKeys
	Replies   []Result // with CodeReplies: those of the operations

	version    hlc.Clock
	hasVersion bool
}

// Version returns the version that goes into the reply, if one does.
func (r *Result) Version() (hlc.Timestamp, bool) {
	return r.version.Timestamp(hlc.StoreNodeID), r.hasVersion
}

// Event is one change of a watched key, with the clients to notify of it. It must not be changed.
type Event struct {
	Index   uint64 // of the log entry
	Command int    // position of the command in the entry; -1 for an expiry before all commands
	Key     string
	Value   string
	Deleted bool
	// of the new value, or of the one that was removed; zero if this is no change (Repeat)
	Version   hlc.Timestamp
	At        int64 // cluster time of the change, in milliseconds
	Receivers []Receiver
}

// Receiver is a client that watches a key.
type Receiver struct {
	ClientID string
	Dialect  Dialect
}

// EntryOutcome is what an entry did.
type EntryOutcome struct {
	Index, Term, Number uint64
	// Skipped says that the entry had no effect: the serving leader did not propose it, or its
	// Number is not the next one.
	Skipped bool
	// Results has one element per command, in their order; nil if Skipped.
	Results []Result
	// Events come in the order in which they happened. The caller delivers the events of a command
	// before its result.
	Events []Event
	// Mirrored are the changes of keys with a mirror, one element each: a key may repeat. Commands
	// of the kinds KindConfigure and KindRestore add none, although they may change what all
	// mirrors show.
	Mirrored []MirroredKey
	// Commands are those of the entry.
	Commands []Command
	// Dropped counts the notifications that were given up to keep the list of unpublished ones
	// within its bound.
	Dropped int
}
