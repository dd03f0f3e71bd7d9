package mqttfront

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"holdfast/fsm"
)

// A node that comes to lead may lack requests that the others hold: it may have been restarted, or cut off from the broker.
// So it asks them, for at most collectTime, and takes up what is missing here.

const (
	collectTime = 200 * time.Millisecond
	// heldPage is about how many bytes of requests one answer holds.
	heldPage = 1 << 20
)

// Held returns a page of the requests that this node holds, in the order of their arrival, from a cursor that begins at 0, and
// the next cursor, 0 at the end.
func (f *Front) Held(cursor uint64) (page []byte, next uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for element := f.held.Front(); element != nil; element = element.Next() {
		r := element.Value.(*request)
		if r.sequence < cursor || r.state == stateEnded || r.command.ID.IsZero() {
			continue
		}
		if len(page) >= heldPage {
			return page, r.sequence
		}
		page = appendHeld(page, r, now)
	}
	return page, 0
}

func appendField[T ~string | ~[]byte](b []byte, field T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(field))), field...)
}

// appendHeld appends a request as one node gives it to another: times as what is left of them, because clocks differ.
func appendHeld(b []byte, r *request, now time.Time) []byte {
	deadline := int64(0)
	if !r.deadline.IsZero() {
		deadline = max(r.deadline.Sub(now).Milliseconds(), 1)
	}
	var body []byte
	body = appendField(body, r.responseTopic)
	body = appendField(body, r.correlation)
	body = appendField(body, r.version)
	body = binary.AppendVarint(body, deadline)
	body = binary.AppendVarint(body, r.holdUntil.Sub(now).Milliseconds())
	body = binary.AppendVarint(body, now.Sub(r.arrived).Milliseconds())
	body = binary.AppendUvarint(body, r.outcome)
	body = appendField(body, fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{r.command}}))
	return appendField(b, body)
}

var errHeld = errors.New("a held request that cannot be read")

// fields reads what appendHeld wrote. The first fault sticks.
type fields struct {
	rest []byte
	err  error
}

func (f *fields) bytes() []byte {
	size, n := binary.Uvarint(f.rest)
	if f.err != nil || n <= 0 || size > uint64(len(f.rest)-n) {
		f.err = errHeld
		return nil
	}
	field := f.rest[n : n+int(size)]
	f.rest = f.rest[n+int(size):]
	return field
}

func (f *fields) number() uint64 {
	value, n := binary.Uvarint(f.rest)
	if f.err != nil || n <= 0 {
		f.err = errHeld
		return 0
	}
	f.rest = f.rest[n:]
	return value
}

func (f *fields) milliseconds() time.Duration {
	value, n := binary.Varint(f.rest)
	if f.err != nil || n <= 0 {
		f.err = errHeld
		return 0
	}
	f.rest = f.rest[n:]
	return time.Duration(value) * time.Millisecond
}

// readHeld reads a page. What cannot be read ends it: it was written by a version that knows more.
func readHeld(page []byte, now time.Time) (requests []*request, err error) {
	for rest := (fields{rest: page}); len(rest.rest) > 0; {
		body := fields{rest: rest.bytes()}
		r := &request{done: func() {}}
		r.responseTopic = string(body.bytes())
		r.correlation = body.bytes()
		r.version = string(body.bytes())
		deadline := body.milliseconds()
		if deadline > 0 {
			r.deadline = now.Add(deadline)
		}
		r.holdUntil = now.Add(body.milliseconds())
		r.arrived = now.Add(-body.milliseconds())
		r.outcome = body.number()
		encoded := body.bytes()
		if err := errors.Join(rest.err, body.err); err != nil {
			return requests, err
		}
		entry, err := fsm.DecodeEntry(encoded)
		if err != nil {
			return requests, err
		}
		if len(entry.Commands) != 1 || entry.Commands[0].ID.IsZero() {
			return requests, errHeld
		}
		r.command = entry.Commands[0]
		r.read = r.command.Kind == fsm.KindGet
		r.size = requestOverhead + len(encoded) + len(r.responseTopic) + len(r.correlation)
		requests = append(requests, r)
	}
	return requests, nil
}

// collection is what the other nodes hold, by node, each in its order.
type collection struct {
	mu     sync.Mutex
	byNode map[string][]*request
}

// collect asks the other nodes what they hold.
func (f *Front) collect(ctx context.Context) map[string][]*request {
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	c := collection{byNode: make(map[string][]*request)}
	f.store.CollectHeld(ctx, func(node string, page []byte) {
		requests, err := readHeld(page, time.Now())
		if err != nil {
			f.world.Log.Warn("what another node holds cannot be read", "from", node, "error", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.byNode[node] = append(c.byNode[node], requests...)
	})
	return c.byNode
}

// takeUpHeld adds what the other nodes hold and this one does not, in each node's order for each client: before the next request
// of the same client that is held here, or else by the time of its arrival. f.mu is held.
func (f *Front) takeUpHeld(m *fsm.Machine, byNode map[string][]*request) {
	published := m.Status().Published
	added := 0
	for _, requests := range byNode {
		next := make(map[string]*request) // by client: what is held here of it behind the place that was reached
		for i := len(requests) - 1; i >= 0; i-- {
			r := requests[i]
			if here, held := f.byID[r.command.ID]; held {
				next[r.ordering()] = here
				continue
			}
			if _, index, known := m.Remembered(r.command.ID); known && index <= published {
				continue // answered: that node only does not know it yet
			}
			if f.full(r) {
				f.world.Metrics.heldDropped.WithLabelValues("full").Inc()
				continue
			}
			f.insert(r, next[r.ordering()])
			next[r.ordering()] = r
			added++
		}
	}
	if added == 0 {
		return
	}
	f.world.Log.Info("took up requests that only other nodes held", "requests", added)
	for element := f.held.Front(); element != nil; element = element.Next() {
		f.sequence++
		element.Value.(*request).sequence = f.sequence
	}
}

// insert puts a request before another, or by the time of its arrival. f.mu is held.
func (f *Front) insert(r, before *request) {
	switch {
	case before != nil:
		r.element = f.held.InsertBefore(r, before.element)
	default:
		after := f.held.Back()
		for after != nil && after.Value.(*request).arrived.After(r.arrived) {
			after = after.Prev()
		}
		if after == nil {
			r.element = f.held.PushFront(r)
		} else {
			r.element = f.held.InsertAfter(r, after)
		}
	}
	f.heldBytes += r.size
	f.byID[r.command.ID] = r
	f.world.Metrics.held.Set(float64(f.held.Len()))
}
