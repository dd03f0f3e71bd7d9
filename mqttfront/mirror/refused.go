package mirror

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// A broker does not take some topics: it refuses them by a PUBACK, or ends the connection, and then
// does not say which topic it meant. So all topics that were in flight when a connection ended are
// suspects, and one topic is sent at a time until they are answered. If the connection ends on one
// that was sent alone, that topic counts as refused, too. If it ends on maxStrikes topics of a
// mirror, and takes none in between, nothing of that mirror is sent.
//
// What is refused is tried again every retryInterval: all topics that were refused by a PUBACK; but
// of those on which a connection ended, and of each mirror of which nothing is sent, only one. When
// the broker takes one, the others follow.

const (
	// maxRefused bounds the topics that are remembered as refused. One for which there is no room
	// is published again when its key changes, or when the broker is next compared with the state.
	maxRefused    = 4096
	retryInterval = 5 * time.Minute
	maxStrikes    = 3
	// blamed is for how long a refusal by a PUBACK explains the end of the connection: some brokers
	// do both.
	blamed = 5 * time.Second
)

// refused is what is known of topics that the broker does not take. The lock of the backlog guards
// it.
type refused struct {
	topics map[topic]struct{}
	// those of topics on which a connection ended; the next to be tried is the first
	ended []topic
	// by topic.prefix: how many connections ended on topics of a mirror since it took one
	strikes map[string]int
	retryAt time.Time // when what is refused is tried again
	due     []topic   // to be tried alone, one after the other, also on further connections
	last    topic     // the last topic that was refused by a PUBACK, at lastAt
	lastAt  time.Time
	lost    bool // a topic is not in topics for lack of room
}

func newRefused() refused {
	return refused{topics: make(map[topic]struct{}), strikes: make(map[string]int)}
}

// isDenied reports whether nothing of a topic's mirror is sent.
func (r *refused) isDenied(t topic) bool { return r.strikes[t.prefix] >= maxStrikes }

func (r *refused) has(t topic) bool {
	_, is := r.topics[t]
	return is
}

// add remembers that the broker does not take a topic.
func (r *refused) add(t topic, now time.Time) {
	switch {
	case r.has(t):
	case len(r.topics) == maxRefused:
		r.lost = true
	default:
		if len(r.topics) == 0 {
			r.retryAt = now.Add(retryInterval)
		}
		r.topics[t] = struct{}{}
	}
}

// endedOn remembers that a connection ended on a topic. One that was only refused makes room for
// it.
func (r *refused) endedOn(t topic, now time.Time) {
	if !r.has(t) && len(r.topics) == maxRefused {
		r.lost = true
		least := r.leastNeeded()
		r.forget(func(other topic) bool { return other == least })
	}
	r.add(t, now)
	r.ended = append(slices.DeleteFunc(r.ended, func(other topic) bool { return other == t }), t)
	r.strikes[t.prefix]++
}

// tryNext makes a topic on which a connection ended the next to be tried: its key has changed.
func (r *refused) tryNext(t topic) {
	if !r.has(t) {
		return
	}
	if i := slices.Index(r.ended, t); i >= 0 {
		r.ended = slices.Insert(slices.Delete(r.ended, i, i+1), 0, t)
	}
}

// leastNeeded returns the topic that is forgotten when there is no room: one on which no connection
// ended, else the one that was tried last.
func (r *refused) leastNeeded() topic {
	if len(r.ended) == maxRefused {
		return r.ended[maxRefused-1]
	}
	ended := make(map[topic]struct{}, len(r.ended))
	for _, t := range r.ended {
		ended[t] = struct{}{}
	}
	only := slices.DeleteFunc(slices.Collect(maps.Keys(r.topics)), func(t topic) bool {
		_, is := ended[t]
		return is
	})
	return slices.MaxFunc(only, topic.compare)
}

// forget forgets the topics for which chosen returns true.
func (r *refused) forget(chosen func(topic) bool) {
	maps.DeleteFunc(r.topics, func(t topic, _ struct{}) bool { return chosen(t) })
	r.ended = slices.DeleteFunc(r.ended, chosen)
}

// acceptedLocked notes that the broker has taken a topic. If it had refused it before, it may take
// the others now.
func (b *backlog) acceptedLocked(t topic, now time.Time) {
	r := &b.refused
	if r.last == t {
		r.lastAt = time.Time{}
	}
	b.liftLocked(t.prefix, 0, now)
	if r.has(t) {
		r.forget(func(other topic) bool { return other == t })
		r.retryAt = now
		if r.lost {
			r.lost = false
			signal(b.recompare)
		}
	}
}

// refusedLocked notes that the broker has refused a topic by a PUBACK. It is not one on which the
// connection ends, unless that happens now. A mirror of which nothing was sent is tried again: one
// end of the connection more, and nothing of it is sent.
func (b *backlog) refusedLocked(t topic, now time.Time) {
	r := &b.refused
	r.last, r.lastAt = t, now
	r.add(t, now)
	r.ended = slices.DeleteFunc(r.ended, func(other topic) bool { return other == t })
	if r.isDenied(t) {
		b.liftLocked(t.prefix, maxStrikes-1, now)
	}
}

// liftLocked sets the strikes of a mirror, and queues what waits because nothing of it was sent.
func (b *backlog) liftLocked(prefix string, strikes int, now time.Time) {
	r := &b.refused
	denied := r.isDenied(topic{prefix: prefix})
	if r.strikes[prefix] = strikes; strikes == 0 {
		delete(r.strikes, prefix)
	}
	if denied {
		for _, other := range b.awaitingLocked(prefix, false) {
			b.requeueLocked(other, now)
		}
	}
}

// awaitingLocked returns the topics that wait for a retry and begin with a prefix, in order: those
// that the broker has refused, or the others.
func (b *backlog) awaitingLocked(prefix string, refused bool) (waiting []topic) {
	if refused {
		for t := range b.refused.topics {
			if b.isAwaitingLocked(t) && strings.HasPrefix(t.prefix, prefix) {
				waiting = append(waiting, t)
			}
		}
	} else {
		for t := range b.awaiting {
			if !b.refused.has(t) && strings.HasPrefix(t.prefix, prefix) {
				waiting = append(waiting, t)
			}
		}
	}
	slices.SortFunc(waiting, topic.compare)
	return waiting
}

func (b *backlog) isAwaitingLocked(t topic) bool {
	_, is := b.awaiting[t]
	return is
}

// requeueLocked queues a topic that waits for a retry.
func (b *backlog) requeueLocked(t topic, now time.Time) {
	delete(b.awaiting, t)
	b.topics[t] = queued
	b.queue = append(b.queue, &entry{topic: t, since: now})
	signal(b.wake)
}

// retryLocked queues what is to be tried again. While a comparison is under way nothing is due: it
// may still find what is to be published.
func (b *backlog) retryLocked(now time.Time) {
	r := &b.refused
	if len(b.awaiting) == 0 || b.touched != nil || now.Before(r.retryAt) {
		return
	}
	r.retryAt = now.Add(retryInterval)
	var first []*entry
	for _, t := range b.awaitingLocked("", true) {
		if !r.isDenied(t) && !slices.Contains(r.ended, t) {
			delete(b.awaiting, t)
			b.topics[t] = queued
			first = append(first, &entry{topic: t, since: b.oldestLocked(now)})
		}
	}
	// a topic of due may end the connection, and the queue with it
	b.queue = append(first, b.queue...)
	r.due = b.nextAloneLocked()
}

// oldestLocked returns since when the oldest topic of the queue waits, and now if there is none.
func (b *backlog) oldestLocked(now time.Time) time.Time {
	if len(b.queue) > 0 {
		return b.queue[0].since
	}
	return now
}

// tryAloneLocked queues the next topic of refused.due, unless there are suspects or other topics
// are tried again.
func (b *backlog) tryAloneLocked(now time.Time) {
	due := b.refused.due
	i := slices.IndexFunc(due, b.isAwaitingLocked)
	if i < 0 || len(b.suspects) > 0 || len(b.queue) > 0 && b.refused.has(b.queue[0].topic) {
		return
	}
	t := due[i]
	b.refused.due = slices.Delete(due, i, i+1)
	delete(b.awaiting, t)
	b.topics[t], b.suspects[t] = queued, struct{}{}
	// first: what is before it would be sent alone, too
	b.queue = slices.Insert(b.queue, 0, &entry{topic: t, since: b.oldestLocked(now)})
}

// nextAloneLocked chooses, of the topics that wait for a retry, those that are tried although a
// connection may end on them: one of those on which one did, in turn, and one of each mirror of
// which nothing is sent, first one that was never tried.
func (b *backlog) nextAloneLocked() (chosen []topic) {
	r := &b.refused
	inTurn := func(among func(topic) bool) {
		i := slices.IndexFunc(r.ended,
			func(t topic) bool { return b.isAwaitingLocked(t) && among(t) })
		if i >= 0 {
			next := r.ended[i]
			r.ended = append(slices.Delete(r.ended, i, i+1), next)
			chosen = append(chosen, next)
		}
	}
	inTurn(func(t topic) bool { return !r.isDenied(t) })
	for _, prefix := range slices.Sorted(maps.Keys(r.strikes)) {
		if !r.isDenied(topic{prefix: prefix}) {
			continue
		}
		if untried := b.leastUntriedLocked(prefix); untried != (topic{}) {
			chosen = append(chosen, untried)
		} else {
			inTurn(func(t topic) bool { return t.prefix == prefix })
		}
	}
	return chosen
}

// leastUntriedLocked returns the least topic of a mirror that waits and that the broker has not
// refused, and the zero topic if there is none.
func (b *backlog) leastUntriedLocked(prefix string) (least topic) {
	for t := range b.awaiting {
		if t.prefix == prefix && !b.refused.has(t) && (least == topic{} || t.compare(least) < 0) {
			least = t
		}
	}
	return least
}

// connectionEndedLocked notes that a connection has ended, perhaps because of a topic in flight.
func (b *backlog) connectionEndedLocked(now time.Time) {
	r := &b.refused
	blame := now.Sub(r.lastAt) < blamed
	for _, e := range b.flight {
		switch {
		case e.done:
		case e.alone:
			r.endedOn(e.topic, now)
			blame = false
		default:
			b.suspects[e.topic] = struct{}{}
		}
	}
	if blame {
		r.endedOn(r.last, now)
	}
	r.lastAt = time.Time{}
}

// refusedCount returns how many topics the broker refuses, and how many wait because nothing of
// their mirror is sent.
func (b *backlog) refusedCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	count := len(b.awaiting)
	for t := range b.refused.topics {
		if !b.isAwaitingLocked(t) {
			count++
		}
	}
	return count
}

// refusedToPublish returns the topics that wait for a retry.
func (b *backlog) refusedToPublish() []topic {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append(b.awaitingLocked("", true), b.awaitingLocked("", false)...)
}

// dropSynced forgets the refused topics whose retained message equals the value in the store,
// according to a comparison.
func (b *backlog) dropSynced() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused.forget(func(t topic) bool {
		_, known := b.topics[t]
		return !known
	})
}

// reset forgets all topics, and what is known of the broker.
func (b *backlog) reset() {
	b.end(false)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused, b.suspects = newRefused(), make(map[topic]struct{})
}

// retryNow makes what is refused due at once.
func (b *backlog) retryNow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused.retryAt = time.Time{}
	signal(b.wake)
}
