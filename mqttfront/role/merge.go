package role

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// dropUnsettledLocked removes from byNode what this node's own session may still deliver. Requests with an outcome stay in any
// case, so that their clients are answered now: when the session delivers them, this node may have lost the leadership.
func (l *Leader) dropUnsettledLocked(m *fsm.Machine, byNode map[string][]*pending.Request) {
	barrier, lostBefore := l.barrier.Position(), l.deliveringSince()
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

// mayMerge reports whether a request that a peer holds may be executed, or has to be refused in the log. Other expired requests
// are ignored: the dedup table may have forgotten their outcomes.
func mayMerge(r *pending.Request, now time.Time) bool {
	return !r.Expired(now) || r.IsOpen() && r.UsesDedup()
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
	reported := make(map[fsm.RequestID]bool) // ids are reported once: a peer that has dropped a request takes a second report as a hint about a copy still to come
	report := func(id fsm.RequestID) bool {
		if !reported[id] {
			reported[id] = true
			l.reportLocked(id)
		}
		return true
	}
	markDuplicates(byNode)
	extendExpiredCopies(byNode, now)
	elsewhere := make(map[string][]*pending.Request, len(byNode))
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		elsewhere[node] = slices.DeleteFunc(slices.Clone(byNode[node]), func(r *pending.Request) bool {
			if here := l.pending.Get(r.Command.ID); here != nil {
				if r.IsDuplicate() && here.State().IsHeld() {
					here.MarkDuplicate()
					here.CopyArrived(now) // the peer's may be a later copy
				}
				return false
			}
			return l.resolvePeerRequestLocked(m, r, now, report)
		})
	}
	added, full := l.pending.Merge(elsewhere, executableIn(m))
	for _, r := range added {
		if r.AwaitsReport() {
			l.inherited[r.Command.ID] = false
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

// resolvePeerRequestLocked reports whether this leader leaves out a request that a peer holds: no client waits for it, it is answered, or this
// leader answers it already. If the peer need not hold it any longer, resolvePeerRequestLocked calls report, which returns true. If the leader takes a
// request that awaits a report, resolvePeerRequestLocked marks it as a duplicate.
func (l *Leader) resolvePeerRequestLocked(m *fsm.Machine, r *pending.Request, now time.Time, report func(fsm.RequestID) bool) bool {
	if !mayMerge(r, now) {
		return true
	}
	_, index, known := m.Remembered(r.Command.ID)
	if !known && (r.IsDuplicate() && !r.Read || l.refusedWithoutReplyLocked(r)) { // its outcome is forgotten, or the peer has not applied the refusal yet
		return report(r.Command.ID)
	}
	answered, answering := l.inherited[r.Command.ID]
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
	// An earlier leader may have proposed a refusal to retrieve the outcome. The peer then has the index of that entry, which is above the one in the dedup
	// table. The reply counts as published only if the watermark has passed both.
	published := m.Status().Published
	if known && !r.IsDuplicate() && (answered || index <= published && r.OutcomeIndex() <= published) {
		return report(r.Command.ID) // the reply is published, and the peer has not learnt of that yet
	}
	return false
}
