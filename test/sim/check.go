package sim

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast/hlc"
	"holdfast/resp"
)

// check holds what the clients saw against the promises. It runs outside of virtual time.
func (s *simulation) check() {
	for _, text := range s.history.odd {
		s.violation("odd reply", "%s", text)
	}
	s.checkErrors()
	s.checkRepeats()
	s.checkVersions()
	s.checkOrder()
	s.checkFencing()
	s.checkLocks()
	s.checkExpiry()
	s.checkLost()
	s.checkNotes()
	s.checkLinearizable()
}

// family returns what a key is used for.
func family(key string) string {
	name, _, _ := strings.Cut(key, "/")
	return name
}

// checkErrors: no error but those that the run can explain, and no effect of what was refused.
func (s *simulation) checkErrors() {
	refused := make(map[string]*op)
	for _, o := range s.history.ops {
		if !o.known || o.reply.Kind != resp.ReplyError {
			continue
		}
		if o.verb == opSet {
			refused[o.value] = o
		}
		explained := false
		switch o.reply.Error {
		case errorOverloaded:
			explained = true
		case errorTokenLower, errorTokenRequired:
			explained = family(o.key) == "protected"
		case errorQuota:
			explained = o.verb == opNotify && s.tunables.offer.Limits.Watches < 100 || s.effects[string(diskLow)] > 0
		case errorNotAuthorized:
			explained = strings.HasPrefix(o.client, "guest")
		case errorTimestamp, errorToken:
			explained = s.tunables.clockWild
		}
		if !explained {
			s.violation("odd reply", "%s", o)
		}
	}
	for _, o := range s.history.ops {
		if o.known && o.reply.Kind == resp.ReplyBulk {
			if r := refused[string(o.reply.Bulk)]; r != nil && r.value != r.client {
				s.violation("effect after an error", "%s was seen by %s", r, o)
			}
		}
	}
	for client, notes := range s.history.notes {
		for _, n := range notes {
			if r := refused[n.value]; r != nil && !n.deleted && r.value != r.client {
				s.violation("effect after an error", "%s was told to %s", r, client)
			}
		}
	}
}

// checkRepeats: whoever sends a write again gets the same reply.
func (s *simulation) checkRepeats() {
	for _, o := range s.history.ops {
		if o.verb == opGet || o.anonymous {
			continue
		}
		for _, again := range o.again {
			if again.payload != o.payload || again.version != o.version {
				s.violation("exactly once", "%s was answered %q %s as well", o, again.payload, again.version)
			}
		}
	}
}

// checkVersions: versions grow, and a value has one version.
func (s *simulation) checkVersions() {
	versions := make(map[string]hlc.Timestamp) // of values
	given := make(map[hlc.Timestamp]*op)
	var sets []*op
	for _, o := range s.history.ops {
		if o.verb != opSet || !o.applied() {
			continue
		}
		sets = append(sets, o)
		if other := given[o.version]; other != nil {
			s.violation("versions", "%s and %s have the same version", o, other)
		}
		given[o.version] = o
		if family(o.key) != "lock" {
			versions[o.value] = o.version
		}
	}
	byReply := slices.SortedFunc(slices.Values(sets), func(a, b *op) int { return cmp.Compare(a.replied, b.replied) })
	slices.SortFunc(sets, func(a, b *op) int { return cmp.Compare(a.call, b.call) })
	var latest *op
	for _, o := range sets {
		for len(byReply) > 0 && byReply[0].replied < o.call {
			if latest == nil || latest.version.Before(byReply[0].version) {
				latest = byReply[0]
			}
			byReply = byReply[1:]
		}
		if latest != nil && o.version.Before(latest.version) {
			s.violation("versions", "%s began after %s was answered, and has a lower version", o, latest)
		}
	}
	for _, o := range s.history.ops {
		if !o.known || o.verb != opGet || o.reply.Kind != resp.ReplyBulk || family(o.key) == "lock" || o.anonymous {
			continue
		}
		if version, known := versions[string(o.reply.Bulk)]; known && family(o.key) != "anonymous" && version != o.version {
			s.violation("versions", "%s shows another version than the SET got: %s", o, version)
		}
	}
}

// nodeSessions returns those of the nodes among the receivers of a request.
func nodeSessions(receivers []string) (sessions []string) {
	for _, id := range receivers {
		if strings.HasSuffix(id, "-in") {
			sessions = append(sessions, id)
		}
	}
	slices.Sort(sessions)
	return sessions
}

// checkOrder: what one client sends without waiting takes effect in that order, and its reads see its earlier writes. Requests
// that did not reach the same nodes are left out, and so are runs in which a node had no room to hold one, or the
// state no room to remember that it was refused: a request that passes the leader by is executed later.
func (s *simulation) checkOrder() {
	if s.metric("holdfast_held_requests_dropped_total", "full") > 0 || s.metric("holdfast_requests_total", "dropped") > 0 {
		return
	}
	s.ordered = true
	type line struct{ client, key string }
	sent := make(map[line][]*op)
	for _, o := range s.history.ops {
		if f := family(o.key); f == "p" || f == "flood" {
			sent[line{o.client, o.key}] = append(sent[line{o.client, o.key}], o)
		}
	}
	for _, ops := range sent {
		slices.SortFunc(ops, func(a, b *op) int { return cmp.Compare(a.sequence, b.sequence) })
		var latest *op
		for _, o := range ops {
			if !o.known || !o.singly() || o.reply.Kind == resp.ReplyError || o.verb == opNotify || o.verb == opStop {
				continue
			}
			if latest != nil && o.version.Before(latest.version) && s.sameWay(latest, o) {
				s.violation("order of a client", "%s was sent after %s, and came before it", o, latest)
			}
			if o.verb == opSet && o.applied() && (latest == nil || latest.version.Before(o.version)) {
				latest = o
			}
		}
	}
}

// sameWay reports whether two requests reached the same nodes, and none of these lost what it had.
func (s *simulation) sameWay(a, b *op) bool {
	first, second := nodeSessions(a.copies[0].receivers), nodeSessions(b.copies[0].receivers)
	from, to := s.trace.start.Add(a.call), s.trace.start.Add(max(a.replied, b.replied))
	return slices.Equal(first, second) && !s.broker.lossesBetween(first, from, to)
}

// checkFencing: no write with an older token after one with a newer.
func (s *simulation) checkFencing() {
	for key, ops := range s.history.byKey() {
		if family(key) != "protected" {
			continue
		}
		ops = slices.DeleteFunc(slices.Clone(ops), func(o *op) bool { return o.verb != opSet || !o.applied() })
		slices.SortFunc(ops, func(a, b *op) int { return a.version.Compare(b.version) })
		for i := 1; i < len(ops); i++ {
			if ops[i].token.Before(ops[i-1].token) {
				s.violation("fencing", "%s was let in after %s", ops[i], ops[i-1])
			}
		}
	}
}

// checkLocks: while somebody surely holds a lock nobody else gets it, and tokens grow.
func (s *simulation) checkLocks() {
	for key, ops := range s.history.byKey() {
		if family(key) != "lock" {
			continue
		}
		acquired := slices.DeleteFunc(slices.Clone(ops), func(o *op) bool { return o.verb != opSet || !o.applied() })
		slices.SortFunc(acquired, func(a, b *op) int { return a.version.Compare(b.version) })
		for i, o := range acquired {
			released := o.call + o.ttl
			for _, d := range ops {
				if d.verb == opVDel && d.client == o.client && (!d.known || d.replied >= o.call) {
					released = min(released, max(d.call, o.call))
				}
			}
			for _, other := range acquired[i+1:] {
				if other.client != o.client && other.replied < released {
					s.violation("lock lost early", "%s got the lock of %s", other, o)
				}
			}
		}
	}
}

// checkExpiry: a key is there until its time is over, and gone at the end.
func (s *simulation) checkExpiry() {
	for key, ops := range s.history.byKey() {
		if family(key) != "brief" {
			continue
		}
		var set *op
		for _, o := range ops {
			switch {
			case o.verb == opSet:
				set = o
			case set == nil || !set.applied() || !o.known || o.call < set.replied:
			case o.reply.Kind == resp.ReplyNull && o.replied < set.call+set.ttl:
				s.violation("expired early", "%s although %s", o, set)
			}
		}
	}
	for _, r := range s.finalFrom {
		if family(r.op.key) == "brief" && r.op.known && r.op.reply.Kind == resp.ReplyBulk {
			s.violation("never expired", "%s", r.op)
		}
	}
}

// checkLost: of keys without a model of their own, too, what is read at the end is no older than what was acknowledged.
func (s *simulation) checkLost() {
	acknowledged := make(map[string]*op)
	for _, o := range s.history.ops {
		if o.verb == opSet && o.applied() && (acknowledged[o.key] == nil || acknowledged[o.key].version.Before(o.version)) {
			acknowledged[o.key] = o
		}
	}
	for _, r := range s.finalFrom {
		o, last := r.op, acknowledged[r.op.key]
		if !o.known || last == nil || family(o.key) != "flood" && family(o.key) != "watched" {
			continue
		}
		lost := o.reply.Kind == resp.ReplyBulk && o.version.Before(last.version) || o.reply.Kind == resp.ReplyNull && family(o.key) == "flood"
		if lost {
			s.violation("acknowledged write lost", "%s after %s", o, last)
		}
	}
}

// checkLinearizable: there is one order of all operations on a key that explains every reply.
func (s *simulation) checkLinearizable() {
	const limit = 10 * time.Second
	keys := s.history.byKey()
	for _, key := range slices.Sorted(func(yield func(string) bool) {
		for key := range keys {
			if !yield(key) {
				return
			}
		}
	}) {
		switch family(key) {
		case "r", "p", "protected":
		default:
			continue
		}
		ops := slices.DeleteFunc(slices.Clone(keys[key]), func(o *op) bool {
			return o.verb == opNotify || o.verb == opStop || o.anonymous && o.verb != opGet
		})
		result, info := linearizable(ops, limit)
		switch result {
		case porcupine.Illegal:
			var lines []string
			for _, o := range ops {
				lines = append(lines, o.String())
			}
			s.violation("linearizability", "no order of the operations on %s explains them:\n    %s", key, strings.Join(lines, "\n    "))
			if s.picture == nil {
				s.picture = &info
			}
		case porcupine.Unknown:
			s.undecided++
		}
	}
}
