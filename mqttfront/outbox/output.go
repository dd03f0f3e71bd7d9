package outbox

import (
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/fsm"
	"holdfast/mqttfront/wire"
)

// Output is a reply or a notification on its way to the broker: a reply if Request is set, and a
// notification if Event is.
type Output struct {
	Index  uint64 // index of a notification's log entry; 0 for a reply and for a test
	Queued time.Time

	Request *wire.Request // set for a reply
	Result  fsm.Result
	Tag     any // for the caller; this package does not use it

	Event    *fsm.Event // set for a notification
	Receiver *fsm.Receiver
	// set for a notification that only finds out whether the client of a watch is there
	Test *fsm.WatchInfo
	TTL  time.Duration // how long after Queued a notification is worth delivering

	// The fields below are guarded by queue.mu.
	lost         bool // its connection ended before the broker acknowledged it
	blamedLosses int  // see soloAfter
	finished     bool // see queue.finish
	dropped      bool // given up for lack of room in the queue
}

// size returns the bytes that a notification keeps in memory.
func (o *Output) size() int { return len(o.Event.Key) + len(o.Event.Value) }

// kind returns the label of the output in metrics and logs.
func (o *Output) kind() string {
	if o.Event != nil {
		return "notification"
	}
	return "reply"
}

// client returns the client id of the receiver, which is empty where a request does not give it.
func (o *Output) client() string {
	if o.Event != nil {
		return o.Receiver.ClientID
	}
	return o.Request.Command.Principal.ClientID
}

// shrink makes a reply smaller that the broker does not accept: a page gets half of its keys, and a
// single key or a value becomes an error. It reports whether it did.
func (o *Output) shrink() bool {
	switch {
	case o.Request == nil:
		return false
	case o.Result.Code == fsm.CodeKeys && len(o.Result.Page.Keys) > 1:
		o.Result.Page = o.Result.Page.First(len(o.Result.Page.Keys) / 2)
		return true
	case o.Result.Code == fsm.CodeKeys || o.Result.Code == fsm.CodeValue:
		o.Result = fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorReplyTooLarge}
		return true
	default:
		return false
	}
}

// Encode returns the packet of the output at a moment, or nil for a notification that is not worth
// delivering any more.
func (o *Output) Encode(now time.Time) *packets.Publish {
	if o.Event == nil {
		return wire.EncodeReply(o.Request, &o.Result, now)
	}
	left := o.TTL - now.Sub(o.Queued)
	if left <= 0 {
		return nil
	}
	return wire.EncodeNotification(o.Event, o.Receiver, left)
}
