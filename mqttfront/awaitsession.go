package mqttfront

import (
	"context"
	"log/slog"
	"time"

	"holdfast/mqttfront/ingest"
)

const (
	// sessionWait bounds how long publishing waits for the node's own session. Nothing is published meanwhile, and a leader that cannot publish transfers its
	// leadership after a while. So sessionWait is well below that time.
	sessionWait = time.Second
	// sessionWaitStep is the interval at which await checks whether a request waits for room in the pending request buffer.
	sessionWaitStep = 50 * time.Millisecond
)

// sessionAwaiter makes publishing wait until the node's own session receives requests again (publish.Environment.AwaitSession).
type sessionAwaiter struct {
	barrier             *ingest.Barrier
	blocked             func() bool // whether a request waits for room; then this node reads no probe from the broker, and only publishing makes room
	countWithoutSession func()      // is called each time that publishing goes on without the session
	log                 *slog.Logger
}

// await waits until a probe (a message that this node sends to itself through the broker) has returned that was sent at moment or later. It waits for
// sessionWait at most, and returns early when a request waits for room.
func (a *sessionAwaiter) await(ctx context.Context, moment time.Time) {
	waiting, cancel := context.WithTimeout(ctx, sessionWait)
	defer cancel()
	for !a.barrier.HasReached(moment) && waiting.Err() == nil && !a.blocked() {
		step, cancel := context.WithTimeout(waiting, sessionWaitStep)
		a.barrier.Await(step, moment)
		cancel()
	}
	if !a.barrier.HasReached(moment) && ctx.Err() == nil {
		a.countWithoutSession()
		a.log.Warn("publishing without this node's own session: a client that sends a request again now may get no reply")
	}
}
