package history

import (
	"maps"
	"slices"
	"time"

	"holdfast/hlc"
	"holdfast/resp"
)

// change identifies what a notification reports. It has neither the value nor the time at which the
// notification came.
type change struct {
	Key     string
	Version hlc.Timestamp
	Deleted bool
}

func (n *Notification) change() change { return change{n.Key, n.Version, n.Deleted} }

// before reports whether the change was made before another one of the same key. A deletion has the
// version of the value that it deletes.
func (c change) before(other change) bool {
	if order := c.Version.Compare(other.Version); order != 0 {
		return order < 0
	}
	return !c.Deleted && other.Deleted
}

// surelyBefore reports whether the change was certainly made before another one, of any key. The
// versions of SETs grow. A deletion has the version of the value that it deletes, which may be much
// older. So a deletion is never certainly before another change.
func (c change) surelyBefore(other change) bool {
	return !c.Deleted &&
		c.Version.Before(other.Version)
}

// checkNotes: a client gets notifications of watched keys only, in order, and all of them. When one
// is repeated, all that followed it are repeated, too.
func (j *judge) checkNotes() {
	complete := j.conditions.NotificationsComplete
	watching := make(map[string][]*Op)
	for _, o := range j.history.Ops {
		if o.Verb == Notify || o.Verb == Stop {
			watching[o.Client] = append(watching[o.Client], o)
		}
	}
	for client, notes := range j.history.Notifications {
		j.checkSuffixes(client, notes, complete)
		j.checkWatched(client, notes, watching[client])
		if complete {
			j.checkNotesBeforeReplies(client, notes, watching[client])
		}
	}
	if complete {
		j.checkComplete(watching)
		j.checkCompleteTransactions(watching)
	}
}

// resubscribeTime is how long after the start of a new session a client may still miss
// notifications, because it has to subscribe again. In that time earlier notifications may be
// repeated together with missed ones. So repetitions are not checked then.
const resubscribeTime = 5 * time.Second

// checkSuffixes: new changes of one key come in order, and new SETs come in the order of their
// versions across keys. A repetition is a suffix: it starts at some change that came before, and
// has all changes that came after that one. If notifications may have been dropped (complete is
// false), repetitions are not checked. Then a leader may also publish a notification that an
// earlier leader dropped.
func (j *judge) checkSuffixes(client string, notes []Notification, complete bool) {
	var seen []change // distinct changes in the order of their first arrival, since the last gap
	position := make(map[change]int)
	latest, known := make(map[string]change), make(map[change]bool)
	// index in seen of the change that a repetition has to go on with; len(seen) if none is under
	// way
	next := 0
	var newest hlc.Timestamp // newest version of the SETs that have come
	for i := range notes {
		c := notes[i].change()
		// the client may have missed some
		missed := i > 0 && j.history.gapBetween(client, notes[i-1].At-resubscribeTime, notes[i].At)
		if missed {
			seen, position, next = nil, make(map[change]int), 0
		}
		at, repeated := position[c]
		if !repeated && known[c] && len(seen) > 0 {
			// it came before the gap: a repetition that begins before seen
			if next = 0; c.surelyBefore(seen[0]) {
				j.findings.Repeated++
				continue
			}
			seen, position = nil, make(map[change]int)
		}
		switch {
		case repeated && at > next && complete:
			j.violation("notifications", "%s: %+v at %v is repeated without what came before it",
				client, c, notes[i].At)
			return
		case repeated:
			next = at + 1
			j.findings.Repeated++
			continue
		case complete && next < len(seen):
			j.violation("notifications", "%s: %+v at %v is new, in the middle of a repetition",
				client, c, notes[i].At)
			return
		}
		// If notifications may have been dropped or missed, this one may repeat one that the client
		// did not get. Then the repetition has to go on until it reaches what the client already
		// had.
		reachedLater := func(reached func(change) bool) bool {
			return (missed || !complete) &&
				slices.ContainsFunc(notes[i+1:],
					func(n Notification) bool { return reached(n.change()) })
		}
		if last, ok := latest[c.Key]; ok && c.before(last) && !known[c] &&
			!reachedLater(func(n change) bool { return n.Key == c.Key && !n.before(last) }) {
			j.violation("notifications", "%s: %+v at %v came after %+v", client, c, notes[i].At,
				last)
			return
		}
		if !c.Deleted && c.Version.Before(newest) && !known[c] &&
			!reachedLater(func(n change) bool { return !n.Deleted && !n.Version.Before(newest) }) {
			j.violation("notifications",
				"%s: %+v at %v came after a later change of another key, %s", client, c,
				notes[i].At, newest)
			return
		}
		if !c.Deleted && newest.Before(c.Version) {
			newest = c.Version
		}
		known[c] = true
		latest[c.Key] = c
		position[c] = len(seen)
		seen = append(seen, c)
		next = len(seen)
	}
}

// notificationAge is how old a notification may be when it comes. By default it expires after 30 s.
// A broker may count that in whole seconds, and from the moment at which it got the notification.
// The simulation draws 120 s or 2 s instead of 30 s (test/sim/tunables.go).
const notificationAge = 70 * time.Second

// checkWatched: each notification is of a key that the client watches, or that it stopped to watch
// less than notificationAge ago. watching are the client's KEYNOTIFY and STOP.
func (j *judge) checkWatched(client string, notes []Notification, watching []*Op) {
	for i := range notes {
		n := &notes[i]
		watched := func(o *Op) bool {
			return o.Verb == Notify && o.Call <= n.At && o.Watches(n.Key) &&
				!slices.ContainsFunc(watching, func(stop *Op) bool {
					return stop.Verb == Stop && stop.Key == o.Key && stop.Glob == o.Glob &&
						stop.Known && stop.Reply.Kind != resp.ReplyError &&
						o.Known && stop.Call > o.Replied && stop.Replied+notificationAge < n.At
				})
		}
		if !slices.ContainsFunc(watching, watched) {
			j.violation("notifications", "%s: %+v at %v is of a key that it does not watch", client,
				n.change(), n.At)
		}
	}
}

// coverage is a time in which a client surely watches a key.
type coverage struct{ from, to time.Duration }

// maxDeliveryDelay is how long after the acknowledgement of a change its notification may still be
// under way.
const maxDeliveryDelay = 15 * time.Second

// covered returns when a client surely watched a key, by itself or by a pattern. watching are the
// client's KEYNOTIFY and STOP.
func (j *judge) covered(client, key string, watching []*Op) (covered []coverage) {
	for _, o := range watching {
		if o.Verb != Notify || !o.Watches(key) || !o.Known || o.Reply.Kind != resp.ReplyOK {
			continue
		}
		c := coverage{o.Replied, 1 << 62}
		if ttl := j.conditions.WatchTTL; ttl > 0 {
			c.to = o.Call + ttl
		}
		for _, stop := range watching {
			if stop.Verb == Stop && stop.Key == o.Key && stop.Glob == o.Glob &&
				(!stop.Known || stop.Replied >= o.Call) {
				c.to = min(c.to, max(stop.Call, c.from))
			}
		}
		for _, g := range j.history.Gaps {
			if g.Client == client && g.At >= o.Call {
				c.to = min(c.to, g.At-maxDeliveryDelay)
			}
		}
		if c.to > c.from {
			covered = append(covered, c)
		}
	}
	return covered
}

// within reports whether an operation was called and answered while its key was surely watched.
func within(covered []coverage, o *Op) bool {
	return slices.ContainsFunc(covered,
		func(c coverage) bool { return o.Call > c.from && o.Replied < c.to })
}

// checkComplete: each watcher got a notification of every acknowledged change. watching are the
// KEYNOTIFY and STOP of each client.
func (j *judge) checkComplete(watching map[string][]*Op) {
	keys := j.history.byKey()
	order := slices.Sorted(maps.Keys(keys))
	for _, client := range slices.Sorted(maps.Keys(watching)) {
		watching := watching[client]
		told := make(map[change]bool)
		for i := range j.history.Notifications[client] {
			told[j.history.Notifications[client][i].change()] = true
		}
		for _, key := range order {
			covered := j.covered(client, key, watching)
			for _, o := range keys[key] {
				if o.Verb == Txn || !o.Applied() || !within(covered, o) {
					continue
				}
				j.findings.ExpectedNotes++
				if c := (change{key, o.Version, o.Verb != Set}); !told[c] {
					j.violation("notifications", "%s was not told of %s", client, o)
				}
			}
		}
	}
}

// checkCompleteTransactions: each watcher got a notification of each value that an acknowledged
// transaction has set.
func (j *judge) checkCompleteTransactions(watching map[string][]*Op) {
	for client, watching := range watching {
		told := make(map[string]bool)
		for _, n := range j.history.Notifications[client] {
			told[n.Key+" "+n.Value] = true
		}
		covered := make(map[string][]coverage) // by key
		for _, o := range j.history.Ops {
			if o.Verb != Txn || !o.Applied() {
				continue
			}
			for _, set := range o.sets() {
				if _, known := covered[set.Key]; !known {
					covered[set.Key] = j.covered(client, set.Key, watching)
				}
				if !within(covered[set.Key], o) {
					continue
				}
				j.findings.ExpectedNotes++
				if !told[set.Key+" "+set.Value] {
					j.violation("notifications", "%s was not told of %s", client, o)
				}
			}
		}
	}
}

// checkNotesBeforeReplies: a client that watches a key which it changes gets the notification of
// the change before the reply.
func (j *judge) checkNotesBeforeReplies(client string, notes []Notification, watching []*Op) {
	first := make(map[change]int)
	for i := range notes {
		if _, known := first[notes[i].change()]; !known {
			first[notes[i].change()] = i
		}
	}
	byKey := make(map[string][]*Op)
	for _, o := range j.history.Ops {
		if o.Client == client {
			byKey[o.Key] = append(byKey[o.Key], o)
		}
	}
	for key, ops := range byKey {
		covered := j.covered(client, key, watching)
		for _, o := range ops {
			if o.Verb == Txn || !o.Applied() || !within(covered, o) {
				continue
			}
			if at, told := first[change{key, o.Version, o.Verb != Set}]; told && at >= o.NotesAt {
				j.violation("notifications", "%s was answered before it was told of %s", client, o)
			}
		}
	}
}
