package fsm

import (
	"holdfast/hlc"
	"holdfast/internal/policy"
)

// Kind says what a command does. The numbers are part of the log format: they are only ever added,
// never reused. A machine that meets a kind it does not know stops; see ErrUnknown.
type Kind uint8

// The kinds of commands. KindSet to KindInvalid, KindScan and KindTxn come from clients; the others
// from the cluster itself.
const (
	KindSet           Kind = 1
	KindDel           Kind = 2
	KindVDel          Kind = 3
	KindKeyNotify     Kind = 4
	KindKeyNotifyStop Kind = 5
	KindGet           Kind = 6
	// a request, or an operation of a TXN, that always fails: with CaseError, if it is set and
	// counts, otherwise with Error
	KindInvalid Kind = 7
	// the leader refused these requests: as overload, or silently (Rejection.Silent)
	KindReject     Kind = 8
	KindClientGone Kind = 9 // a client disconnected: its watches end
	// a watch ends, because a notification found no subscriber or an operator ended it
	KindWatchEnd    Kind = 10
	KindLeaderStart Kind = 11 // a leader begins to serve; always alone in its entry
	KindConfigure   Kind = 12 // the settings change
	// raises the clocks and the version in force; with nothing to raise, its entry only moves
	// cluster time
	KindAdvance        Kind = 13
	KindPinNonVoter    Kind = 14 // the member whose raft id is the key stays a non-voter
	KindAllowPromotion Kind = 15 // the member whose raft id is the key may become a voter again
	// one part of a snapshot to restore: Value at Offset; Nonce names the restore
	KindStage Kind = 16
	// the keys become those of the snapshot that was staged under the nonce
	KindRestore Kind = 17
	// the key is a pattern, the value a continuation token; never in the log
	KindScan Kind = 18
	KindTxn  Kind = 19 // all of the operations, or none
)

// IsRead reports whether a command of the kind only reads.
func (k Kind) IsRead() bool { return k == KindGet || k == KindScan }

// RequestID identifies a request across redeliveries, nodes and restarts. The zero value means that
// the request has none: it takes effect as often as it arrives.
type RequestID [16]byte

// IsZero reports whether there is no id.
func (id RequestID) IsZero() bool { return id == RequestID{} }

// Condition restricts a SET, or a DEL.
type Condition uint8

// The conditions.
const (
	Always          Condition = 0
	IfAbsent        Condition = 1 // NX
	IfAbsentOrEqual Condition = 2 // NEX: absent, or equal to Expected
	IfVersion       Condition = 3 // IFVER, also of a DEL: the key exists and has ExpectedVersion
)

// Dialect is the syntax of replies and notifications that a client expects, where the documented
// protocol and the client libraries differ.
type Dialect uint8

// The dialects.
const (
	Documented Dialect = 0 // "-1" for a condition that was not met, DEL in a notification
	SDK        Dialect = 1 // ":-1" and DELETE
)

// Command is one thing to do. Which fields count depends on the kind. Byte slices may be shared
// with the caller; the machine copies what it keeps.
type Command struct {
	Kind      Kind
	ID        RequestID
	Principal policy.Principal
	Dialect   Dialect // dialect of the request; the settings may override it

	Key []byte
	// SET: the new value; VDEL: the value to compare with; SCAN: the continuation token, nil for
	// the first page; Stage: the part
	Value     []byte
	Expected  []byte // SET with IfAbsentOrEqual
	Condition Condition
	// ExpectedVersion belongs to IfVersion.
	ExpectedVersion hlc.Timestamp
	TTL             int64         // SET: milliseconds, 0 for none
	Timestamp       hlc.Timestamp // SET: the client's clock
	Token           hlc.Timestamp // SET, DEL, VDEL: the fencing token; zero for none

	// Operations are the commands of a Txn: each is a Set, a Del, a VDel, a Get, or Invalid. The
	// Principal, the Dialect, the Timestamp, the Token and Unidentified are those of the Txn.
	Operations []Command
	// MaxReply is how many bytes the payload of the reply to a Txn may have; 0 is no bound.
	MaxReply int64

	// Lifetime is how long, in milliseconds of cluster time, the outcome of a request with an id is
	// remembered.
	Lifetime int64

	// What is wrong with the request, in the order in which it is reported. CaseError counts only
	// while verbs and options are case sensitive (Settings.CaseInsensitive). Error always counts.
	// LateError counts only if the sizes are within the limits.
	CaseError ErrorCode
	Error     ErrorCode
	LateError ErrorCode

	// Pattern says that the key of a KeyNotify, a KeyNotifyStop or a WatchEnd is a pattern, and all
	// keys that match it are meant.
	Pattern bool

	// Oversize says that a key or value was over the limit and is left out. The request fails with
	// ErrorQuota, even if the limits have been raised since.
	Oversize bool
	// Unidentified says that the broker did not vouch for the client id, and the node's settings
	// require that.
	Unidentified bool

	// BrokerTime orders the events of one client by its broker's own clock, in the unit of the
	// broker's driver: for a KEYNOTIFY when it was published, for a ClientGone when the client
	// disconnected. 0 is unknown: a ClientGone with 0 ends no watch, and no ClientGone ends a watch
	// with 0.
	BrokerTime int64
	// Everyone widens a ClientGone to all clients. The client id must then be empty.
	Everyone bool

	// Rejected lists the requests of a Reject.
	Rejected []Rejection

	// NotificationIndex and ChangedAt belong to a WatchEnd: the log index and the cluster time of
	// the change whose notification found no subscriber. See anyAge.
	NotificationIndex uint64
	ChangedAt         int64 // cluster time, in milliseconds

	// Offset is, in bytes, where the value of a Stage is in the snapshot. For a Restore it is the
	// size of the snapshot.
	Offset uint64

	// Nonce belongs to a LeaderStart, a Stage and a Restore: it identifies the leadership, or the
	// restore. Version belongs to a LeaderStart and an Advance: the newest version of the log that
	// every member can apply.
	Nonce   uint64
	Version uint32 // of the log; see Version

	// Settings belong to a Configure.
	Settings *Settings
	// KeepPolicy says that the Configure leaves the policy in force as it is.
	KeepPolicy bool

	// Floor belongs to an Advance.
	Floor Floor
}

// IsRemembered reports whether the outcome of the command is remembered under its ID.
func (c *Command) IsRemembered() bool { return !c.ID.IsZero() && !c.Kind.IsRead() }

// NoOp returns a command that changes nothing and whose result nobody reads: it only has a place in
// the log.
func NoOp() Command { return Command{Kind: KindGet} }

// Refusal returns a Reject of this command. The command must have an ID. After a silent refusal the
// store answers neither the request nor its copies.
func (c *Command) Refusal(silent bool) Command {
	return Command{Kind: KindReject, Rejected: []Rejection{{
		ID: c.ID, ClientID: c.Principal.ClientID, Lifetime: c.Lifetime, Dialect: c.Dialect,
		Silent: silent,
	}}}
}

// Rejection is a request that the leader refused. Without Silent the leader was too busy. With
// Silent the request came too late, or its outcome may be forgotten already. Such a request may
// have had an effect, so the store answers no copy of it.
type Rejection struct {
	ID       RequestID
	ClientID string
	Lifetime int64 // milliseconds for which the outcome is remembered
	Dialect  Dialect
	Silent   bool
}

// Floor has a lower bound for each clock: an Advance raises the clocks to at least these values.
type Floor struct {
	Clock hlc.Clock
	Now   int64 // cluster time, in milliseconds
	Wall  int64 // milliseconds since the Unix epoch
}

// access returns the access to the key that the policy must allow.
func (k Kind) access() policy.Access {
	switch k {
	case KindSet, KindDel, KindVDel:
		return policy.Write
	default:
		return policy.Read
	}
}
