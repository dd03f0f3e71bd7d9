package mirror

import (
	"slices"
	"sync"
	"time"
)

// stage says what is to be done with a topic of a backlog.
type stage uint8

const (
	unseen  stage = iota // its key exists, and the broker has not sent a retained message yet
	queued               // it waits to be published
	sending              // it is being published
	changed              // it is being published, and is to be published again
	refused              // the broker refused it, or it was given up; it is tried again later
)

// backlog has the topics that are not known to have a retained message like the state. It belongs to one connection. It is safe for
// concurrent use.
type backlog struct {
	mu       sync.Mutex
	more     sync.Cond // something is queued, or may be sent, or the backlog is closed
	topics   map[topic]stage
	queue    []*entry // those that are queued, the oldest first
	flight   []*entry // those that are being sent, the oldest first, and some that have been sent
	inFlight int
	alone    bool // one is sent at a time
	closed   bool
}

// maxFlight bounds backlog.flight, for a broker that acknowledges the oldest last.
const maxFlight = 4096

// entry is a topic that is queued or being sent.
type entry struct {
	topic topic
	since time.Time // when it was queued
	sent  time.Time // when it was taken to be sent
	done  bool
}

func newBacklog() *backlog {
	b := &backlog{topics: make(map[topic]stage)}
	b.more.L = &b.mu
	return b
}

// expect notes that the broker should send a retained message like the state.
func (b *backlog) expect(t topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.topics[t]; !known {
		b.topics[t.clone()] = unseen
	}
}

// same notes that the broker has sent a retained message like the state.
func (b *backlog) same(t topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at, known := b.topics[t]; known && at == unseen {
		delete(b.topics, t)
	}
}

// missing queues a topic that was expected, if the broker has not sent it, and reports whether it did.
func (b *backlog) missing(t topic) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, known := b.topics[t]
	if !known || at != unseen {
		return false
	}
	b.pushLocked(t)
	return true
}

// postpone leaves a topic that was expected to retry, if the broker has not sent it: others come first.
func (b *backlog) postpone(t topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at, known := b.topics[t]; known && at == unseen {
		b.topics[t] = refused
	}
}

// push queues a topic, or has it published again after it was sent. It reports whether the topic was neither queued nor being sent.
func (b *backlog) push(t topic) (added bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, known := b.topics[t]
	b.pushLocked(t)
	return !known || at != queued && at != sending && at != changed
}

func (b *backlog) pushLocked(t topic) {
	switch at, known := b.topics[t]; {
	case known && (at == queued || at == changed):
	case known && at == sending:
		b.topics[t] = changed
	default:
		t = t.clone()
		b.topics[t] = queued
		b.queue = append(b.queue, &entry{topic: t, since: time.Now()})
		b.more.Signal()
	}
}

// retry queues the topics that are to be tried again, in their order: two runs of a simulation are the same.
func (b *backlog) retry() {
	b.mu.Lock()
	defer b.mu.Unlock()
	var again []topic
	for t, at := range b.topics {
		if at == refused {
			again = append(again, t)
		}
	}
	slices.SortFunc(again, topic.compare)
	for _, t := range again {
		b.pushLocked(t)
	}
}

// next waits for a topic that is to be published, and takes it. It returns nil when the backlog is closed.
func (b *backlog) next() *entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.closed && (len(b.queue) == 0 || b.alone && b.inFlight > 0 || len(b.flight) >= maxFlight) {
		b.more.Wait()
	}
	if b.closed {
		return nil
	}
	first := b.queue[0]
	b.queue[0] = nil
	b.queue = b.queue[1:]
	b.topics[first.topic], first.sent = sending, time.Now()
	b.flight = append(b.flight, first)
	b.inFlight++
	return first
}

// done ends the sending of a topic.
func (b *backlog) done(sent *entry, accepted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sent.done = true
	for len(b.flight) > 0 && b.flight[0].done {
		b.flight[0] = nil
		b.flight = b.flight[1:]
	}
	b.inFlight--
	b.more.Signal()
	again := b.topics[sent.topic] == changed
	delete(b.topics, sent.topic)
	switch {
	case again:
		b.pushLocked(sent.topic)
	case !accepted:
		b.topics[sent.topic] = refused
	}
}

// setAlone says whether topics are sent one at a time.
func (b *backlog) setAlone(alone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.alone = alone
	b.more.Broadcast()
}

// close ends all calls of next, and returns the topics that were being sent.
func (b *backlog) close() (inFlight []topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.more.Broadcast()
	for _, e := range b.flight {
		if !e.done {
			inFlight = append(inFlight, e.topic)
		}
	}
	return inFlight
}

// has reports whether something is to be done with a topic.
func (b *backlog) has(t topic) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, known := b.topics[t]
	return known
}

// inFlightFor returns for how long the oldest of those has been sent that are being sent, or 0 if there is none.
func (b *backlog) inFlightFor() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.flight) == 0 {
		return 0
	}
	return time.Since(b.flight[0].sent)
}

// lag returns how many topics are not known to be as in the state, and how long ago the oldest was queued that is not sent.
func (b *backlog) lag() (topics int, oldest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(b.flight) > 0:
		oldest = time.Since(b.flight[0].since)
	case len(b.queue) > 0:
		oldest = time.Since(b.queue[0].since)
	}
	return len(b.topics), oldest
}
