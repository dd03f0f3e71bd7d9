package mirror

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// stage says what is to be done with a topic of a backlog.
type stage uint8

const (
	// a comparison expects its retained message, and the broker has not sent it yet
	unseen        stage = iota
	queued              // it waits to be published
	sending             // it is being published
	changed             // it is being published, and is to be published again
	awaitingRetry       // the broker did not take it; it is tried again later
)

// backlog holds the topics whose retained message is not known to be as in the state. Without a
// connection it is empty, but knows what the broker does not take (refused.go). It is safe for
// concurrent use.
type backlog struct {
	wake chan struct{} // capacity 1: take may return something now
	// capacity 1: the retained messages are to be compared with the state once more
	recompare chan struct{}

	mu     sync.Mutex
	open   bool // there is a connection
	topics map[topic]stage
	queue  []*entry // topics in stage queued, the oldest first
	// topics being sent, the oldest first; some after the first are answered already
	flight        []*entry
	inFlightCount int // number of topics in flight without an answer
	// suspects are the topics that were in flight when a connection ended, and are not answered
	// since. While there are any, one topic is sent at a time.
	suspects map[topic]struct{}
	refused  refused
	awaiting map[topic]struct{} // the topics in stage awaitingRetry
	answered time.Time          // when the broker last answered a topic
	// answeredSent is the latest entry.sent of all topics that the broker has answered.
	answeredSent time.Time
	// touched are the topics whose keys have changed since a comparison began; nil while none is
	// under way. A retained message of such a topic may be older than the change.
	touched map[topic]struct{}
}

const (
	// window bounds the topics in flight.
	window = 128
	// maxFlight bounds backlog.flight, which keeps answered topics until the oldest one is
	// answered.
	maxFlight = 4096
)

// entry is a topic that is queued or being sent.
type entry struct {
	topic topic
	since time.Time // when it was queued
	sent  time.Time // when it was taken to be sent
	size  int       // of its value, in bytes; 0 until it is known
	alone bool      // nothing else is sent while it is in flight
	done  bool      // it was answered or skipped
}

func newBacklog() *backlog {
	return &backlog{
		wake: make(chan struct{}, 1), recompare: make(chan struct{}, 1),
		topics: make(map[topic]stage), suspects: make(map[topic]struct{}), refused: newRefused(),
		awaiting: make(map[topic]struct{}),
	}
}

// expect records that a comparison expects the broker to send a retained message of a topic.
func (b *backlog) expect(t topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.topics[t]; !known && b.open {
		b.topics[t.clone()] = unseen
	}
}

// markInSync records that the retained message of a topic is as in the state. A refused topic whose
// key has changed since the comparison began is still to be published: the message may have been
// compared with an older state.
func (b *backlog) markInSync(t topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at, known := b.topics[t]; known &&
		(at == unseen || at == awaitingRetry && !b.isTouchedLocked(t)) {
		delete(b.topics, t)
		delete(b.awaiting, t)
	}
}

// resolveExpected ends the wait for an expected topic. It returns true if the broker has not sent
// that topic. The topic is then queued if publish is true.
func (b *backlog) resolveExpected(t topic, publish bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, known := b.topics[t]
	if !known || at != unseen {
		return false
	}
	if delete(b.topics, t); publish {
		b.pushLocked(t)
	}
	return true
}

// change queues a topic whose key has changed.
func (b *backlog) change(t topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.touched != nil && len(b.touched) < maxTouched {
		b.touched[t.clone()] = struct{}{}
	}
	b.refused.tryNext(t)
	b.pushLocked(t)
}

// maxTouched bounds backlog.touched. When it is full, all topics count as touched: a comparison
// then counts no message as stale, because the key may have changed.
const maxTouched = 100_000

// setComparing starts or stops the record of topics that change during a comparison.
func (b *backlog) setComparing(comparing bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.touched = nil; comparing {
		b.touched = make(map[topic]struct{})
	}
}

// isTouched reports whether the key of a topic has changed since the comparison began.
func (b *backlog) isTouched(t topic) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.isTouchedLocked(t)
}

func (b *backlog) isTouchedLocked(t topic) bool {
	_, is := b.touched[t]
	return is || len(b.touched) >= maxTouched
}

// push queues a topic. A topic that is being sent is published once more afterwards. A topic that
// the broker refuses is retried later. Without a connection push queues nothing. It returns true if
// the topic was neither queued, nor being sent, nor waiting for a retry.
func (b *backlog) push(t topic) (added bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, known := b.topics[t]
	b.pushLocked(t)
	return !known || at == unseen
}

func (b *backlog) pushLocked(t topic) {
	if !b.open {
		return
	}
	switch at, known := b.topics[t]; {
	case known && (at == queued || at == changed || at == awaitingRetry):
	case known && at == sending:
		b.topics[t] = changed
	default:
		t = t.clone()
		if b.refused.has(t) || b.refused.isDenied(t) {
			b.topics[t], b.awaiting[t] = awaitingRetry, struct{}{}
			return
		}
		b.topics[t] = queued
		b.queue = append(b.queue, &entry{topic: t, since: time.Now()})
		signal(b.wake)
	}
}

// take returns a topic that is to be published now, or nil if there is none.
func (b *backlog) take(now time.Time) *entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return nil
	}
	b.retryLocked(now)
	b.tryAloneLocked(now)
	most := window
	if len(b.suspects) > 0 {
		most = 1
	}
	if b.inFlightCount >= most || len(b.flight) >= maxFlight || len(b.queue) == 0 {
		return nil
	}
	next := b.queue[0]
	b.queue[0] = nil
	b.queue = b.queue[1:]
	b.topics[next.topic], next.sent, next.alone = sending, now, most == 1
	b.flight = append(b.flight, next)
	b.inFlightCount++
	return next
}

// done records the broker's answer to a topic: it has taken the message, or refused it.
func (b *backlog) done(sent *entry, accepted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	changedMeanwhile := b.endSendingLocked(sent)
	b.answered = now
	if b.answeredSent.Before(sent.sent) {
		b.answeredSent = sent.sent
	}
	if accepted {
		b.acceptedLocked(sent.topic, now)
		if changedMeanwhile {
			b.pushLocked(sent.topic)
		}
	} else {
		b.refusedLocked(sent.topic, now)
		if b.refused.has(sent.topic) || changedMeanwhile {
			b.pushLocked(sent.topic)
		}
	}
	signal(b.wake)
}

// skip ends the attempt to publish a topic for which nothing was sent: no mirror in force has the
// topic any more, or no packet can hold it. The backlog forgets that the broker has refused the
// topic.
func (b *backlog) skip(taken *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changedMeanwhile := b.endSendingLocked(taken)
	b.refused.forget(func(t topic) bool { return t == taken.topic })
	if changedMeanwhile {
		b.pushLocked(taken.topic)
	}
	signal(b.wake)
}

// endSendingLocked takes a topic out of flight, and reports whether it has to be published once
// more.
func (b *backlog) endSendingLocked(sent *entry) (changedMeanwhile bool) {
	sent.done = true
	for len(b.flight) > 0 && b.flight[0].done {
		b.flight[0] = nil
		b.flight = b.flight[1:]
	}
	b.inFlightCount--
	delete(b.suspects, sent.topic)
	changedMeanwhile = b.topics[sent.topic] == changed
	delete(b.topics, sent.topic)
	return changedMeanwhile
}

// begin opens the backlog for a connection, and queues the suspects. prefixes are what the topics
// of mirrors begin with.
func (b *backlog) begin(prefixes []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = true
	b.refused.forget(func(t topic) bool { return !slices.Contains(prefixes, t.prefix) })
	maps.DeleteFunc(b.refused.strikes,
		func(prefix string, _ int) bool { return !slices.Contains(prefixes, prefix) })
	for t := range b.suspects {
		if slices.Contains(prefixes, t.prefix) && !b.refused.has(t) && !b.refused.isDenied(t) {
			b.pushLocked(t)
		} else {
			delete(b.suspects, t)
		}
	}
	slices.SortFunc(b.queue, func(one, other *entry) int { return one.topic.compare(other.topic) })
}

// end empties the backlog when a connection has ended. suspect is true if a topic in flight may be
// the cause.
func (b *backlog) end(suspect bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if suspect {
		b.connectionEndedLocked(time.Now())
	}
	b.open, b.inFlightCount, b.queue, b.flight = false, 0, nil, nil
	b.topics, b.awaiting = make(map[topic]stage), make(map[topic]struct{})
}

const (
	// topicAnswerTimeout bounds the wait for the answer to a topic if it was sent alone, or if the
	// broker has answered a later one.
	topicAnswerTimeout = 10 * time.Second
	// anyAnswerTimeout is how long the broker may answer none of the topics in flight.
	anyAnswerTimeout = time.Minute
	// minRate is the least bandwidth of the connection, in bytes per second. The timeouts above are
	// extended by the time that a message takes at this rate. A message that waits in the network's
	// buffers for longer than half the keep-alive time ends the connection all the same.
	minRate = 128 << 10
)

// setSize records the size of the value of a topic in flight.
func (b *backlog) setSize(e *entry, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.size = bytes
}

// transferTime returns how long the values of the topics in flight take at minRate.
func (b *backlog) transferTime() (all time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.flight {
		if !e.done {
			all += e.transferTime()
		}
	}
	return all
}

func (e *entry) transferTime() time.Duration {
	return time.Duration(
		e.size) * time.Second / minRate
}

// handleOverdue reports whether the broker has left a topic unanswered for too long. If that topic
// was sent alone, or the broker has answered a later one, the topic is marked as refused, and
// suspect is false. Otherwise suspect is true: any topic in flight may be the cause.
func (b *backlog) handleOverdue(now time.Time) (overdue, suspect bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.flight) == 0 {
		return false, false
	}
	oldest := b.flight[0]
	transfer := oldest.transferTime()
	if now.Sub(oldest.sent) > topicAnswerTimeout+transfer &&
		(oldest.alone || b.answeredSent.After(oldest.sent)) {
		b.refused.endedOn(oldest.topic, now)
		return true, false
	}
	since := b.answered
	if since.Before(oldest.sent) {
		since = oldest.sent
	}
	overdue = now.Sub(since) > anyAnswerTimeout+transfer
	return overdue, overdue
}

// isPending reports whether a topic is to be published, or is being published.
func (b *backlog) isPending(t topic) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, known := b.topics[t]
	return known && at != unseen
}

// answeredAllBefore reports whether the broker has answered every topic that was queued before a
// moment, except those that wait for a retry.
func (b *backlog) answeredAllBefore(moment time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := func(e *entry) bool { return !e.done && e.since.Before(moment) }
	return !slices.ContainsFunc(b.flight, before) && (len(b.queue) == 0 || !before(b.queue[0]))
}

// lag returns how many topics are not known to be as in the state, and how long ago the oldest
// unanswered topic was queued. Topics in stage unseen or awaitingRetry count in topics, but not in
// oldest.
func (b *backlog) lag() (topics int, oldest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, queue := range [][]*entry{b.flight, b.queue} {
		if len(queue) > 0 {
			oldest = max(oldest, time.Since(queue[0].since))
		}
	}
	return len(b.topics), oldest
}
