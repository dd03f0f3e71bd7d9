package role

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// PeerRequests are the requests that peers hold.
type PeerRequests struct {
	byNode map[string][]*pending.Request
	// received is a moment after this node received the answers. When the barrier has passed it, all of these requests are settled.
	received time.Time
}

// Begin makes the node lead, and publish by the sender. What the log says is unpublished goes out first, in the order of the log; then what has
// no outcome yet is executed, in the order of arrival.
func (l *Leader) Begin(held PeerRequests, sender Sender) {
	l.sender = sender
	l.store.View(func(m *fsm.Machine) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.role = l
		settings, _ := m.Settings()
		l.adoptLocked(&settings)
		l.earlier = make(map[fsm.RequestID]bool)
		l.version = max(l.version, m.Status().Version)
		l.pending.Hints.ForgetArrivals()
		if !l.barrier.Passed(held.received) {
			l.dropUnsettledLocked(m, held.byNode)
		}
		l.mergePeerRequestsLocked(m, held.byNode)
		l.republishLocked(m)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serving = true
	defer l.store.Flush()
	for r := range l.pending.All() {
		if r.State().IsHeld() {
			l.executeLocked(r, false)
		}
	}
}

// republishLocked queues the notifications above the delivery watermark, and the replies of held requests whose outcome is in
// the dedup table. It runs in View, so the state does not change.
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
		if ok {
			l.earlier[r.Command.ID] = false
		}
		switch {
		case !ok:
		case !m.RemembersFor(r.Command.ID, stillToRemember(r).Milliseconds()):
			r.MarkDuplicate() // its dedup entry ends too soon. Begin proposes a refusal, which extends it: another node may still receive a copy
		default:
			outputs = append(outputs, output{index, func() { l.answerLocked(r, index, &result) }})
		}
	}
	slices.SortStableFunc(outputs, func(a, b output) int { return cmp.Compare(a.index, b.index) })
	for _, o := range outputs {
		o.send()
	}
	l.pending.ForgetOutcomes()
}

// stillToRemember returns for how long the dedup entry of a held request must still exist: for its lifetime, counted from its last arrival. For a
// peer's request the last arrival is not known here, so its full lifetime counts.
func stillToRemember(r *pending.Request) time.Duration {
	lifetime := time.Duration(r.Command.Lifetime) * time.Millisecond
	if r.FromPeer {
		return lifetime
	}
	return lifetime - time.Since(r.LastArrival())
}

// stopServing switches the node to the role of one that does not lead, and gives that role the requests whose replies the broker has not acknowledged.
// It returns toRelease.
func (l *Leader) stopServing() (toRelease []fsm.RequestID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.role, l.pending.NeedsLookup = l.ingest.nonLeader(l.Requests), true
	toRelease, l.toRelease = l.toRelease, nil
	for _, r := range slices.Collect(l.pending.All()) {
		if r.State() == pending.StateDelivering {
			l.requeueMaybeAppliedLocked(r)
		} else if r.State().IsHeld() {
			l.role.requeued(r)
		}
	}
	l.pending.EndWrites()
	l.pending.FindOutcomes()
	l.pending.AwaitReports()
	l.room.Broadcast()
	return toRelease
}

// dropUnsettledLocked removes from byNode what this node's own session may still deliver. Requests with an outcome stay in any
// case, so that their clients are answered now: when the session delivers them, this node may have lost the leadership.
func (l *Leader) dropUnsettledLocked(m *fsm.Machine, byNode map[string][]*pending.Request) {
	barrier, lostBefore := l.barrier.Reached(), l.deliveringSince()
	if l.fullAt.After(lostBefore) {
		lostBefore = l.fullAt // requests dropped for lack of room are lost, too
	}
	if barrier.IsZero() {
		lostBefore = time.Now() // no probe of this process has returned: every earlier request may be lost
	}
	markDuplicates(byNode)
	for node, requests := range byNode {
		byNode[node] = l.pending.Settled(requests, barrier, lostBefore, executableIn(m), hasOutcomeIn(m))
	}
}

// executableIn returns a function that reports whether a request is open and has no outcome in the state.
func executableIn(m *fsm.Machine) func(*pending.Request) bool {
	hasOutcome := hasOutcomeIn(m)
	return func(r *pending.Request) bool { return r.IsOpen() && !hasOutcome(r) }
}

// hasOutcomeIn returns a function that reports whether the dedup table of a state has the outcome of a request.
func hasOutcomeIn(m *fsm.Machine) func(*pending.Request) bool {
	return func(r *pending.Request) bool {
		_, _, known := m.Remembered(r.Command.ID)
		return known
	}
}

// markDuplicates marks all peers' copies of a request as duplicates if any peer knows that the request already has an outcome.
func markDuplicates(byNode map[string][]*pending.Request) {
	duplicates := make(map[fsm.RequestID]bool)
	for _, requests := range byNode {
		for _, r := range requests {
			if r.IsDuplicate() {
				duplicates[r.Command.ID] = true
			}
		}
	}
	for _, requests := range byNode {
		for _, r := range requests {
			if duplicates[r.Command.ID] {
				r.MarkDuplicate()
			}
		}
	}
}

// mustMerge reports whether a request that a peer holds is to be executed, or to be refused in the log. Other expired requests
// are ignored: the dedup table may have forgotten their outcomes.
func mustMerge(r *pending.Request, now time.Time) bool {
	return !r.Expired(now) || r.IsOpen() && r.IsDeduplicated()
}

// extendExpiredCopies makes each expired copy absorb a copy on another node that has not expired, so that the request can be executed at the expired
// copy's position.
func extendExpiredCopies(byNode map[string][]*pending.Request, now time.Time) {
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

// mergePeerRequestsLocked adds the requests that peers hold and this node does not, in each peer's order for each client. It
// returns them in their order. Expired writes are among them: an expired write fixes the position of a live copy on another
// node. If all copies have expired, the write is refused in the log, so that no copy is executed behind later requests of the
// same client.
func (l *Leader) mergePeerRequestsLocked(m *fsm.Machine, byNode map[string][]*pending.Request) (added []*pending.Request) {
	now := time.Now()
	reported := make(map[fsm.RequestID]bool) // a peer that no longer holds a request takes a second report as a hint about a copy that has not arrived yet
	report := func(id fsm.RequestID) bool {
		if !reported[id] {
			reported[id] = true
			l.reportLocked(id)
		}
		return true
	}
	markDuplicates(byNode)
	extendExpiredCopies(byNode, now)
	var elsewhere [][]*pending.Request
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		elsewhere = append(elsewhere, slices.DeleteFunc(slices.Clone(byNode[node]), func(r *pending.Request) bool {
			if here := l.pending.Get(r.Command.ID); here != nil {
				if r.IsDuplicate() && here.State().IsHeld() {
					here.MarkDuplicate()
					here.CopyArrived(now) // the peer's may be a later copy
				}
				return false
			}
			return l.omitsLocked(m, r, now, report)
		}))
	}
	added, full := l.pending.Merge(elsewhere, executableIn(m))
	for _, r := range added {
		if r.AwaitsReport() {
			l.earlier[r.Command.ID] = false
		}
	}
	l.metrics.HeldDropped.WithLabelValues("full").Add(float64(full))
	l.metrics.Held.Set(float64(l.pending.Len()))
	if len(added) == 0 {
		return nil
	}
	l.metrics.TakenUp.Add(float64(len(added)))
	l.log.Info("merged requests that only peers held", "requests", len(added))
	slices.SortFunc(added, func(a, b *pending.Request) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return added
}

// omitsLocked reports whether this node does not take a request from a peer: nobody waits for it, it is answered, or this node
// answers it already. If it is answered, the peer need not hold it any longer, and omitsLocked calls report, which returns true.
func (l *Leader) omitsLocked(m *fsm.Machine, r *pending.Request, now time.Time, report func(fsm.RequestID) bool) bool {
	if !mustMerge(r, now) {
		return true
	}
	_, index, known := m.Remembered(r.Command.ID)
	if !known && (r.IsDuplicate() && !r.Read || l.refusedWithoutReplyLocked(r)) { // its outcome is forgotten, or the peer has not applied the refusal yet
		return report(r.Command.ID)
	}
	answered, answering := l.earlier[r.Command.ID]
	if r.AwaitsReport() {
		if answered {
			return report(r.Command.ID)
		}
		if answering { // by this leader's own copy
			return true
		}
		r.MarkDuplicate() // this leader lacked the request when it began, so the watermark may have passed its outcome without a reply
		return false
	}
	// An earlier leader may have proposed a refusal to retrieve the outcome. The peer then has the greater index of that entry. The reply counts as
	// published only if the watermark has passed both.
	published := m.Status().Published
	if known && !r.IsDuplicate() && (answered || index <= published && r.Outcome() <= published) {
		return report(r.Command.ID) // the peer has only not learnt of it yet
	}
	return false
}
