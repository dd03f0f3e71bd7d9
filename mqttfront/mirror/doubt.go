package mirror

import (
	"maps"
	"slices"
	"time"
)

// A mirror is doubted when the broker has refused one of its topics, or has ended the connection while some were in flight. Its topics are sent one at a time
// then, and behind those of other mirrors: so the next end of the connection shows which topic it is about. The mirror is trusted again when the broker
// has taken some in a row.

const (
	// proof is how many topics of a doubted mirror the broker must take in a row for the mirror to be trusted again.
	proof = 20
	// maxRefused bounds the topics of a mirror that are remembered as refused. Beyond it the one that would be tried last is forgotten until the next
	// comparison.
	maxRefused = 4096
	// After the end of a connection, the topics of a doubted mirror rest. Each one without a proof between doubles that.
	minRest = 2 * time.Second
	maxRest = 5 * time.Minute
	// minRetry is how long a refused topic rests at first.
	minRetry = 5 * time.Second
)

// doubt is what is known of a mirror that is or was doubted. Its backlog's lock guards it.
type doubt struct {
	trusted   bool // again: only some topics are refused
	queue     []*entry
	turn      time.Time // when a topic of this mirror was sent last, or was looked for
	suspects  []topic   // that were in flight when a connection ended
	accepted  int       // in a row
	needed    int       // to be trusted again
	rest      time.Duration
	restUntil time.Time

	refused   map[topic]struct{}
	order     []topic // of refused, the next to be tried first
	untried   int     // how many of order are still to be tried in this round
	forgotten bool    // there was no room for some
	retry     time.Duration
	retryAt   time.Time // when the next round begins
}

// refuses reports whether the broker has refused a topic. d may be nil.
func (d *doubt) refuses(t topic) bool {
	if d == nil {
		return false
	}
	_, is := d.refused[t]
	return is
}

// forget ends the memory of a refused topic, and reports whether there was one.
func (d *doubt) forget(t topic) bool {
	if !d.refuses(t) {
		return false
	}
	delete(d.refused, t)
	d.order = slices.DeleteFunc(d.order, func(other topic) bool { return other == t })
	d.untried = min(d.untried, len(d.order))
	return true
}

// doubtLocked returns what is known of a mirror, and makes it a doubted one.
func (b *backlog) doubtLocked(prefix string) *doubt {
	d := b.doubts[prefix]
	if d == nil {
		d = &doubt{refused: make(map[topic]struct{})}
		b.doubts[prefix] = d
	}
	d.trusted, d.accepted, d.needed = false, 0, max(d.needed, proof)
	return d
}

// refusedLocked notes that the broker has refused a topic, and keeps the connection. The refused topics of a mirror are tried in rounds: in a round one
// after the other, and then none until the retry interval has passed.
func (b *backlog) refusedLocked(e *entry, now time.Time) {
	d := b.doubts[e.topic.prefix]
	if !d.refuses(e.topic) {
		b.addRefusedLocked(e, now)
		return
	}
	d.toTheEnd(e.topic)
	if d.untried = max(d.untried-1, 0); d.untried == 0 {
		d.endRound(now, 2*d.retry)
	}
}

// brokeLocked notes that the broker has ended the connection because of a topic, or that the topic is why it is ended. That ends a round.
func (b *backlog) brokeLocked(e *entry, now time.Time) {
	if d := b.doubts[e.topic.prefix]; d.refuses(e.topic) {
		d.toTheEnd(e.topic)
		d.endRound(now, 2*d.retry)
		return
	}
	d := b.doubtLocked(e.topic.prefix)
	d.endRound(now, d.retry)
	d.pause(now)
	b.addRefusedLocked(e, now)
}

// addRefusedLocked takes up a topic as refused. It is the first of the next round: perhaps only the network has failed.
func (b *backlog) addRefusedLocked(e *entry, now time.Time) {
	t := e.topic
	d := b.doubtLocked(t.prefix)
	if len(d.order) == 0 {
		d.endRound(now, d.retry)
	}
	d.refused[t] = struct{}{}
	d.order = slices.Insert(d.order, d.untried, t)
	if last := len(d.order) - 1; last == maxRefused {
		delete(d.refused, d.order[last])
		delete(b.topics, d.order[last])
		d.order, d.untried, d.forgotten = d.order[:last], min(d.untried, last), true
	}
}

// pause has the queue of a mirror rest.
func (d *doubt) pause(now time.Time) {
	d.rest = min(max(2*d.rest, minRest), maxRest)
	d.restUntil = now.Add(d.rest)
}

// toTheEnd makes a refused topic the last to be tried.
func (d *doubt) toTheEnd(t topic) {
	d.order = append(slices.DeleteFunc(d.order, func(other topic) bool { return other == t }), t)
}

// endRound has the next round begin after a retry interval, within the bounds of one.
func (d *doubt) endRound(now time.Time, retry time.Duration) {
	d.untried = 0
	d.retry = min(max(retry, minRetry), maxRest)
	d.retryAt = now.Add(d.retry)
}

// acceptedLocked notes that the broker has taken a topic.
func (b *backlog) acceptedLocked(t topic) {
	d := b.doubts[t.prefix]
	if d == nil {
		return
	}
	if d.forget(t) { // perhaps it takes the others now, too
		if d.forgotten {
			d.forgotten = false
			signal(b.again)
		}
		others := d.order
		d.refused, d.order, d.untried, d.retry = make(map[topic]struct{}), nil, 0, 0
		for _, other := range others {
			if b.topics[other] == refused {
				delete(b.topics, other)
				b.pushLocked(other)
			}
		}
	}
	if d.accepted++; d.trusted || d.accepted < d.needed {
		return
	}
	b.queue = append(d.queue, b.queue...)
	d.trusted, d.queue, d.needed, d.rest = true, nil, 0, 0
	if len(d.order) == 0 {
		delete(b.doubts, t.prefix)
	}
}

// suspectLocked takes up that a connection has ended by itself.
func (b *backlog) suspectLocked(now time.Time) {
	const blamed = 5 * time.Second // after a refusal: some brokers end the connection then
	var flight []*entry
	for _, e := range b.flight {
		if !e.done {
			flight = append(flight, e)
		}
	}
	switch {
	case b.alone && len(flight) == 1:
		b.brokeLocked(flight[0], now)
	case now.Sub(b.refusal.at) < blamed:
		if d := b.doubts[b.refusal.prefix]; d != nil && b.refusal.again {
			d.endRound(now, 2*d.retry)
		} else if d != nil {
			d.pause(now)
		}
	default:
		for _, e := range flight {
			d := b.doubtLocked(e.topic.prefix)
			if d.suspects = append(d.suspects, e.topic); len(d.suspects) > d.needed {
				d.needed = len(d.suspects)
			}
		}
	}
}

// beginDoubtsLocked queues the suspects, and forgets mirrors that are no more.
func (b *backlog) beginDoubtsLocked(prefixes []string) {
	for _, prefix := range slices.Sorted(maps.Keys(b.doubts)) {
		d := b.doubts[prefix]
		if !slices.Contains(prefixes, prefix) {
			delete(b.doubts, prefix)
			continue
		}
		suspects := d.suspects
		d.suspects = nil
		for _, t := range suspects {
			b.pushLocked(t)
		}
	}
}

// dueLocked returns the doubted mirror whose turn it is to send one topic: of those that have a topic which may be sent now, the one that had no turn for
// the longest time. since is when the first of their topics could be sent. It returns nil if there is none.
func (b *backlog) dueLocked(now time.Time) (next *doubt, since time.Time) {
	if len(b.doubts) == 0 {
		return nil, since
	}
	for _, prefix := range slices.Sorted(maps.Keys(b.doubts)) {
		d := b.doubts[prefix]
		due, is := d.due(now)
		if !is {
			continue
		}
		if next == nil || due.Before(since) {
			since = due
		}
		if next == nil || d.turn.Before(next.turn) {
			next = d
		}
	}
	return next, since
}

// due returns since when a topic may be sent, and whether one may.
func (d *doubt) due(now time.Time) (since time.Time, is bool) {
	switch {
	case len(d.queue) > 0 && !d.trusted:
		since = d.queue[0].since
		if since.Before(d.restUntil) {
			since = d.restUntil
		}
	case len(d.order) > 0:
		since = d.retryAt
	default:
		return since, false
	}
	return since, !since.After(now)
}

// takeAloneLocked removes the next topic of a doubted mirror that is due.
func (b *backlog) takeAloneLocked(d *doubt, now time.Time) (next *entry) {
	d.turn = now
	if len(d.queue) > 0 && !d.trusted {
		next = d.queue[0]
		d.queue[0] = nil
		d.queue = d.queue[1:]
	} else {
		if d.untried == 0 { // a round begins
			d.untried = len(d.order)
		}
		for next == nil && d.untried > 0 {
			if t := d.order[0]; b.topics[t] == refused {
				next = &entry{topic: t, since: now}
			} else { // it is not to be published
				d.order = append(d.order[1:], t)
				d.untried--
			}
		}
		if next == nil { // that was no round: after a reconnection the comparison may still find some
			d.retryAt = now.Add(minRetry)
			return nil
		}
	}
	next.alone = true
	return next
}

// refusedTopics returns how many topics the broker refuses.
func (b *backlog) refusedTopics() (topics int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.doubts {
		topics += len(d.order)
	}
	return topics
}

// waiting returns the topics that are refused and to be published.
func (b *backlog) waiting() (topics []topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, prefix := range slices.Sorted(maps.Keys(b.doubts)) {
		for _, t := range b.doubts[prefix].order {
			if b.topics[t] == refused {
				topics = append(topics, t)
			}
		}
	}
	return topics
}

// forgetInLine forgets refused topics that a comparison has found as they are to be.
func (b *backlog) forgetInLine() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for prefix, d := range b.doubts {
		d.order = slices.DeleteFunc(d.order, func(t topic) bool {
			_, known := b.topics[t]
			if !known {
				delete(d.refused, t)
			}
			return !known
		})
		d.untried = min(d.untried, len(d.order))
		if d.trusted && len(d.order) == 0 {
			delete(b.doubts, prefix)
		}
	}
}

// reset forgets all.
func (b *backlog) reset() {
	b.end(false)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.doubts = make(map[string]*doubt)
}

// tryNow ends the rests, which are short again then.
func (b *backlog) tryNow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.doubts {
		d.restUntil, d.retryAt, d.rest, d.retry, d.untried = time.Time{}, time.Time{}, 0, 0, 0
	}
	signal(b.wake)
}
