package sim

import (
	"slices"
	"strings"
	"time"

	"holdfast/test/history"
)

// check holds what the clients saw against the promises. It runs outside of virtual time.
func (s *simulation) check() {
	conditions := history.Conditions{
		ClocksWild: s.tunables.clockWild, QuotaTight: func(*history.Op) bool { return s.effects[string(diskLow)] > 0 }, WatchesTight: s.tunables.offer.Limits.Watches < 100,
		Restricted: "guest", NotesComplete: s.notesComplete(), WatchTTL: time.Duration(s.tunables.offer.WatchTTL) * time.Millisecond,
		Patience: 10 * time.Second,
	}
	if s.roomForAll() {
		conditions.SameWay = s.sameWay
	}
	s.checkDelivered()
	s.findings = history.Check(s.load.History, conditions)
	for _, v := range s.findings.Violations {
		s.violation(v.Check, "%s", v.Text)
	}
}

// notesComplete reports whether no notification was given up.
func (s *simulation) notesComplete() bool {
	return s.tunables.complete && s.metric("holdfast_publish_abandoned_total", "notification") == 0 &&
		s.metric("holdfast_notifications_total", "given_up") == 0 && s.metric("holdfast_notifications_total", "expired") == 0
}

// roomForAll reports whether every node had room to hold each request, and the state to remember each that it refused: one that
// passes the leader by is executed later, and comes out of its client's order.
func (s *simulation) roomForAll() bool {
	return s.metric("holdfast_held_requests_dropped_total", "full") == 0 && s.metric("holdfast_requests_total", "dropped") == 0
}

// sameWay reports whether two requests reached the same nodes, and none of these lost what it had.
func (s *simulation) sameWay(a, b *history.Op) bool {
	first, second := nodeSessions(a.Copies[0].Receivers), nodeSessions(b.Copies[0].Receivers)
	from, to := s.trace.start.Add(a.Call), s.trace.start.Add(max(a.Replied, b.Replied))
	return slices.Equal(first, second) && !s.broker.lossesBetween(first, from, to)
}

// nodeSessions returns those of the nodes, or the one that follows the leader, among the receivers of a request.
func nodeSessions(receivers []string) (sessions []string) {
	for _, id := range receivers {
		if strings.HasSuffix(id, "-in") || strings.HasSuffix(id, "-ingest") {
			sessions = append(sessions, id)
		}
	}
	slices.Sort(sessions)
	return sessions
}
