package role

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// HeldElsewhere is what the other nodes hold.
type HeldElsewhere struct {
	byNode map[string][]*pending.Request
	// received is a moment after this node received the answers. When the barrier has passed it, all of these requests are settled.
	received time.Time
}

// Begin makes the node lead and publish to the outbox. What the log says is unpublished goes out first, in the order of the log; then what has
// no outcome yet is executed, in the order of arrival.
func (l *Leader) Begin(held HeldElsewhere, outbox Outbox) {
	l.outbox = outbox
	l.store.View(func(m *fsm.Machine) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.role = l
		settings, _ := m.Settings()
		l.adoptLocked(&settings)
		l.version = max(l.version, m.Status().Version)
		l.pending.Hints.ForgetArrivals()
		if !l.barrier.Passed(held.received) {
			l.keepSettledLocked(m, held.byNode)
		}
		l.takeUpHeldLocked(m, held.byNode)
		l.republishLocked(m)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = true
	defer l.store.Flush()
	for r := range l.pending.All() {
		if r.State().IsHeld() {
			l.executeLocked(r, false)
		}
	}
}

// republishLocked queues what may not have been published: notifications beyond the published mark, and the outcomes of requests
// that this node still holds. The state does not move meanwhile.
func (l *Leader) republishLocked(m *fsm.Machine) {
	type output struct {
		index uint64
		send  func()
	}
	var outputs []output
	now := m.Status().Now
	for _, event := range m.Unpublished() {
		age := time.Duration(now-event.At) * time.Millisecond
		outputs = append(outputs, output{event.Index, func() { l.notifyLocked(&event, age) }})
	}
	for r := range l.pending.All() {
		if !r.State().IsHeld() || r.Command.ID.IsZero() {
			continue
		}
		result, index, ok := m.Remembered(r.Command.ID)
		switch {
		case !ok:
		case !m.RemembersFor(r.Command.ID, r.Command.Lifetime-l.config.DedupMargin.Milliseconds()):
			r.MarkCopy() // it came again, and goes through the log, which remembers it for longer: another node may get this copy later
		default:
			outputs = append(outputs, output{index, func() { l.answerLocked(r, index, &result) }})
		}
	}
	slices.SortStableFunc(outputs, func(a, b output) int { return cmp.Compare(a.index, b.index) })
	for _, o := range outputs {
		o.send()
	}
	l.pending.ForgetCommitted()
}

// stopServing stops publishing at once. What is not known to be published is held for the next leader, which may be this node.
// It returns what was answered and not reported yet.
func (l *Leader) stopServing() (answered []fsm.RequestID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.role, l.pending.NeedsLookup = follower{l.Requests}, true
	answered, l.answered = l.answered, nil
	for _, r := range slices.Collect(l.pending.All()) {
		if r.State() == pending.StateDelivering {
			l.parkCommittedLocked(r)
		}
		switch {
		case !r.State().IsHeld():
		case !l.mode.followersHold():
			l.releaseLocked(r)
		default:
			l.keepFirstLocked(r)
		}
	}
	l.pending.EndWrites()
	l.pending.FindCommitted()
	l.room.Broadcast()
	return answered
}

// keepSettledLocked leaves out the requests that this node's own session may still deliver.
func (l *Leader) keepSettledLocked(m *fsm.Machine, byNode map[string][]*pending.Request) {
	barrier, begun := l.barrier.Reached(), l.begun()
	if l.fullAt.After(begun) {
		begun = l.fullAt // it lost what it dropped, too
	}
	if barrier.IsZero() {
		begun = time.Now() // the broker lets no probes through: nothing else settles anything
	}
	markCopies(byNode)
	for node, requests := range byNode {
		byNode[node] = l.pending.Settled(requests, barrier, begun, openIn(m))
	}
}

// openIn returns a function that reports whether nothing keeps a request from being executed, as far as is known of it and in a state.
func openIn(m *fsm.Machine) func(*pending.Request) bool {
	return func(r *pending.Request) bool {
		if !r.IsOpen() {
			return false
		}
		_, _, known := m.Remembered(r.Command.ID)
		return !known
	}
}

// markCopies marks all copies of the requests that any of the nodes knows as copies.
func markCopies(byNode map[string][]*pending.Request) {
	copies := make(map[fsm.RequestID]bool)
	for _, requests := range byNode {
		for _, r := range requests {
			if r.IsCopy() {
				copies[r.Command.ID] = true
			}
		}
	}
	for _, requests := range byNode {
		for _, r := range requests {
			if copies[r.Command.ID] {
				r.MarkCopy()
			}
		}
	}
}

// mattersAtTakeover reports whether a request that another node holds is to be executed, or to be refused in the log. Of what else has expired,
// deduplication may have forgotten the outcome.
func mattersAtTakeover(r *pending.Request, now time.Time) bool {
	return !r.Expired(now) || r.IsOpen() && r.InTable()
}

// absorbLive makes each expired copy stand for those of other nodes that have not expired: a client waits for these.
func absorbLive(byNode map[string][]*pending.Request, now time.Time) {
	live := make(map[fsm.RequestID]*pending.Request)
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		for _, r := range byNode[node] {
			if !r.Expired(now) {
				live[r.Command.ID] = r
			}
		}
	}
	for _, requests := range byNode {
		for _, r := range requests {
			if other := live[r.Command.ID]; other != nil && r.Expired(now) {
				r.Absorb(other)
			}
		}
	}
}

// takeUpHeldLocked adds what the other nodes hold and this one does not, in each node's order for each client. It returns them in
// their order. A write that has expired is among them: it says where copies of it stand that expire later elsewhere. If all copies have expired, it
// is refused in the log in its place, so that no other one is executed behind later requests of its client.
func (l *Leader) takeUpHeldLocked(m *fsm.Machine, byNode map[string][]*pending.Request) (added []*pending.Request) {
	published, now := m.Status().Published, time.Now()
	markCopies(byNode)
	absorbLive(byNode, now)
	var elsewhere [][]*pending.Request
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		elsewhere = append(elsewhere, slices.DeleteFunc(slices.Clone(byNode[node]), func(r *pending.Request) bool {
			if here := l.pending.Get(r.Command.ID); here != nil {
				if r.IsCopy() && here.State().IsHeld() {
					here.MarkCopy()
				}
				return false
			}
			if !mattersAtTakeover(r, now) {
				return true
			}
			_, index, known := m.Remembered(r.Command.ID)
			if !known && (r.IsCopy() && !r.Read || l.wasShedLocked(r)) { // and it is forgotten, or that node does not know it yet
				l.reportLocked(r.Command.ID)
				return true
			}
			if known && index <= published && !r.IsCopy() { // answered: that node only does not know it yet
				l.reportLocked(r.Command.ID)
				return true
			}
			return false
		}))
	}
	added, full := l.pending.Merge(elsewhere, openIn(m))
	l.metrics.HeldDropped.WithLabelValues("full").Add(float64(full))
	l.metrics.Held.Set(float64(l.pending.Len()))
	if len(added) == 0 {
		return nil
	}
	l.metrics.TakenUp.Add(float64(len(added)))
	l.log.Info("took up requests that only other nodes held", "requests", len(added))
	slices.SortFunc(added, func(a, b *pending.Request) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return added
}
