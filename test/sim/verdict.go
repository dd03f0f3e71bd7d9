package sim

import (
	"slices"
	"strings"
	"time"

	"holdfast/test/history"
)

// check compares what the clients saw with the promises of docs/guarantees.md. It runs outside of virtual time.
func (s *simulation) check() {
	conditions := history.Conditions{
		ClocksWild: s.tunables.clockWild, QuotaTight: func(*history.Op) bool { return s.effects[string(diskLow)] > 0 }, WatchesTight: s.tunables.offer.Limits.Watches < 100,
		Restricted: "guest", NotificationsComplete: s.allNotificationsArrived(), WatchTTL: time.Duration(s.tunables.offer.WatchTTL) * time.Millisecond,
		Patience: 10 * time.Second,
	}
	if s.roomForAll() {
		conditions.ArrivedInOrder = s.arrivedInOrder
	}
	s.checkDelivered()
	s.checkExecutions()
	s.findings = history.Check(s.load.History, conditions)
	for _, v := range s.findings.Violations {
		s.violation(v.Check, "%s", v.Text)
	}
}

// allNotificationsArrived reports whether no notification was given up.
func (s *simulation) allNotificationsArrived() bool {
	return s.tunables.complete && s.metric("holdfast_publish_abandoned_total", "notification") == 0 &&
		s.metric("holdfast_notifications_total", "given_up") == 0 && s.metric("holdfast_notifications_total", "expired") == 0
}

// roomForAll reports whether every node had room to hold each request, and the dedup table had room to remember each refusal. Without room a request
// may bypass the leader, be executed later, and break the order of its client.
func (s *simulation) roomForAll() bool {
	return s.metric("holdfast_held_requests_dropped_total", "full") == 0 && s.tunables.offer.Limits.DedupEntries >= ampleDedupEntries
}

// arrivedInOrder reports whether two requests surely arrived at the leader in the order in which they were sent. There are two cases. In both, the node
// that executed the later one did not end: after a restart it learns from others what it held before, perhaps too late (docs/guarantees.md). Which
// node executed a read is not recorded. So if the later request is a read, only the first case applies, without this condition.
//   - They reached the same nodes' sessions, the broker lost none of these, and only a minority of the nodes ended: a node that ends loses what it held.
//   - They reached the session of the node that executed the later one, the broker did not lose it, and the earlier one did not expire in a queue.
//     What the other nodes received does not matter.
func (s *simulation) arrivedInOrder(a, b *history.Op) bool {
	first, second := nodeSessions(a.Sendings[0].Receivers), nodeSessions(b.Sendings[0].Receivers)
	replied := max(a.Replied, b.Replied)
	at, by, executed := s.executions.effect(b)
	executorEnded := executed && by != nil && s.deliveries.endedBetween(by.name, a.Call, at)
	if slices.Equal(first, second) && !s.lost(first, a.Call, replied) && s.deliveries.endedHosts(a.Call, replied) <= (len(s.hosts)-1)/2 && !executorEnded {
		return true
	}
	inTime := at-a.Call < time.Duration(s.tunables.expiry)*time.Second/2 // so that it did not expire in a queue
	if !executed || !inTime || by == nil || executorEnded {
		return false
	}
	session := ingestSession(by)
	return slices.Contains(first, session) && slices.Contains(second, session) && !s.lost([]string{session}, a.Call, at)
}

// lost reports whether the broker forgot one of the sessions between from and to.
func (s *simulation) lost(sessions []string, from, to time.Duration) bool {
	return s.broker.lossesBetween(sessions, s.trace.start.Add(from), s.trace.start.Add(to))
}

// nodeSessions returns the ingest sessions among the receivers of a request: those of the nodes, or the one that the leader has.
func nodeSessions(receivers []string) (sessions []string) {
	for _, id := range receivers {
		if strings.HasSuffix(id, "-in") || strings.HasSuffix(id, "-ingest") {
			sessions = append(sessions, id)
		}
	}
	slices.Sort(sessions)
	return sessions
}
