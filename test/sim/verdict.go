package sim

import (
	"slices"
	"time"

	"holdfast/test/history"
)

// check compares what the clients saw with the promises of docs/guarantees.md. It runs outside of
// virtual time.
func (s *simulation) check() {
	conditions := history.Conditions{
		ClocksWild:   s.tunables.clockWild,
		QuotaTight:   func(*history.Op) bool { return s.effects[string(diskLow)] > 0 },
		WatchesTight: s.tunables.offer.Limits.Watches < 100,
		Restricted:   "guest", NotificationsComplete: s.allNotificationsArrived(),
		WatchTTL: time.Duration(s.tunables.offer.WatchTTL) * time.Millisecond,
		Patience: 10 * time.Second,
	}
	if s.roomForAll() {
		conditions.ArrivedInOrder = s.arrivedInOrder
	}
	s.addGaps()
	s.checkDelivered()
	s.checkExecutions()
	s.findings = history.Check(s.load.History, conditions)
	for _, v := range s.findings.Violations {
		s.violation(v.Check, "%s", v.Text)
	}
}

// addGaps notes that the clients whose sessions the broker has forgotten may have missed
// notifications from then on. They notice it themselves when they are back, which may be long
// after.
func (s *simulation) addGaps() {
	for _, loss := range s.broker.lost() {
		s.load.History.AddGap(loss.client, loss.at.Sub(s.trace.start))
	}
}

// allNotificationsArrived reports whether no notification was given up.
func (s *simulation) allNotificationsArrived() bool {
	return s.tunables.complete &&
		s.metric("holdfast_publish_abandoned_total", "notification") == 0 &&
		s.metric("holdfast_notifications_total", "given_up") == 0 &&
		s.metric("holdfast_notifications_total", "expired") == 0
}

// roomForAll reports whether the dedup table had room to remember each refusal. Without room a
// request that was refused may be executed later, and break the order of its client.
func (s *simulation) roomForAll() bool {
	return s.tunables.offer.Limits.DedupEntries >= ampleDedupEntries
}

// arrivedInOrder reports whether two requests surely arrived at the leaders in the order in which
// they were sent: the cluster's session received both, and the broker did not lose it.
func (s *simulation) arrivedInOrder(a, b *history.Op) bool {
	received := func(o *history.Op) bool {
		return slices.Contains(o.Sendings[0].Receivers,
			requestSession)
	}
	return received(a) && received(b) && !s.lost(a.Call, max(a.Replied, b.Replied))
}

// lost reports whether the broker forgot the cluster's session between from and to.
func (s *simulation) lost(from, to time.Duration) bool {
	return s.broker.lostBetween(requestSession, s.trace.start.Add(from), s.trace.start.Add(to))
}
