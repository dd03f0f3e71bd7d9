package broker

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

const (
	// maxKicks is how many publishers may wait to be disconnected. One that finds the queue full
	// stays connected.
	maxKicks = 64
	// kickTimeout bounds one call of a Driver's Kick.
	kickTimeout = time.Second
)

// Kicker disconnects misbehaving clients, one after the other, while requests go on. It is safe for
// concurrent use.
type Kicker struct {
	driver Driver
	count  func(result string)
	log    *slog.Logger
	kicks  chan Publisher
}

// NewKicker returns a Kicker that is not running yet. It calls count with the result for each
// publisher: done, unsupported, failed (also where the end of Run interrupts it), dropped (the
// queue was full), or untrusted (there is no client id, or the broker does not vouch for it). Those
// that wait when Run ends are not counted.
func NewKicker(driver Driver, count func(result string), log *slog.Logger) *Kicker {
	return &Kicker{driver: driver, count: count, log: log, kicks: make(chan Publisher, maxKicks)}
}

// Run disconnects publishers until the context ends.
func (k *Kicker) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case publisher := <-k.kicks:
			k.count(k.kick(ctx, publisher))
		}
	}
}

// Kick queues a publisher to be disconnected, and does not wait for that. A publisher that the
// broker does not vouch for stays connected: a forged client id must not disconnect another client.
func (k *Kicker) Kick(publisher Publisher) {
	if publisher.ClientID == "" || !k.driver.TrustedIdentity() {
		k.count("untrusted")
		return
	}
	select {
	case k.kicks <- publisher:
	default:
		k.count("dropped")
	}
}

func (k *Kicker) kick(ctx context.Context, publisher Publisher) (result string) {
	ctx, cancel := context.WithTimeout(ctx, kickTimeout)
	defer cancel()
	switch err := k.driver.Kick(ctx, publisher); {
	case err == nil:
		return "done"
	case errors.Is(err, ErrUnsupported):
		k.log.Info("a misbehaving client stays connected: the driver cannot disconnect it",
			"reason", err)
		return "unsupported"
	default:
		k.log.Warn("disconnecting a misbehaving client failed", "error", err)
		return "failed"
	}
}
