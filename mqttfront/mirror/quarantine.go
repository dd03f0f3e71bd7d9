package mirror

import (
	"maps"
	"slices"
	"time"
)

// A mirror is the set of keys below one prefix, which the leader publishes as retained messages. It is quarantined in three cases: the broker refused one of
// its topics; the broker left one unanswered for too long; or the connection ended while some were in flight. An end soon after a refusal is blamed on that
// refusal instead. The topics of a quarantined mirror are sent one at a time, with nothing else in flight: so the next failure shows which topic caused it.
// Other mirrors go first, for at most maxAloneWait. The quarantine ends when the broker has accepted enough of the mirror's topics.

const (
	// minAccepted is the least number of topics of a quarantined mirror that the broker must accept before the quarantine ends. If the mirror has more
	// suspects (topics that were in flight when a connection ended), their number counts.
	minAccepted = 20
	// maxRefused bounds the topics of a mirror that are remembered as refused. Beyond it the one that would be tried last is forgotten until the
	// mirror is next compared with the retained messages of the broker.
	maxRefused = 4096
	// The backoff of a mirror begins when one of its topics ended the connection, or when the connection ended soon after a refusal. It doubles each time,
	// and is reset when the quarantine ends. maxBackoff also bounds the retry interval of refused topics.
	minBackoff = 2 * time.Second
	maxBackoff = 5 * time.Minute
	// minRetry is the first retry interval of a refused topic.
	minRetry = 5 * time.Second
)

// quarantine is what is known of a mirror that is or was quarantined. The lock of the backlog guards it.
type quarantine struct {
	lifted       bool      // the quarantine has ended; some topics are still refused
	queue        []*entry  // topics that wait to be sent alone, the oldest first; empty once lifted
	lastServed   time.Time // when takeAloneLocked was last called for this mirror
	suspects     []topic   // topics that were in flight when a connection ended
	accepted     int       // number of topics accepted since the quarantine began or was renewed; another refusal of a refused topic does not reset it
	needed       int       // value of accepted at which the quarantine ends
	backoff      time.Duration
	backoffUntil time.Time

	refused   map[topic]struct{}
	order     []topic       // the topics of refused; the next to be tried is the first
	untried   int           // order[:untried] is still to be tried in this round
	forgotten bool          // some refused topics were forgotten for lack of room
	retry     time.Duration // between two rounds
	retryAt   time.Time     // when the next round begins
}

// isRefused reports whether the broker has refused a topic. q may be nil.
func (q *quarantine) isRefused(t topic) bool {
	if q == nil {
		return false
	}
	_, is := q.refused[t]
	return is
}

// forget forgets that the broker refused a topic, and reports whether that was recorded.
func (q *quarantine) forget(t topic) bool {
	if !q.isRefused(t) {
		return false
	}
	q.drop(func(other topic) bool { return other == t })
	return true
}

// drop forgets the refused topics for which chosen returns true.
func (q *quarantine) drop(chosen func(topic) bool) {
	order, untried := q.order[:0], 0
	for i, t := range q.order {
		switch {
		case chosen(t):
			delete(q.refused, t)
			continue
		case i < q.untried:
			untried++
		}
		order = append(order, t)
	}
	clear(q.order[len(order):])
	q.order, q.untried = order, untried
}

// quarantineLocked begins or renews the quarantine of the mirror of a prefix, and returns it.
func (b *backlog) quarantineLocked(prefix string) *quarantine {
	q := b.quarantines[prefix]
	if q == nil {
		q = &quarantine{refused: make(map[topic]struct{})}
		b.quarantines[prefix] = q
	}
	q.lifted, q.accepted, q.needed = false, 0, max(q.needed, minAccepted)
	return q
}

// refusedLocked records that the broker has refused a topic without ending the connection. The refused topics of a mirror are tried in rounds: in a round
// one after the other, and then none until the retry interval has passed.
func (b *backlog) refusedLocked(e *entry, now time.Time) {
	q := b.quarantines[e.topic.prefix]
	if !q.isRefused(e.topic) {
		b.addRefusedLocked(e, now)
		return
	}
	q.moveToBack(e.topic)
	if q.untried = max(q.untried-1, 0); q.untried == 0 {
		q.endRound(now, 2*q.retry)
	}
}

// connectionEndedByLocked records that the broker has ended the connection because of a topic, or that this node is about to end it. That also ends
// the current round of retries.
func (b *backlog) connectionEndedByLocked(e *entry, now time.Time) {
	if q := b.quarantines[e.topic.prefix]; q.isRefused(e.topic) {
		q.moveToBack(e.topic)
		q.endRound(now, 2*q.retry)
		return
	}
	q := b.quarantineLocked(e.topic.prefix)
	q.endRound(now, q.retry)
	q.backOff(now)
	b.addRefusedLocked(e, now)
}

// addRefusedLocked adds a topic to the refused ones. The next round tries it first: if a connection ended, the cause may be the network.
func (b *backlog) addRefusedLocked(e *entry, now time.Time) {
	t := e.topic
	q := b.quarantineLocked(t.prefix)
	if len(q.order) == 0 {
		q.endRound(now, q.retry)
	}
	q.refused[t] = struct{}{}
	q.order = slices.Insert(q.order, q.untried, t)
	if last := len(q.order) - 1; last == maxRefused {
		delete(q.refused, q.order[last])
		delete(b.topics, q.order[last])
		q.order, q.untried, q.forgotten = q.order[:last], min(q.untried, last), true
	}
}

// backOff delays the queue of a mirror. The delay doubles each time, from minBackoff up to maxBackoff.
func (q *quarantine) backOff(now time.Time) {
	q.backoff = min(max(2*q.backoff, minBackoff), maxBackoff)
	q.backoffUntil = now.Add(q.backoff)
}

// moveToBack makes a refused topic the last to be tried.
func (q *quarantine) moveToBack(t topic) {
	q.order = append(slices.DeleteFunc(q.order, func(other topic) bool { return other == t }), t)
}

// endRound ends the round of retries. The next one begins after the given retry interval, limited to minRetry and maxBackoff.
func (q *quarantine) endRound(now time.Time, retry time.Duration) {
	q.untried = 0
	q.retry = min(max(retry, minRetry), maxBackoff)
	q.retryAt = now.Add(q.retry)
}

// acceptedLocked handles the acceptance of a topic by the broker. It ends the quarantine when enough topics were accepted.
func (b *backlog) acceptedLocked(t topic) {
	q := b.quarantines[t.prefix]
	if q == nil {
		return
	}
	if q.forget(t) { // the broker may accept the other refused topics now, too
		if q.forgotten {
			q.forgotten = false
			signal(b.recompare)
		}
		others := q.order
		q.refused, q.order, q.untried, q.retry = make(map[topic]struct{}), nil, 0, 0
		for _, other := range others {
			if b.topics[other] == awaitingRetry {
				delete(b.topics, other)
				b.pushLocked(other)
			}
		}
	}
	if q.accepted++; q.lifted || q.accepted < q.needed {
		return
	}
	b.queue = append(q.queue, b.queue...)
	q.lifted, q.queue, q.needed, q.backoff = true, nil, 0, 0
	if len(q.order) == 0 {
		delete(b.quarantines, t.prefix)
	}
}

// suspectLocked handles the end of a connection that a topic in flight may have caused. A topic that was sent alone counts as refused. Otherwise all topics
// in flight are suspects, unless the broker refused a topic shortly before.
func (b *backlog) suspectLocked(now time.Time) {
	const blamed = 5 * time.Second // a refusal explains an end within this time after it: some brokers refuse first, and then end the connection
	var flight []*entry
	for _, e := range b.flight {
		if !e.done {
			flight = append(flight, e)
		}
	}
	switch {
	case b.alone && len(flight) == 1:
		b.connectionEndedByLocked(flight[0], now)
	case now.Sub(b.refusal.at) < blamed:
		if q := b.quarantines[b.refusal.prefix]; q != nil && b.refusal.repeated {
			q.endRound(now, 2*q.retry)
		} else if q != nil {
			q.backOff(now)
		}
	default:
		for _, e := range flight {
			q := b.quarantineLocked(e.topic.prefix)
			if q.suspects = append(q.suspects, e.topic); len(q.suspects) > q.needed {
				q.needed = len(q.suspects)
			}
		}
	}
}

// requeueSuspectsLocked queues the suspects when a connection begins, and forgets the quarantines of mirrors that are not configured any more.
func (b *backlog) requeueSuspectsLocked(prefixes []string) {
	for _, prefix := range slices.Sorted(maps.Keys(b.quarantines)) {
		q := b.quarantines[prefix]
		if !slices.Contains(prefixes, prefix) {
			delete(b.quarantines, prefix)
			continue
		}
		suspects := q.suspects
		q.suspects = nil
		for _, t := range suspects {
			b.pushLocked(t)
		}
	}
}

// dueLocked returns the quarantined mirror that is to send one topic. Of the mirrors with a topic that may be sent now, it is the one that has waited longest
// for its turn. since is the earliest time from which any of these mirrors was able to send. next is nil if there is none.
func (b *backlog) dueLocked(now time.Time) (next *quarantine, since time.Time) {
	if len(b.quarantines) == 0 {
		return nil, since
	}
	for _, prefix := range slices.Sorted(maps.Keys(b.quarantines)) {
		q := b.quarantines[prefix]
		due, is := q.due(now)
		if !is {
			continue
		}
		if next == nil || due.Before(since) {
			since = due
		}
		if next == nil || q.lastServed.Before(next.lastServed) {
			next = q
		}
	}
	return next, since
}

// due returns the time from which a topic may be sent alone or retried, and whether that time has come. It returns false if there is no such topic.
func (q *quarantine) due(now time.Time) (since time.Time, is bool) {
	switch {
	case len(q.queue) > 0 && !q.lifted:
		since = q.queue[0].since
		if since.Before(q.backoffUntil) {
			since = q.backoffUntil
		}
	case len(q.order) > 0:
		since = q.retryAt
	default:
		return since, false
	}
	return since, !since.After(now)
}

// takeAloneLocked returns the next topic of a quarantined mirror. It removes a queued topic from the queue. A refused topic stays in order until the broker
// answers. It returns nil if no refused topic is in the state awaitingRetry.
func (b *backlog) takeAloneLocked(q *quarantine, now time.Time) (next *entry) {
	q.lastServed = now
	if len(q.queue) > 0 && !q.lifted {
		next = q.queue[0]
		q.queue[0] = nil
		q.queue = q.queue[1:]
	} else {
		if q.untried == 0 { // a round begins
			q.untried = len(q.order)
		}
		for next == nil && q.untried > 0 {
			if t := q.order[0]; b.topics[t] == awaitingRetry {
				next = &entry{topic: t, since: now}
			} else { // it has no change to publish
				q.order = append(q.order[1:], t)
				q.untried--
			}
		}
		if next == nil { // no refused topic has a change to publish. After a reconnection the comparison may still find one.
			q.retryAt = now.Add(minRetry)
			return nil
		}
	}
	next.alone = true
	return next
}

// refusedCount returns how many topics the broker refuses.
func (b *backlog) refusedCount() (topics int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range b.quarantines {
		topics += len(q.order)
	}
	return topics
}

// refusedToPublish returns the refused topics that have a change to publish (awaitingRetry).
func (b *backlog) refusedToPublish() (topics []topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, prefix := range slices.Sorted(maps.Keys(b.quarantines)) {
		for _, t := range b.quarantines[prefix].order {
			if b.topics[t] == awaitingRetry {
				topics = append(topics, t)
			}
		}
	}
	return topics
}

// dropSynced forgets the refused topics whose retained message equals the value in the store, according to a comparison.
func (b *backlog) dropSynced() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for prefix, q := range b.quarantines {
		q.drop(func(t topic) bool {
			_, known := b.topics[t]
			return !known
		})
		if q.lifted && len(q.order) == 0 {
			delete(b.quarantines, prefix)
		}
	}
}

// reset forgets all topics and quarantines.
func (b *backlog) reset() {
	b.end(false)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.quarantines = make(map[string]*quarantine)
}

// resetBackoff makes all topics due now, and resets the backoff and the retry intervals to their minimum.
func (b *backlog) resetBackoff() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range b.quarantines {
		q.backoffUntil, q.retryAt, q.backoff, q.retry, q.untried = time.Time{}, time.Time{}, 0, 0, 0
	}
	signal(b.wake)
}
