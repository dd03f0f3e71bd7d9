package sim

import (
	"slices"
	"time"

	"holdfast/hlc"
	"holdfast/resp"
)

// change is a notification without the time at which it came.
type change struct {
	key     string
	version hlc.Timestamp
	deleted bool
}

func (n *note) change() change { return change{n.key, n.version, n.deleted} }

// before reports the order of two changes of one key: a deletion has the version of what it deletes.
func (c change) before(other change) bool {
	if order := c.version.Compare(other.version); order != 0 {
		return order < 0
	}
	return !c.deleted && other.deleted
}

// checkNotes: notifications come in order, complete, and again only from some point on.
func (s *simulation) checkNotes() {
	complete := s.tunables.complete && s.metric("holdfast_publish_abandoned_total", "notification") == 0 &&
		s.metric("holdfast_notifications_total", "given_up") == 0 && s.metric("holdfast_notifications_total", "expired") == 0
	s.complete = complete
	for client, notes := range s.history.notes {
		s.checkSuffixes(client, notes, complete)
		if complete {
			s.checkNotesBeforeReplies(client, notes)
		}
	}
	if complete {
		s.checkComplete()
	}
}

// checkSuffixes: per key, what is new comes in order. What is repeated is repeated from some point to the end.
func (s *simulation) checkSuffixes(client string, notes []note, complete bool) {
	var seen []change // as they came first
	position := make(map[change]int)
	latest, known := make(map[string]change), make(map[change]bool)
	next := 0                // where in seen the next repetition has to be; len(seen) is at the end
	var newest hlc.Timestamp // of all that was set
	for i := range notes {
		c := notes[i].change()
		if i > 0 && s.history.gapBetween(client, notes[i-1].at, notes[i].at) { // it may have missed some
			seen, position, next = nil, make(map[change]int), 0
		}
		at, repeated := position[c]
		switch {
		case repeated && at > next && complete:
			s.violation("notifications", "%s: %+v at %v is repeated without what came before it", client, c, notes[i].at)
			return
		case repeated:
			next = at + 1
			s.repeated++
			continue
		case complete && next < len(seen):
			s.violation("notifications", "%s: %+v at %v is new, in the middle of a repetition", client, c, notes[i].at)
			return
		}
		if last, ok := latest[c.key]; ok && c.before(last) && !known[c] {
			s.violation("notifications", "%s: %+v at %v came after %+v", client, c, notes[i].at, last)
			return
		}
		if !c.deleted && c.version.Before(newest) && !known[c] {
			s.violation("notifications", "%s: %+v at %v came after a later change of another key, %s", client, c, notes[i].at, newest)
			return
		}
		if !c.deleted && newest.Before(c.version) {
			newest = c.version
		}
		known[c] = true
		latest[c.key] = c
		position[c] = len(seen)
		seen = append(seen, c)
		next = len(seen)
	}
}

// coverage is a time in which a client surely watches a key.
type coverage struct{ from, to time.Duration }

// settling is how long a notification may be on its way after its change was acknowledged.
const settling = 15 * time.Second

// covered returns when a client surely watched a key, by its own operations on it.
func (s *simulation) covered(client string, ops []*op) (covered []coverage) {
	for _, o := range ops {
		if o.client != client || o.verb != opNotify || !o.known || o.reply.Kind != resp.ReplyOK {
			continue
		}
		c := coverage{o.replied, 1 << 62}
		if ttl := s.tunables.offer.WatchTTL; ttl > 0 {
			c.to = o.call + time.Duration(ttl)*time.Millisecond
		}
		for _, stop := range ops {
			if stop.client == client && stop.verb == opStop && (!stop.known || stop.replied >= o.call) {
				c.to = min(c.to, max(stop.call, c.from))
			}
		}
		for _, g := range s.history.gaps {
			if g.client == client && g.at >= o.call {
				c.to = min(c.to, g.at-settling)
			}
		}
		if c.to > c.from {
			covered = append(covered, c)
		}
	}
	return covered
}

func within(covered []coverage, o *op) bool {
	return slices.ContainsFunc(covered, func(c coverage) bool { return o.call > c.from && o.replied < c.to })
}

// checkComplete: whoever watched was told of every change that was acknowledged.
func (s *simulation) checkComplete() {
	for key, ops := range s.history.byKey() {
		watchers := make(map[string]bool)
		for _, o := range ops {
			if o.verb == opNotify {
				watchers[o.client] = true
			}
		}
		for client := range watchers {
			told := make(map[change]bool)
			for i := range s.history.notes[client] {
				told[s.history.notes[client][i].change()] = true
			}
			covered := s.covered(client, ops)
			for _, o := range ops {
				if !o.applied() || !within(covered, o) {
					continue
				}
				s.expected++
				if c := (change{key, o.version, o.verb != opSet}); !told[c] {
					s.violation("notifications", "%s was not told of %s", client, o)
				}
			}
		}
	}
}

// checkNotesBeforeReplies: a client that watches what it changes hears of the change before its reply.
func (s *simulation) checkNotesBeforeReplies(client string, notes []note) {
	first := make(map[change]int)
	for i := range notes {
		if _, known := first[notes[i].change()]; !known {
			first[notes[i].change()] = i
		}
	}
	byKey := make(map[string][]*op)
	for _, o := range s.history.ops {
		if o.client == client {
			byKey[o.key] = append(byKey[o.key], o)
		}
	}
	for key, ops := range byKey {
		covered := s.covered(client, ops)
		for _, o := range ops {
			if !o.applied() || !within(covered, o) {
				continue
			}
			if at, told := first[change{key, o.version, o.verb != opSet}]; told && at >= o.notesAt {
				s.violation("notifications", "%s was answered before it was told of %s", client, o)
			}
		}
	}
}
