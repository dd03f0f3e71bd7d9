package mqttfront

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/wire"
)

// A node that comes to lead may lack requests that the others hold: it may have been restarted, or cut off from the broker.
// So it asks them, for at most collectTime, and takes up what is missing here. And while it leads it asks now and then for what
// passed it by: after the broker was restarted, the nodes' subscriptions come back one after the other, and a request in between
// reaches some of them only. It does not take what its own session may still deliver (ingest.Barrier): taken from another node, such a request
// could overtake earlier ones of its client.

const (
	collectTime = 200 * time.Millisecond
	// heldPage is about how many bytes of requests one answer holds.
	heldPage = 1 << 20
	// barrierTime bounds how long a new leader waits for a probe when other nodes hold requests that it lacks. If the leader cannot serve yet after
	// that, it asks the other nodes again.
	barrierTime = 200 * time.Millisecond
	// sweepInterval is how often a leader asks for what passed it by, and how long that has to have been held.
	sweepInterval = time.Second
)

// Held returns a page of the requests that this node holds, in the order of their arrival, from a cursor that begins at 0, and
// the next cursor, 0 at the end. With an age it leaves out what is younger, and what is known to have an outcome.
func (f *Front) Held(cursor uint64, age time.Duration) (page []byte, next uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for r := range f.pending.all() {
		if r.sequence < cursor || r.Command.ID.IsZero() || r.expired(now) {
			continue
		}
		if age > 0 && now.Sub(r.arrived) < age {
			break // the others came later
		}
		if age > 0 && r.outcome != 0 {
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

// The flags of a request that one node gives to another.
const (
	flagBare      = 1 << iota // its command has no kind: it is answered without the log
	flagCopy                  // it is a copy of one that has an outcome
	flagElsewhere             // the node has it from another node
)

// appendHeld appends a request as one node gives it to another: times as what is left of them, because clocks differ.
func appendHeld(b []byte, r *request, now time.Time) []byte {
	deadline := int64(0)
	if !r.Deadline.IsZero() {
		deadline = max(r.Deadline.Sub(now).Milliseconds(), 1)
	}
	var body []byte
	body = appendField(body, r.ResponseTopic)
	body = appendField(body, r.Correlation)
	body = appendField(body, r.UnsupportedVersion)
	body = binary.AppendVarint(body, deadline)
	body = binary.AppendVarint(body, r.holdUntil.Sub(now).Milliseconds())
	body = binary.AppendVarint(body, now.Sub(r.arrived).Milliseconds())
	body = binary.AppendUvarint(body, r.outcome)
	command, flags := r.Command, uint64(0)
	if command.Kind == 0 { // it never enters the log, where every command has a kind
		command.Kind, flags = fsm.KindInvalid, flagBare
	}
	if r.isCopy() {
		flags |= flagCopy
	}
	if r.elsewhere {
		flags |= flagElsewhere
	}
	body = binary.AppendUvarint(body, flags)
	body = appendField(body, fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{command}}))
	body = binary.AppendVarint(body, r.sent.Sub(now).Milliseconds()) // nodes of before end here, and leave it out
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

// readHeld reads a page. What cannot be read is left out: it was written by a version that knows more.
func readHeld(page []byte, now time.Time) (requests []*request, faults error) {
	for rest := (fields{rest: page}); len(rest.rest) > 0 && rest.err == nil; {
		r, err := readOneHeld(fields{rest: rest.bytes()}, now)
		if err != nil {
			faults = errors.Join(faults, err)
			continue
		}
		requests = append(requests, r)
	}
	return requests, faults
}

func readOneHeld(body fields, now time.Time) (*request, error) {
	r := &request{done: func() {}, elsewhere: true}
	r.ResponseTopic = string(body.bytes())
	r.Correlation = body.bytes()
	r.UnsupportedVersion = string(body.bytes())
	if deadline := body.milliseconds(); deadline > 0 {
		r.Deadline = now.Add(deadline)
	}
	r.holdUntil = now.Add(body.milliseconds())
	r.arrived = now.Add(-body.milliseconds())
	r.commit(body.number())
	flags := body.number()
	encoded := body.bytes()
	if body.err != nil {
		return nil, body.err
	}
	if r.sent = r.Deadline; r.sent.IsZero() {
		r.sent = r.arrived
	}
	if len(body.rest) > 0 {
		r.sent = now.Add(body.milliseconds())
	}
	entry, err := fsm.DecodeEntry(encoded)
	if err != nil {
		return nil, err
	}
	if len(entry.Commands) != 1 || entry.Commands[0].ID.IsZero() {
		return nil, errHeld
	}
	r.Command = entry.Commands[0]
	if flags&flagBare != 0 {
		r.Command.Kind = 0
	}
	if flags&flagCopy != 0 {
		r.markCopy()
	}
	r.secondHand = flags&flagElsewhere != 0
	r.Read = r.Command.Kind == fsm.KindGet
	r.Size = wire.RequestOverhead + len(encoded) + len(r.ResponseTopic) + len(r.Correlation)
	return r, nil
}

// collection is what the other nodes hold, by node, each in its order.
type collection struct {
	mu     sync.Mutex
	byNode map[string][]*request
}

// collect asks the other nodes what they hold, and have held for as long as age.
func (f *Front) collect(ctx context.Context, age time.Duration) map[string][]*request {
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	c := collection{byNode: make(map[string][]*request)}
	f.store.CollectHeld(ctx, age, func(node string, page []byte) {
		requests, err := readHeld(page, time.Now())
		if err != nil {
			f.world.Log.Warn("what another node holds cannot be read", "from", node, "error", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.byNode[node] = append(c.byNode[node], requests...)
	})
	for node, requests := range c.byNode {
		c.byNode[node] = withoutRepeats(requests)
	}
	return c.byNode
}

// withoutRepeats drops what comes again in a list: a node that puts its requests into another order meanwhile gives some of them twice.
func withoutRepeats(list []*request) []*request {
	known := make(map[fsm.RequestID]bool, len(list))
	return slices.DeleteFunc(list, func(r *request) bool {
		again := known[r.Command.ID]
		known[r.Command.ID] = true
		return again
	})
}

// heldElsewhere is what the other nodes hold.
type heldElsewhere struct {
	byNode map[string][]*request
	// received is a moment after this node received the answers. When the barrier has passed it, all of these requests are settled.
	received time.Time
}

// collectForTakeover returns what the other nodes hold. If this node lacks some of it, it sends a probe, and waits for that for barrierTime at most.
// Until the context ready ends, because the node can serve, it then asks again: what its own session brings meanwhile settles only what comes
// before the same request in another node's list.
func (f *Front) collectForTakeover(ctx, ready context.Context) (held heldElsewhere) {
	held.byNode = make(map[string][]*request)
	for again := false; ; again = true {
		maps.Copy(held.byNode, f.collect(ctx, 0)) // a node that does not answer now may have answered before
		held.received = time.Now()
		if !f.lacks(held.byNode) {
			return held
		}
		probing, cancel := context.WithTimeout(ctx, barrierTime)
		stop := func() bool { return true }
		if again { // barrierTime is over
			stop = context.AfterFunc(ready, cancel)
		}
		f.barrier.Await(probing, held.received)
		stop()
		cancel()
		if ctx.Err() != nil || ready.Err() != nil || f.barrier.Passed(held.received) {
			return held
		}
	}
}

// lacks reports whether other nodes hold something that this one does not.
func (f *Front) lacks(byNode map[string][]*request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, requests := range byNode {
		for _, r := range requests {
			if _, held := f.pending.byID[r.Command.ID]; !held {
				return true
			}
		}
	}
	return false
}

// keepSettledLocked leaves out the requests that this node's own session may still deliver.
func (f *Front) keepSettledLocked(byNode map[string][]*request) {
	at := f.barrier.Reached()
	for node, requests := range byNode {
		byNode[node] = settled(requests, at, f.pending.byID)
	}
}

// takeUpHeld adds what the other nodes hold and this one does not, in each node's order for each client. It returns them in
// their order. f.mu is held.
func (l *leader) takeUpHeld(f *Front, m *fsm.Machine, byNode map[string][]*request) (added []*request) {
	published, now := m.Status().Published, time.Now()
	copies := make(map[fsm.RequestID]bool) // that any node knows as such
	for _, requests := range byNode {
		for _, r := range requests {
			if r.isCopy() {
				copies[r.Command.ID] = true
			}
		}
	}
	var elsewhere [][]*request
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		elsewhere = append(elsewhere, slices.DeleteFunc(slices.Clone(byNode[node]), func(r *request) bool {
			if copies[r.Command.ID] {
				r.markCopy()
			}
			if here, held := f.pending.byID[r.Command.ID]; held {
				if r.isCopy() && here.state.isHeld() {
					here.markCopy()
				}
				return false
			}
			if r.expired(now) { // deduplication may have forgotten it
				return true
			}
			_, index, known := m.Remembered(r.Command.ID)
			if !known && (r.isCopy() && !r.Read || f.wasShed(r)) { // and it is forgotten, or that node does not know it yet
				l.report(f, r.Command.ID)
				return true
			}
			if known && index <= published && !r.isCopy() { // answered: that node only does not know it yet
				l.report(f, r.Command.ID)
				return true
			}
			return false
		}))
	}
	added, full := f.pending.merge(elsewhere, func(r *request) bool {
		if !r.isOpen() {
			return false
		}
		_, _, known := m.Remembered(r.Command.ID)
		return !known
	})
	f.world.Metrics.heldDropped.WithLabelValues("full").Add(float64(full))
	f.world.Metrics.held.Set(float64(f.pending.len()))
	if len(added) == 0 {
		return nil
	}
	f.world.Metrics.takenUp.Add(float64(len(added)))
	f.world.Log.Info("took up requests that only other nodes held", "requests", len(added))
	slices.SortFunc(added, func(a, b *request) int { return cmp.Compare(a.sequence, b.sequence) })
	return added
}

// settled returns those of another node's requests, in its order, that this node's own session cannot deliver any more: those that the other node
// received before the barrier, and those that stand before a request of the same client that both nodes received themselves. here holds the requests of
// this node, by id.
func settled(list []*request, at time.Time, here map[fsm.RequestID]*request) (kept []*request) {
	const rounding = 1500 * time.Millisecond // of request.sent
	passed := make(map[string]int)           // by client: the length of the part of the list that is settled
	for i, r := range list {
		own, held := here[r.Command.ID]
		if held && !own.elsewhere && !r.secondHand && r.sent.Sub(own.sent) < rounding { // otherwise the client sent this copy later
			passed[r.ordering()] = i + 1
		}
	}
	for i, r := range list {
		if r.arrived.Before(at) || i < passed[r.ordering()] {
			kept = append(kept, r)
		}
	}
	return kept
}

// sweep takes up, until the context ends, what passed this node by while it leads.
func (f *Front) sweep(ctx context.Context, l *leader) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		f.sweepOnce(ctx, l)
	}
}

// sweepOnce takes up the requests that other nodes received before the barrier and that this node lacks.
func (f *Front) sweepOnce(ctx context.Context, l *leader) {
	at := f.barrier.Reached()
	if f.pushesBack.Load() || at.IsZero() {
		return // no room, or no probe has returned yet
	}
	byNode := f.collect(ctx, max(sweepInterval, time.Since(at)))
	if ctx.Err() != nil || len(byNode) == 0 {
		return
	}
	f.store.View(func(m *fsm.Machine) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.role != role(l) {
			return
		}
		f.keepSettledLocked(byNode)
		for _, r := range l.takeUpHeld(f, m, byNode) {
			l.execute(f, r, false)
		}
		f.store.Flush()
	})
}
