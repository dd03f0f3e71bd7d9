package mirror

import (
	"log/slog"
	"sync"
	"time"
)

// progress is how far the leader is with the mirrors: what Status shows. It is safe for concurrent
// use.
type progress struct {
	backlog *backlog
	metrics *Metrics
	log     *slog.Logger

	mu            sync.Mutex
	leading       bool
	hasConnection bool // there is a connection
	// there is no connection, or the comparison has not ended, or another one is wanted
	comparing bool
	// when comparing became true or the last comparison succeeded, whichever is later; zero without
	// mirrors. See Status.Lag
	since       time.Time
	resyncs     uint64     // how many times resync was called
	resyncsSeen uint64     // resyncs when the last comparison began
	lastFound   comparison // result of the last comparison that has succeeded
	// messages found missing and stale since this node leads, or since the last resync
	corrected comparison
	ended     time.Time // when the last comparison succeeded
	// why there is no connection, or why the last comparison failed; empty otherwise
	fault         string
	loggedRefused bool // it was logged that the broker refuses topics
	loggedUnshown bool // it was logged that keys make no valid topic
}

// maxInSyncLag bounds Status.Lag while the mirrors count as in sync: younger changes need no
// acknowledgement yet.
const maxInSyncLag = time.Second

// status returns what the Mirror is doing. mirrored says that mirrors are in force.
func (p *progress) status(mirrored bool) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.leading {
		return Status{}
	}
	if !mirrored {
		return Status{Leading: true, Connected: true, InSync: true}
	}
	s := Status{
		Leading: true, Connected: p.hasConnection, Comparing: p.comparing, Keys: p.lastFound.keys,
		Unshown: p.lastFound.unshown, Missing: p.corrected.missing,
		Stale: p.corrected.stale, Blind: p.lastFound.blind, Dropped: p.lastFound.dropped,
		Unretained: p.lastFound.unretained, Refused: p.backlog.refusedCount(), Fault: p.fault,
	}
	s.Topics, s.Lag = p.backlog.lag()
	if (!s.Connected || s.Comparing) && !p.since.IsZero() {
		s.Lag = max(s.Lag, time.Since(p.since))
	}
	s.InSync = s.Connected && !s.Comparing && !s.Dropped && s.Refused+s.Unretained == 0 &&
		s.Lag < min(maxInSyncLag, time.Since(p.ended))
	return s
}

// beginIdle records that no mirror is in force: there is nothing to compare.
func (p *progress) beginIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since, p.comparing, p.resyncsSeen, p.lastFound, p.fault = time.Time{}, false, p.resyncs,
		comparison{}, ""
}

// endIdle records that there may be mirrors.
func (p *progress) endIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.markComparingLocked()
}

// countInvalidTopic counts a key that is not published because its topic is invalid
// (topic.isValid). It logs the first one.
func (p *progress) countInvalidTopic(t topic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.leading {
		return
	}
	p.metrics.countPublished(resultSkipped)
	if !p.loggedUnshown {
		p.loggedUnshown = true
		p.log.Warn("a key of a mirror makes no topic that brokers take: it is not shown", "topic",
			t.String())
	}
}

// resync implements Mirror.Resync.
func (p *progress) resync() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.leading {
		return false
	}
	p.resyncs++
	p.corrected = comparison{}
	p.backlog.retryNow()
	if p.hasConnection { // otherwise the next connection begins with a comparison
		p.markComparingLocked()
		signal(p.backlog.recompare)
	}
	return true
}

// connected records that a connection has begun, and opens the backlog for it. prefixes are what
// the topics of mirrors begin with.
func (p *progress) connected(prefixes []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hasConnection, p.fault = true, ""
	p.markComparingLocked()
	p.backlog.begin(prefixes)
}

// disconnected closes the backlog, and records that the connection has ended. suspect says that a
// topic in flight may have ended the connection.
func (p *progress) disconnected(suspect bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backlog.end(suspect)
	p.hasConnection = false
	p.markComparingLocked()
}

// markComparingLocked records that a comparison is due or under way. It does not start one.
func (p *progress) markComparingLocked() {
	if !p.comparing {
		p.comparing, p.since = true, time.Now()
	}
}

// warnRefused logs the first topic that the broker refuses.
func (p *progress) warnRefused(t topic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.loggedRefused {
		p.loggedRefused = true
		p.log.Warn("the broker refuses retained messages of mirrors: do its access rules let nodes publish there?", "topic", t.String())
	}
}

// beginLeading records that this node leads, and forgets what an earlier leadership found.
func (p *progress) beginLeading() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leading, p.comparing, p.since, p.lastFound, p.corrected, p.fault = true, true, time.Now(),
		comparison{}, comparison{}, ""
	p.loggedRefused, p.loggedUnshown = false, false
	p.backlog.reset()
}

func (p *progress) endLeading() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leading = false
}

// beginComparison records that a comparison is under way.
func (p *progress) beginComparison() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resyncsSeen = p.resyncs
	p.markComparingLocked()
}

// endComparison records what a comparison has found that has succeeded.
func (p *progress) endComparison(found comparison) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastFound, p.ended, p.since, p.fault = found, time.Now(), time.Now(), ""
	p.comparing = p.resyncsSeen != p.resyncs
	if found.unshown > 0 && !p.loggedUnshown {
		p.loggedUnshown = true
		p.log.Warn("some keys of mirrors make no topic that brokers take: they are not shown",
			"keys", found.unshown)
	}
}

// addCorrected counts what one pass of a comparison has corrected, also if the pass or the
// comparison failed after that.
func (p *progress) addCorrected(found comparison) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.corrected.missing += found.missing
	p.corrected.stale += found.stale
}

// setFault records why there is no connection, or why a comparison failed.
func (p *progress) setFault(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = err.Error()
}
