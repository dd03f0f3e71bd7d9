package mirror

import (
	"maps"
	"slices"
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

// endedOn remembers that a connection ended on a topic.
func (r *refused) endedOn(t topic, now time.Time) {
	r.add(t, now)
	if r.has(t) {
		r.ended = append(slices.DeleteFunc(r.ended,
			func(other topic) bool { return other == t }), t)
	}
	r.strikes[t.prefix]++
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
	denied := r.isDenied(t)
	delete(r.strikes, t.prefix)
	if r.has(t) {
		r.forget(func(other topic) bool { return other == t })
		r.retryAt = now
		if r.lost {
			r.lost = false
			signal(b.recompare)
		}
	}
	if denied {
		for _, other := range b.awaitingLocked(
			func(other topic) bool { return other.prefix == t.prefix && !r.has(other) }) {
			b.requeueLocked(other, now)
		}
	}
}

// awaitingLocked returns the topics that wait for a retry and are chosen, in order.
func (b *backlog) awaitingLocked(chosen func(topic) bool) (waiting []topic) {
	for t, at := range b.topics {
		if at == awaitingRetry && chosen(t) {
			waiting = append(waiting, t)
		}
	}
	slices.SortFunc(waiting, topic.compare)
	return waiting
}

// requeueLocked queues a topic that waits for a retry.
func (b *backlog) requeueLocked(t topic, now time.Time) {
	b.topics[t] = queued
	b.queue = append(b.queue, &entry{topic: t, since: now})
}

// retryLocked queues what is to be tried again.
func (b *backlog) retryLocked(now time.Time) {
	r := &b.refused
	if len(r.topics)+len(r.strikes) == 0 || now.Before(r.retryAt) {
		return
	}
	waiting := b.awaitingLocked(func(topic) bool { return true })
	if len(waiting) == 0 {
		// after a reconnection the comparison may still find what is to be published
		r.retryAt = now.Add(step)
		return
	}
	r.retryAt = now.Add(retryInterval)
	for _, t := range waiting {
		if !r.isDenied(t) && !slices.Contains(r.ended, t) {
			b.requeueLocked(t, now)
		}
	}
	r.due = b.nextAloneLocked(waiting)
}

// tryAloneLocked queues the next topic of refused.due, unless there are suspects.
func (b *backlog) tryAloneLocked(now time.Time) {
	due := b.refused.due
	i := slices.IndexFunc(due, func(t topic) bool { return b.topics[t] == awaitingRetry })
	if len(b.suspects) > 0 || i < 0 {
		return
	}
	t := due[i]
	b.refused.due = slices.Delete(due, i, i+1)
	b.topics[t], b.suspects[t] = queued, struct{}{}
	// first: what is before it would be sent alone, too
	b.queue = slices.Insert(b.queue, 0, &entry{topic: t, since: now})
}

// nextAloneLocked chooses, of the topics that wait for a retry, those that are tried although a
// connection may end on them: one of those on which one did, in turn, and one of each mirror of
// which nothing is sent, first one that was never tried.
func (b *backlog) nextAloneLocked(waiting []topic) (chosen []topic) {
	r := &b.refused
	inTurn := func(among func(topic) bool) {
		i := slices.IndexFunc(r.ended, func(t topic) bool {
			return b.topics[t] == awaitingRetry &&
				among(t)
		})
		if i >= 0 {
			next := r.ended[i]
			r.ended = append(slices.Delete(r.ended, i, i+1), next)
			chosen = append(chosen, next)
		}
	}
	inTurn(func(t topic) bool { return !r.isDenied(t) })
	for _, prefix := range slices.Sorted(maps.Keys(r.strikes)) {
		denied := func(t topic) bool { return t.prefix == prefix && r.isDenied(t) }
		if i := slices.IndexFunc(waiting,
			func(t topic) bool { return denied(t) && !r.has(t) }); i >= 0 {
			chosen = append(chosen, waiting[i])
		} else {
			inTurn(denied)
		}
	}
	return chosen
}

// connectionEndedLocked notes that a connection has ended, perhaps because of a topic in flight.
func (b *backlog) connectionEndedLocked(now time.Time) {
	if now.Sub(b.refused.lastAt) < blamed {
		b.refused.endedOn(b.refused.last, now)
		b.refused.lastAt = time.Time{}
	}
	for _, e := range b.flight {
		switch {
		case e.done:
		case e.alone:
			b.refused.endedOn(e.topic, now)
		default:
			b.suspects[e.topic] = struct{}{}
		}
	}
}

// refusedCount returns how many topics the broker refuses, and how many wait because nothing of
// their mirror is sent.
func (b *backlog) refusedCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	waiting := 0
	for t, at := range b.topics {
		if at == awaitingRetry && !b.refused.has(t) {
			waiting++
		}
	}
	return len(b.refused.topics) + waiting
}

// refusedToPublish returns the topics that wait for a retry.
func (b *backlog) refusedToPublish() []topic {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.awaitingLocked(func(topic) bool { return true })
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
