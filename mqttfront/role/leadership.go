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

// Begin makes this Leader the node's role. It merges the peers' requests into the buffer. It queues the unpublished notifications and the replies of held
// requests with an outcome, by log index. Then it executes or rejects the other held requests, in the buffer's order. sender takes all outputs.
func (l *Leader) Begin(held PeerRequests, sender Sender) {
	l.sender = sender
	l.store.View(func(m *fsm.Machine) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.becomeLocked(l)
		l.leading = true
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
			l.inherited[r.Command.ID] = false
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

// Run reports to the peers which requests are answered, and takes up the requests that this node's own session missed, until the context ends. Then it
// gives the node a role that does not lead.
func (l *Leader) Run(ctx context.Context) {
	var working sync.WaitGroup
	working.Go(func() { l.reportAnswered(ctx) })
	working.Go(func() { l.sweep(ctx) })
	<-ctx.Done()
	l.sendReport(context.WithoutCancel(ctx), l.stopServing()) // else the next leader answers them again
	l.recheckPending()
	working.Wait()
}

// stopServing gives the node a role that does not lead. That role gets the requests whose replies the broker has not acknowledged, and those that are
// held. The requests that the store has follow later, by Failed, Applied or ReadDone. stopServing returns the requests that are not reported yet
// (toRelease).
func (l *Leader) stopServing() (toRelease []fsm.RequestID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.resignLocked()
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
