package mqttfront

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/fsm"
)

// request is a message on its way from the invoke topic to its reply.
type request struct {
	responseTopic string
	correlation   []byte // nil when there was none
	version       string // __protVer that cannot be served; only for replies of 505
	command       fsm.Command
	read          bool      // a GET
	arrived       time.Time // when it was taken from the connection
	deadline      time.Time // of its message expiry; zero for none
	// sent is the later, the later this copy was sent: its own deadline, or its arrival. Other copies that it absorbs leave it alone.
	sent        time.Time
	holdUntil   time.Time // when it is given up unanswered
	size        int
	done        func() // acknowledges the message to the broker
	redelivered bool   // the broker has sent it before
	elsewhere   bool   // this copy was received by another node, and taken from there

	// The fields below are guarded by Front.mu.
	state    requestState
	element  *list.Element // in pending.order
	began    time.Time     // when it went into the hands of the store
	writing  bool          // counts in Front.writing
	sequence uint64        // grows with the place in pending.order
	client   string        // the key of its client, where that is known to be another than the request says
	outcome  uint64        // index of the log entry with its outcome; 0 while that is not known
}

// over reports whether nobody waits for the answer any more.
func (r *request) over(now time.Time) bool { return !now.Before(r.holdUntil) || r.expired(now) }

// expired reports whether the message has expired.
func (r *request) expired(now time.Time) bool { return !r.deadline.IsZero() && !now.Before(r.deadline) }

// answerKnown reports whether the answer is an error that follows from the message alone: it needs no log.
func (r *request) answerKnown() bool { return r.version != "" || r.command.Kind == 0 }

// logged reports whether executing the request needs an entry in the log.
func (r *request) logged() bool { return !r.read && !r.answerKnown() }

// inTable reports whether the outcome of the request is remembered, so that the log can say that it must not have an effect.
func (r *request) inTable() bool { return r.logged() && !r.command.ID.IsZero() }

// absorb makes one copy of a request stand for another as well: for as long as either is worth an answer.
func (r *request) absorb(other *request) {
	if !r.deadline.IsZero() && (other.deadline.IsZero() || other.deadline.After(r.deadline)) {
		r.deadline = other.deadline
	}
	if other.holdUntil.After(r.holdUntil) {
		r.holdUntil = other.holdUntil
	}
	r.command.Lifetime = max(r.command.Lifetime, other.command.Lifetime)
	if other.isCopy() {
		r.markCopy()
	}
	if r.outcome == 0 {
		r.commit(other.outcome)
	}
}

// ordering returns the key by which what one client receives is kept in order.
func (r *request) ordering() string {
	if r.client != "" {
		return r.client
	}
	if id := r.command.Principal.ClientID; id != "" {
		return id
	}
	return r.responseTopic
}

// minIdentifying is how long Correlation Data must be for a request to have an identity.
const minIdentifying = 16

// requestID returns the identity of a request: a hash over all that makes a copy of it the same request. Without enough
// Correlation Data there is none. It depends on the message's bytes alone: nodes whose settings differ, as while a change is rolled out, give
// one message one identity.
func requestID(ownWord string, message *paho.Publish, timestamp, token string) (id fsm.RequestID) {
	if len(message.Properties.CorrelationData) < minIdentifying {
		return id
	}
	h := hashers.Get().(*hasher)
	defer hashers.Put(h)
	h.sum.Reset()
	h.text(ownWord)
	h.text(message.Properties.ResponseTopic)
	h.field(message.Properties.CorrelationData)
	h.field(message.Payload)
	h.text(timestamp)
	h.text(token)
	copy(id[:], h.sum.Sum(h.scratch[:0]))
	return id
}

// hasher hashes fields with their lengths before them. What it needs is kept from one request to the next, because a hash makes all that
// it is given escape.
type hasher struct {
	sum     hash.Hash
	scratch []byte
}

var hashers = sync.Pool{New: func() any { return &hasher{sum: sha256.New(), scratch: make([]byte, 0, 512)} }}

func (h *hasher) field(field []byte) {
	h.sum.Write(binary.BigEndian.AppendUint64(h.scratch[:0], uint64(len(field)))) // a hash never fails
	h.sum.Write(field)
}

func (h *hasher) text(field string) {
	h.scratch = append(binary.BigEndian.AppendUint64(h.scratch[:0], uint64(len(field))), field...)
	h.sum.Write(h.scratch)
}
