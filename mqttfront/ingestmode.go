package mqttfront

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"holdfast/internal/mqttconn"
)

// ingestMode is what depends on the sessions by which requests come: one of each node, or one of the cluster that only the leader has
// (Config.FollowLeader). New chooses it once.
type ingestMode interface {
	// ownSession returns the session that a node has whether it leads or not.
	ownSession(f *Front) *brokerSession
	// onlyHolder reports whether no other node has what this one receives. alone says that it is the only member.
	onlyHolder(alone bool) bool
	// followersHold reports whether a node that does not lead holds requests. If not, the broker keeps them until they are answered.
	followersHold() bool
	// begin is called when the node begins to serve, with Front.mu held.
	begin(now time.Time)
	// lead keeps the session connected that only a leader has, if there is one, until the context ends.
	lead(ctx context.Context, f *Front)
	// silence returns for how long nothing has come by the session that only a leader has. It needs Front.mu.
	silence(f *Front, now time.Time) time.Duration
	// ready returns what is wrong with that session, if something is. It needs Front.mu.
	ready(f *Front, now time.Time) error
}

// ingestEverywhere gives each node a session that brings all requests.
type ingestEverywhere struct{}

func (ingestEverywhere) ownSession(f *Front) *brokerSession {
	return f.newOwnSession(true)
}

func (ingestEverywhere) onlyHolder(alone bool) bool { return alone }

func (ingestEverywhere) followersHold() bool { return true }

func (ingestEverywhere) begin(time.Time) {}

func (ingestEverywhere) lead(context.Context, *Front) {}

func (ingestEverywhere) silence(*Front, time.Time) time.Duration { return 0 }

func (ingestEverywhere) ready(*Front, time.Time) error { return nil }

// ingestAtLeader gives the cluster one session, which the leader has. The leader acknowledges a request to the broker when it has
// answered it. The broker delivers all other requests to the next leader. That one finds in the dedup table which of them had their effect. A node
// that no longer leads drops all requests.
type ingestAtLeader struct {
	downSince time.Time // since when the session is down while this node leads; else zero. Front.mu guards it.
	heard     atomic.Int64
}

// ownSession returns a session that only tells whether the broker is there.
func (*ingestAtLeader) ownSession(f *Front) *brokerSession { return f.newOwnSession(false) }

func (*ingestAtLeader) onlyHolder(bool) bool { return true }

func (*ingestAtLeader) followersHold() bool { return false }

func (i *ingestAtLeader) begin(now time.Time) { i.downSince = now }

// lead keeps the session connected. A node connects only when it is confirmed as the leader, whichever node has the session then: that one is wrong
// to believe that it leads. A node that is not confirmed must not connect, else two nodes would take the session from each other again and again.
func (i *ingestAtLeader) lead(ctx context.Context, f *Front) {
	session := &brokerSession{
		clientID: f.leaderID(), follows: true, requests: true, probes: newProber(f, "holdfast/"+f.config.Cluster+"/probe", true, f.store.Wall),
		up: func() { i.setUp(f, true) }, heard: func() { i.hear(f) },
	}
	i.setUp(f, false)
	defer i.end(f)
	delay := f.config.BackoffMin
	for {
		began := time.Now()
		err := f.store.Confirm(ctx)
		if err == nil {
			_, err = f.connectIngest(ctx, session)
		}
		if ctx.Err() != nil {
			return
		}
		if i.setUp(f, false) {
			f.world.Metrics.ingestLosses.Inc()
			if time.Since(began) > steady {
				delay = f.config.BackoffMin
			}
		}
		f.world.Log.Warn("the leader's ingest session is not up", "client", session.clientID, "error", err)
		if !mqttconn.IsTakenOver(err) {
			f.world.Dialer.Next()
		}
		f.pause(ctx, delay)
		delay = min(2*delay, f.config.BackoffMax)
	}
}

// setUp notes whether the session is up, and returns whether it was.
func (i *ingestAtLeader) setUp(f *Front, up bool) (wasUp bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wasUp = i.downSince.IsZero()
	switch {
	case up:
		i.hear(f)
		i.downSince = time.Time{}
	case wasUp:
		i.downSince = time.Now()
	}
	return wasUp
}

// hear notes that the broker sent something by the session.
func (i *ingestAtLeader) hear(f *Front) { i.heard.Store(int64(time.Since(f.started))) }

// end notes that this node need not have the session any more.
func (i *ingestAtLeader) end(f *Front) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i.downSince = time.Time{}
}

func (i *ingestAtLeader) silence(f *Front, now time.Time) time.Duration {
	if !i.downSince.IsZero() {
		return now.Sub(i.downSince)
	}
	return f.quiet(now, &i.heard)
}

func (i *ingestAtLeader) ready(f *Front, now time.Time) error {
	if !i.downSince.IsZero() && now.Sub(i.downSince) > silent {
		return errors.New("broker session: " + f.leaderID() + " is not connected")
	}
	return nil
}

// leaderID is the client id of the session that only the leader has: the same on every node.
func (f *Front) leaderID() string { return f.config.Cluster + "-ingest" }

// release drops a request that the broker still has. It needs Front.mu.
func (f *Front) release(r *request) {
	r.done = func() {}
	f.end(r)
}
