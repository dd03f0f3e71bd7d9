package mirror

import (
	"context"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/mqttconn"
)

const (
	// quiet is how long the broker must have sent no retained message of a mirror before it counts
	// as having sent all of them.
	quiet = time.Second
	// markerWait bounds the wait for a marker: a message that the node publishes to itself after it
	// has subscribed. Most brokers deliver it after the retained messages. Two further markers are
	// retained: they show whether the broker sends retained messages at all, and whether it drops
	// some.
	markerWait = 5 * time.Second
	// maxVerified bounds pass.queuedVersions: only these corrections are verified by a further
	// pass.
	maxVerified = 10_000
	// maxUnlike bounds pass.unlike. When it is full, the pass forgets no refused topic.
	maxUnlike = 100_000
)

// The levels below Config.markerTopics of the markers that are retained.
const (
	firstMarker = "first/" // of the marker that is sent before the retained messages of mirrors
	lastMarker  = "last/"  // of the marker that is sent after them
)

// pass is one attempt to receive the retained messages and to compare them with the state. received
// is called by the connection's goroutine, and the other methods by one goroutine of the comparer.
type pass struct {
	markerTopics string
	prefixes     []string // of the topics of all mirrors
	backlog      *backlog
	desired      *desired
	began        time.Time
	// by topic, the version that this pass or an earlier one has queued to be published; guarded by
	// mu
	queuedVersions map[topic]string

	lastRetained atomic.Int64 // when the last retained message came, in nanoseconds since began
	marked       atomic.Bool  // the marker that was published after the subscription has arrived
	// the retained markers before and after the retained messages of mirrors have arrived
	first, last atomic.Bool

	mu sync.Mutex
	// topics of retained messages that are not as in the state; at most maxUnlike
	unlike     map[topic]struct{}
	seen       int // number of retained messages received
	stale      int
	unretained int
}

// newPass returns a pass that adds the versions that it queues to queuedVersions.
func newPass(markerTopics string, prefixes []string, backlog *backlog, desired *desired,
	queuedVersions map[topic]string,
) *pass {
	return &pass{
		markerTopics: markerTopics, prefixes: prefixes, backlog: backlog, desired: desired,
		began: time.Now(), queuedVersions: queuedVersions,
		unlike: make(map[topic]struct{}),
	}
}

// begin is called before the subscription: it records which retained messages the broker is
// expected to send.
func (p *pass) begin() {
	p.desired.scan(func(t topic, _ *wanted) { p.backlog.expect(t) })
	p.forgetPending()
}

// finish queues what the broker has not sent, and returns what the pass has found. If the pass is
// not complete, finish queues nothing: the broker may have been about to send it. refused says that
// the broker refuses a subscription.
func (p *pass) finish(complete, refused bool) (found comparison) {
	found.blind = refused
	if complete {
		found.keys, found.unshown, found.missing = p.queueMissing()
		if p.first.Load() && p.last.Load() && !found.blind {
			p.dropCleared()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	found.stale, found.unretained, found.dropped = p.stale, p.unretained, p.first.Load() &&
		!p.last.Load()
	if found.blind = found.blind || !p.first.Load() || p.seen == 0 &&
		p.unretained > 0; found.blind {
		found.missing = 0 // what the broker does not send may be there
	}
	return found
}

// queueMissing queues the topics that the broker has not sent. A topic that the broker acknowledged
// in an earlier pass counts as unretained instead. queueMissing returns the counts of scan, and how
// many topics it queued.
func (p *pass) queueMissing() (keys, unshown, queued int) {
	keys, unshown = p.desired.scan(func(t topic, w *wanted) {
		published := p.wasPublished(t, w.version)
		switch missing := p.backlog.resolveExpected(t, !published); {
		case missing && published:
			p.count(&p.unretained)
		case missing:
			queued++
			p.recordQueued(t, w.version)
		}
	})
	return keys, unshown, queued
}

// dropCleared forgets the refused topics that are to have no retained message, and on which the
// broker retains none. Nothing is left to publish on them.
func (p *pass) dropCleared() {
	for _, t := range p.backlog.refusedToPublish() {
		if w, ok := p.desired.lookup(t); ok && w.value == "" && !p.isUnlike(t) {
			p.backlog.markInSync(t)
		}
	}
}

// isUnlike reports whether the broker sent a retained message of the topic that differs from the
// state. While p.unlike is full it returns true for any topic.
func (p *pass) isUnlike(t topic) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, is := p.unlike[t]
	return is || len(p.unlike) >= maxUnlike
}

// recordUnlike records a topic for isUnlike. It is called before the topic is queued: the broker
// may refuse it at once.
func (p *pass) recordUnlike(t topic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unlike) < maxUnlike {
		p.unlike[t.clone()] = struct{}{}
	}
}

// awaitRetained waits until the broker has probably sent all retained messages.
func (p *pass) awaitRetained(ctx context.Context) error {
	subscribed := time.Now()
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		last := p.began.Add(time.Duration(p.lastRetained.Load()))
		if last.Before(subscribed) {
			last = subscribed
		}
		if time.Since(last) >= quiet && (p.marked.Load() || time.Since(subscribed) >= markerWait) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// received compares a message with the state. A message that is not retained was published just
// now, usually by this node.
func (p *pass) received(message mqttconn.Message) {
	if marker, ok := strings.CutPrefix(message.Topic, p.markerTopics); ok {
		switch {
		case !message.Retain:
			p.marked.Store(true)
		case strings.HasPrefix(marker, firstMarker):
			p.first.Store(true)
		default:
			p.last.Store(true)
		}
		return
	}
	t, ok := topicOf(message.Topic, p.prefixes)
	if !ok {
		return
	}
	if message.Retain {
		p.lastRetained.Store(int64(time.Since(p.began)))
		p.count(&p.seen)
	}
	w, ok := p.desired.lookup(t)
	like := w.value == string(message.Payload) && w.version == versionOf(message)
	if ok && !like && message.Retain {
		p.recordUnlike(t)
	}
	switch {
	case !ok:
	case like:
		p.backlog.markInSync(t)
	case p.backlog.isTouched(t):
		// the message may be older than a change that the broker has acknowledged
		p.backlog.push(t)
	case message.Retain && !p.backlog.isPending(t) && p.wasPublished(t, w.version):
		p.backlog.markInSync(t) // so that it does not also count as missing
		p.count(&p.unretained)
	case p.backlog.push(t) && message.Retain:
		p.recordQueued(t, w.version)
		p.count(&p.stale)
	}
}

// forgetPending removes the corrections that the broker has not acknowledged from queuedVersions:
// what it sends in this pass may be older.
func (p *pass) forgetPending() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.queuedVersions,
		func(t topic, _ string) bool { return p.backlog.isPending(t) })
}

func (p *pass) count(number *int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*number++
}

// wasPublished reports whether a pass of this comparison has queued this version to be published,
// and the key has not changed since the comparison began. If the topic is not pending any more, the
// broker has acknowledged the version.
func (p *pass) wasPublished(t topic, version string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	published, is := p.queuedVersions[t]
	return is && published == version && !p.backlog.isTouched(t)
}

// recordQueued records the version that this pass has queued for a topic, for wasPublished.
func (p *pass) recordQueued(t topic, version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queuedVersions) < maxVerified {
		p.queuedVersions[t.clone()] = version
	}
}
