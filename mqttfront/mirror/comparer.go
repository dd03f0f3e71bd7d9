package mirror

import (
	"context"
	"sync"
	"time"
)

const (
	// correctionWait is how long a comparison waits for the broker to acknowledge what it has
	// corrected, before it looks once more.
	correctionWait = 30 * time.Second
	// maxPasses bounds the passes of one comparison. Each pass asks the broker for its retained
	// messages once; a broker drops those for which it has no room.
	maxPasses = 20
)

// comparison is the result of a comparison of the retained messages with the state, or of one pass
// of it.
type comparison struct {
	keys    int // number of keys with a mirror
	unshown int // number of these keys whose topic is invalid
	missing int // number of retained messages that the broker lacked
	// number of retained messages that differed from the state, or belonged to no key
	stale      int
	unretained int  // number of messages that the broker acknowledged but does not retain
	blind      bool // the broker does not send what it retains
	dropped    bool // the broker dropped some of what it retains, at the last pass
}

// comparer compares the broker's retained messages with the state, and has the connection publish
// what differs. It belongs to one connection.
type comparer struct {
	config   Config
	env      Environment
	prefixes []string // of the topics of all mirrors
	backlog  *backlog
	desired  *desired
	progress *progress
}

// run compares the retained messages with the state at once, and again for each element of
// backlog.recompare, until the context ends.
func (c *comparer) run(ctx context.Context) {
	for delay := c.env.Backoff(); ctx.Err() == nil; {
		err := c.compare(ctx)
		if err != nil && ctx.Err() == nil {
			c.progress.setFault(err)
			c.env.Log.Warn("the retained messages of mirrors could not be compared with the state, will retry", "client", c.config.comparingID(), "error", err)
			delay.Wait(ctx)
			continue
		}
		delay.Reset()
		select {
		case <-ctx.Done():
		case <-c.backlog.recompare:
		}
	}
}

// compare has the broker send the retained messages, and queues the topics that are missing or
// stale. If the first pass queued any, a second one verifies them when the broker has acknowledged
// them. If the broker drops messages, passes follow as long as they find stale ones: each that is
// cleared makes room for others.
func (c *comparer) compare(ctx context.Context) error {
	c.progress.beginComparison()
	c.backlog.setComparing(true)
	defer c.backlog.setComparing(false)
	var all comparison
	queuedVersions := make(map[topic]string) // version, by topic
	for number := range maxPasses {
		found, err := c.runPass(ctx, queuedVersions)
		if err != nil || ctx.Err() != nil {
			c.progress.addCorrected(found)
			return err
		}
		all.keys, all.unshown, all.blind, all.dropped, all.unretained = found.keys, found.unshown,
			found.blind, found.dropped, found.unretained
		if found.blind { // nothing is known of what is missing
			all.missing, all.unretained = 0, 0
		}
		c.progress.addCorrected(found)
		all.stale += found.stale
		if found.blind {
			break
		}
		all.missing += found.missing
		if found.dropped {
			c.env.Log.Warn("the broker dropped retained messages: let it queue as many bytes for a client as it retains below the mirrors", "stale", found.stale)
		}
		if found.missing+found.stale == 0 || !found.dropped && number > 0 || found.dropped &&
			number > 0 && found.stale == 0 {
			break
		}
		c.awaitCorrections(ctx)
	}
	if all.dropped {
		all.unretained = 0 // that is not known
	}
	c.env.Log.Info("compared the retained messages of mirrors with the state", "keys", all.keys,
		"unshown", all.unshown, "missing", all.missing, "stale", all.stale, "unretained",
		all.unretained)
	if all.blind {
		c.env.Log.Warn("the broker does not send what it retains below the mirrors: topics of keys that were deleted without a connection for mirrors may stay")
	}
	c.backlog.dropSynced()
	c.progress.endComparison(all)
	return nil
}

// awaitCorrections waits until the broker has acknowledged what was queued before the call, for at
// most correctionWait.
func (c *comparer) awaitCorrections(ctx context.Context) {
	moment := time.Now()
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for ctx.Err() == nil && !c.backlog.answeredAllBefore(moment) &&
		time.Since(moment) < correctionWait {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// runPass makes one pass of a comparison, with a connection of its own. It adds the versions that
// it queues to queuedVersions. After an error, found counts what it corrected before.
func (c *comparer) runPass(ctx context.Context, queuedVersions map[topic]string) (found comparison,
	err error,
) {
	p := newPass(c.config.markerTopics(), c.prefixes, c.backlog, c.desired, queuedVersions)
	conn, err := connectToCompare(ctx, c.env.Login, c.config.comparingID(), c.config.MaxPacket,
		p.received)
	if err != nil {
		return found, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { // ends awaitRetained with the connection
		select {
		case <-ctx.Done():
		case <-conn.Done():
			cancel(conn.Err())
		}
	})
	defer watching.Wait()
	defer cancel(nil)
	p.begin()
	refused, err := conn.subscribe(ctx, c.config.markerTopics(), c.prefixes)
	for _, subscription := range refused {
		c.env.Log.Warn("the broker refuses a subscription of mirrors: do its access rules let nodes subscribe there?", "filter", subscription.filter, "reason", subscription.reason)
	}
	if err == nil {
		err = p.awaitRetained(ctx)
	}
	found = p.finish(err == nil, len(refused) > 0)
	c.env.Metrics.corrections.WithLabelValues(reasonMissing).Add(float64(found.missing))
	c.env.Metrics.corrections.WithLabelValues(reasonStale).Add(float64(found.stale))
	return found, err
}
