package mqttfront

import (
	"context"
	"log/slog"
	"time"

	"holdfast/mqttfront/ingest"
)

const (
	// sessionWait bounds how long publishing waits for the node's own session. It is well below the time after which a leader without its broker
	// hands over, because publishing is down meanwhile.
	sessionWait = time.Second
	// sessionWaitStep is the interval at which await checks whether a request waits for room.
	sessionWaitStep = 50 * time.Millisecond
)

// sessionAwaiter makes publishing wait for the node's own session.
type sessionAwaiter struct {
	barrier *ingest.Barrier
	blocked func() bool // whether a request waits for room; then no probe is read, and room comes from publishing alone
	without func()      // counts that publishing goes on without the session
	log     *slog.Logger
}

// await waits for sessionWait at most, until a probe that was sent no earlier than moment has returned. It ends early when a request waits for room.
func (a *sessionAwaiter) await(ctx context.Context, moment time.Time) {
	waiting, cancel := context.WithTimeout(ctx, sessionWait)
	defer cancel()
	for !a.barrier.HasReached(moment) && waiting.Err() == nil && !a.blocked() {
		step, cancel := context.WithTimeout(waiting, sessionWaitStep)
		a.barrier.Await(step, moment)
		cancel()
	}
	if !a.barrier.HasReached(moment) && ctx.Err() == nil {
		a.without()
		a.log.Warn("publishing without this node's own session: a client that sends a request again now may get no reply")
	}
}
