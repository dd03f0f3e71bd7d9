package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrLockLost says that a lock was not renewed in time: somebody else may hold it now.
var ErrLockLost = errors.New("the lock was lost")

// Lock is a lock that this client holds, as far as it knows. A lock alone is no proof: a client that writes under it sends its Token
// along with Fence, so that the store refuses what comes late.
type Lock struct {
	client *Client
	name   string
	holder []byte
	ttl    time.Duration
	token  Version

	lost     chan struct{}
	stop     context.CancelFunc
	stopped  chan struct{}
	mu       sync.Mutex
	released bool
}

// Lock waits until it has the lock of this name, at most until the context ends, and renews it from then on. If this client dies, the
// lock expires ttl after the last renewal that the store executed, by cluster time, which stands still while there is no leader. If the context ends,
// the error wraps ErrNotApplied, if another client had the lock, ErrNotExecuted or ErrOutcomeUnknown; after the last the lock may be held until it expires.
func (c *Client) Lock(ctx context.Context, name string, ttl time.Duration) (*Lock, error) {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	holder := []byte(c.config.ClientID + ":" + hex.EncodeToString(random))
	lock, err := c.attempt(ctx, name, holder, ttl)
	if !shouldRetry(ctx, err) {
		return lock, err
	}
	watcher, err := c.Watch(ctx, name)
	for shouldRetry(ctx, err) && pause(ctx, lockRetry) {
		watcher, err = c.Watch(ctx, name)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.config.Timeout)
		defer cancel()
		_ = watcher.Close(closing) // a watch that stays costs a few notifications
	}()
	for {
		lock, err := c.attempt(ctx, name, holder, ttl)
		if !shouldRetry(ctx, err) {
			return lock, err
		}
		if !errors.Is(err, ErrNotApplied) { // the lock may be free; asking again under the same holder's name is safe
			if !pause(ctx, lockRetry) {
				return nil, err
			}
			continue
		}
		if err := untilFree(ctx, watcher, ttl); err != nil {
			return nil, err
		}
	}
}

// lockRetry is the pause after an attempt that did not tell whether another client has the lock.
const lockRetry = 100 * time.Millisecond

// attempt tries to take a lock, for no longer than a command may take.
func (c *Client) attempt(ctx context.Context, name string, holder []byte, ttl time.Duration) (*Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	return c.TryLock(ctx, name, holder, ttl)
}

// shouldRetry reports whether Lock tries again: another client has the lock, the store is overloaded, or one attempt brought no answer.
func shouldRetry(ctx context.Context, err error) bool {
	return errors.Is(err, ErrNotApplied) || (ctx.Err() == nil && (errors.Is(err, ErrOverloaded) ||
		errors.Is(err, context.DeadlineExceeded) || (errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrClosed))))
}

// untilFree waits for a sign that a lock may be free: its deletion, a gap in what is known of it, or a long time.
func untilFree(ctx context.Context, watcher *Watcher, ttl time.Duration) error {
	timer := time.NewTimer(max(ttl, time.Second))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrNotApplied, ctx.Err())
		case <-timer.C:
			return nil
		case event, ok := <-watcher.Events():
			if !ok {
				return errors.Join(ErrNotApplied, watcher.Err())
			}
			if event.Kind != EventSet {
				return nil
			}
		}
	}
}

// TryLock takes a lock if it is free or held under the same holder's name, and renews it from then on. The error is
// ErrNotApplied when somebody else has it.
func (c *Client) TryLock(ctx context.Context, name string, holder []byte, ttl time.Duration) (*Lock, error) {
	if ttl < time.Millisecond {
		return nil, fmt.Errorf("lock %q: the time to live is %v: must be at least 1ms", name, ttl)
	}
	asked := time.Now()
	token, err := c.Set(ctx, name, holder, IfAbsentOrSame(), Expire(ttl))
	if err != nil {
		return nil, err
	}
	l := &Lock{client: c, name: name, holder: holder, ttl: ttl, token: token, lost: make(chan struct{}), stopped: make(chan struct{})}
	running, stop := context.WithCancel(context.Background())
	l.stop = stop
	go l.renew(running, asked)
	return l, nil
}

// Token returns the fencing token: the version of the lock when it was taken.
func (l *Lock) Token() Version { return l.token }

// Lost is closed when another client may have the lock. Unlock ends the renewal, and with it the watch over the lock: Lost is not closed after that.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// renew renews the lock until it is stopped or lost. The time to live counts from when the last successful request was sent, not
// from when its answer came: the store may have applied it that early.
func (l *Lock) renew(ctx context.Context, renewedAt time.Time) {
	defer close(l.stopped)
	const (
		renewals       = 3 // per time to live
		attemptTimeout = 2 * time.Second
	)
	for {
		if !pause(ctx, time.Until(renewedAt.Add(l.ttl/renewals))) {
			return
		}
		for {
			sentAt := time.Now()
			deadline := renewedAt.Add(l.ttl)
			if !sentAt.Before(deadline) { // the lock may have expired, and another client may have had it: a renewal now would acquire it anew
				close(l.lost)
				return
			}
			if soon := sentAt.Add(max(l.ttl/renewals, attemptTimeout)); soon.Before(deadline) {
				deadline = soon
			}
			attempt, cancel := context.WithDeadline(ctx, deadline)
			_, err := l.client.Set(attempt, l.name, l.holder, IfAbsentOrSame(), Expire(l.ttl))
			cancel()
			if err == nil {
				renewedAt = sentAt
				break
			}
			if ctx.Err() != nil {
				return
			}
			if errors.Is(err, ErrNotApplied) {
				close(l.lost)
				return
			}
			if !pause(ctx, min(l.ttl/10, lockRetry, time.Until(renewedAt.Add(l.ttl)))) {
				return
			}
		}
	}
}

// Unlock gives the lock back. The error is ErrLockLost when it was not this client's any more. After another error it may be
// tried again; the lock ends by itself, too. After ErrOutcomeUnknown, ErrLockLost may only mean that the first try gave the lock back.
func (l *Lock) Unlock(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released {
		return nil
	}
	l.stop()
	<-l.stopped
	_, err := l.client.VDel(ctx, l.name, l.holder)
	lost := errors.Is(err, ErrNotApplied) || errors.Is(err, ErrNotFound)
	if err != nil && !lost {
		return fmt.Errorf("unlock: %w", err)
	}
	l.released = true
	select {
	case <-l.lost:
		lost = true
	default:
	}
	if lost {
		return fmt.Errorf("unlock: %w", ErrLockLost)
	}
	return nil
}
