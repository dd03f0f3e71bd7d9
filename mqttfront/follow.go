package mqttfront

import (
	"context"
	"time"
)

// Requests may come by one session of the whole cluster instead of one of each node (Config.FollowLeader): the broker delivers each once
// only, to whoever leads. A request is acknowledged when it is answered, so the broker has what the leader has not answered, and gives it
// to the next one, together with what came while nobody led. Deduplication tells what had its effect. A node that leads no longer lets
// go of everything.

// leaderID is the client id of the session that follows the leader: the same on every node.
func (f *Front) leaderID() string { return f.config.Cluster + "-ingest" }

// follow keeps the session that follows the leader connected, while this node leads. Who is confirmed as the leader connects, whoever has
// the session: another node that believes to lead is wrong. So nobody who is not confirmed may, else the two would throw each other out.
func (f *Front) follow(ctx context.Context) {
	session := &brokerSession{clientID: f.leaderID(), follows: true, requests: true, probes: newProber(f, "holdfast/"+f.config.Cluster+"/probe", true, f.store.Wall)}
	f.setFollowing(false)
	defer f.endFollowing()
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
		if f.setFollowing(false) {
			f.world.Metrics.ingestLosses.Inc()
			if time.Since(began) > steady {
				delay = f.config.BackoffMin
			}
		}
		f.world.Log.Warn("the session that follows the leader is not up", "client", session.clientID, "error", err)
		if !isTakenOver(err) {
			f.world.Dialer.Next()
		}
		f.pause(ctx, delay)
		delay = min(2*delay, f.config.BackoffMax)
	}
}

// setFollowing notes whether the session that follows the leader is up, and returns whether it was.
func (f *Front) setFollowing(up bool) (wasUp bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wasUp = f.unfollowed.IsZero()
	switch {
	case up:
		f.heardFollowing()
		f.unfollowed = time.Time{}
	case wasUp:
		f.unfollowed = time.Now()
	}
	return wasUp
}

// heardFollowing notes that something came by the session that follows the leader.
func (f *Front) heardFollowing() { f.followingHeard.Store(int64(time.Since(f.started))) }

// endFollowing notes that this node need not have the session any more.
func (f *Front) endFollowing() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unfollowed = time.Time{}
}

// letGo forgets a request that the broker still has. f.mu is held.
func (f *Front) letGo(r *request) {
	r.done = func() {}
	f.end(r)
}
