package role

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// BeginLeading makes a new Leader the node's role. The leader merges the peers' requests into the buffer. It queues the unpublished notifications and the
// replies of held requests with an outcome, by log index. Then it executes or rejects the other held requests, in the buffer's order. sender takes all
// outputs.
func (d *Dispatcher) BeginLeading(l *Leader, held PeerRequests, sender Sender) {
	d.store.View(func(m *fsm.Machine) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.role = l
		l.beginLocked(m, held, sender)
	})
	l.serve()
}

// Lead has the leader report to the peers which requests are answered, and take up the requests that this node's own session missed, until the context
// ends. Then it gives the node a role that does not lead. BeginLeading must have returned.
func (d *Dispatcher) Lead(ctx context.Context, l *Leader) {
	var working sync.WaitGroup
	working.Go(func() { l.reportAnswered(ctx) })
	working.Go(func() { l.sweep(ctx) })
	working.Go(func() { every(ctx, watchTestInterval, l.testSomeWatches) })
	<-ctx.Done()
	l.sendReport(context.WithoutCancel(ctx), d.endLeadership(l)) // else the next leader answers them again
	d.recheckPending()
	working.Wait()
}

// endLeadership gives the node a role that does not lead. It returns the requests that are not reported yet (toRelease).
func (d *Dispatcher) endLeadership(l *Leader) (toRelease []fsm.RequestID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.role = nonLeader(d.tracker)
	return l.stopLocked(d.role)
}

// beginLocked takes up what earlier leaders left. It runs in View, so the state does not change.
func (l *Leader) beginLocked(m *fsm.Machine, held PeerRequests, sender Sender) {
	l.sender, l.leading = sender, true
	settings, _ := m.Settings()
	l.known.adopt(&settings)
	l.inherited = make(map[fsm.RequestID]bool)
	l.known.version = max(l.known.version, m.Status().Version)
	l.pending.Hints().ForgetArrivals()
	l.pending.BeginMerging()
	if !l.barrier.HasReached(held.received) {
		l.dropUnsettledLocked(m, held.byNode)
	}
	l.mergePeerRequestsLocked(m, held.byNode)
	l.republishLocked(m)
}

// serve executes or rejects the held requests. From then on, new ones go to the store on arrival.
func (l *Leader) serve() {
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
		result, index, ok := m.OutcomeFor(&r.Command)
		if ok {
			l.inherited[r.Command.ID] = false
		}
		switch {
		case !ok:
		case !m.RemembersFor(r.Command.ID, stillToRemember(r).Milliseconds()):
			r.MarkDuplicate() // its dedup entry ends too soon. serve proposes a refusal, which extends it: another node may still receive a copy
		default:
			outputs = append(outputs, output{index, func() { l.answerLocked(r, index, &result) }})
		}
	}
	slices.SortStableFunc(outputs, func(a, b output) int { return cmp.Compare(a.index, b.index) })
	for _, o := range outputs {
		o.send()
	}
	l.passUnsentLocked()
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

// stopLocked ends the leadership. The role next gets the requests whose replies the broker has not acknowledged, and those that are held. The requests that
// the store has follow later, by Failed, Applied or ReadDone. stopLocked returns the requests that are not reported yet.
func (l *Leader) stopLocked(next role) (toRelease []fsm.RequestID) {
	l.leading, l.unchecked = false, true
	toRelease, l.toRelease = l.toRelease, nil
	for _, r := range slices.Collect(l.pending.All()) {
		if r.State() == pending.StateDelivering {
			requeueMaybeAppliedLocked(l.tracker, next, r)
		} else if r.State().IsHeld() {
			next.requeuedLocked(r)
		}
	}
	l.pending.EndAllProposals()
	l.pending.FindOutcomes()
	l.pending.AwaitReports()
	l.room.Broadcast()
	return toRelease
}
