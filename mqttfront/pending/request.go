package pending

import (
	"container/list"
	"time"

	"holdfast/mqttfront/wire"
)

// Request is a message on its way from the invoke topic to its reply.
type Request struct {
	wire.Request
	Arrived time.Time // when it was taken from the connection
	// Weight is as how many operations the request counts in its client's share, while it is under way at a leader.
	Weight int
	// EstimatedSendTime compares copies of a request: a copy was sent later if it exceeds that of the other by more than expiryRounding. It is the message's
	// deadline, because a client sends copies with one message expiry, or the arrival time if there is no deadline. Absorb does not change it.
	EstimatedSendTime time.Time
	// BrokerReceivedAfter is a lower bound on when the broker received this copy: where the barrier was when the copy arrived. It is zero if nothing is known, for
	// instance for a redelivered message. Absorb does not change it.
	BrokerReceivedAfter time.Time
	HoldUntil           time.Time // when the request expires, unless its message expires earlier
	Done                func()    // acknowledges the message to the broker
	Redelivered         bool      // the DUP flag: the broker may have sent it before
	Backlog             bool      // received while the ingest session was more than 5 s behind the broker
	FromPeer            bool      // this node took it from another node's buffer
	// Relayed is set with FromPeer if the peer, too, took it from another node. Its place in the peer's buffer then shows nothing about the order in which the
	// client sent its requests.
	Relayed bool

	copied time.Time // when the last copy arrived, here or at another node, as far as this node knows; zero if there is none
	// The lock of the Buffer's caller guards the fields below. From Buffer.Add on it also guards those that Absorb, CopyArrived and package role change:
	// Deadline, HoldUntil, Command.Lifetime, copied and Done. The other fields above do not change any more.
	state          State
	element        *list.Element // in Buffer.order
	Began          time.Time     // when the store got it; if the store never had it, when its reply was queued
	proposed       bool          // counts in Buffer.proposals
	Scan           ScanStage
	Sequence       uint64   // grows with the place in Buffer.order
	client         string   // overrides ClientKey if this node knows the client by another key than the peer that sent the request; empty otherwise
	outcomeIndex   uint64   // index of the log entry with its outcome; 0 while that is not known
	contradictedBy []string // nodes that, as was found in this leadership, received the request at another place in its client's order than this node
	// awaitsReport says that an earlier leader executed the request. The present leader may not know that this node holds it, and so may count the outcome as
	// delivered (publish.Watermark) although no reply was sent. The request stays until the leader reports it as answered.
	awaitsReport bool
}

// ScanStage says how a SCAN counts in the leader's limits on SCANs.
type ScanStage uint8

// The stages.
const (
	ScanNone       ScanStage = iota // not a SCAN, or a SCAN that is not under way
	ScanReading                     // the store executes it
	ScanDelivering                  // its page is being sent to the broker
)

// LastArrival returns when the request, or its last copy that this node knows of, arrived.
func (r *Request) LastArrival() time.Time {
	if r.copied.After(r.Arrived) {
		return r.copied
	}
	return r.Arrived
}

// CopyArrived notes that another node may have received a copy of the request at a moment.
func (r *Request) CopyArrived(at time.Time) {
	if at.After(r.LastArrival()) {
		r.copied = at
	}
}

// Expired reports whether the client has stopped waiting for the answer: HoldUntil has passed, or the message has expired.
func (r *Request) Expired(now time.Time) bool {
	return !now.Before(r.HoldUntil) || r.MessageExpired(now)
}

// expiryRounding bounds how far deadlines of one message differ between nodes, because brokers round what is left of its expiry to seconds.
const expiryRounding = 1500 * time.Millisecond

// orderMemory is how long an open request stays in the buffer after it has expired. Other nodes may hold copies that expire later: by up to maxLag, for which
// a copy may have waited in a socket, and the rounding. Until then the request's position is needed to order them.
const orderMemory = maxLag + expiryRounding

// Forgettable reports whether HoldUntil has passed, and the request is not needed to order other ones (orderMemory).
func (r *Request) Forgettable(now time.Time) bool {
	if r.IsOpen() && !r.Command.ID.IsZero() {
		return !now.Before(r.HoldUntil.Add(orderMemory))
	}
	return !now.Before(r.HoldUntil)
}

// MessageExpired reports whether the message has expired.
func (r *Request) MessageExpired(now time.Time) bool {
	return !r.Deadline.IsZero() && !now.Before(r.Deadline)
}

// IsInvalid reports whether the message alone decides that the answer is an error. The answer needs no log.
func (r *Request) IsInvalid() bool { return r.UnsupportedVersion != "" || r.Command.Kind == 0 }

// NeedsLogEntry reports whether the request is a valid write: executing it needs an entry in the log. A read may get an entry all the same, to
// keep its place behind a write.
func (r *Request) NeedsLogEntry() bool { return !r.Read && !r.IsInvalid() }

// UsesDedup reports whether the dedup table keeps the outcome of the request, also if that is a refusal.
func (r *Request) UsesDedup() bool { return r.NeedsLogEntry() && !r.Command.ID.IsZero() }

// Absorb makes r stand for another copy of the same request as well: r then expires when the later of the two does, and takes over what the other knows of
// an outcome. other does not change.
func (r *Request) Absorb(other *Request) {
	if !r.Deadline.IsZero() && (other.Deadline.IsZero() || other.Deadline.After(r.Deadline)) {
		r.Deadline = other.Deadline
	}
	if other.HoldUntil.After(r.HoldUntil) {
		r.HoldUntil = other.HoldUntil
	}
	r.Command.Lifetime = max(r.Command.Lifetime, other.Command.Lifetime)
	r.CopyArrived(other.LastArrival())
	if other.IsDuplicate() {
		r.MarkDuplicate()
	}
	if r.outcomeIndex == 0 {
		r.SetOutcomeIndex(other.outcomeIndex)
		r.awaitsReport = other.awaitsReport
	}
}

// ClientKey returns the key of the request's client, by which requests and replies are kept in order and counted: the client id, else the
// response topic.
func (r *Request) ClientKey() string {
	if r.client != "" {
		return r.client
	}
	if id := r.Command.Principal.ClientID; id != "" {
		return id
	}
	return r.ResponseTopic
}
