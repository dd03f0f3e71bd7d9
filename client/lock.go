package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/backoff"
)

// ErrLockLost says that a lock was not renewed in time: somebody else may hold it now.
var ErrLockLost = errors.New("the lock was lost")

// Lock is a lock that this client holds, as far as it knows. A process that was paused, or whose
// machine was suspended, may notice late that its lock expired. Pass Fence(lock.Token()) to each
// write that the lock protects: a key then refuses such a write after a later holder has set the
// key with its own token.
type Lock struct {
	client *Client
	name   string
	holder []byte
	ttl    time.Duration
	token  Version

	lost    chan struct{}
	stop    context.CancelFunc
	stopped chan struct{}
	// has room for one, and is full while an Unlock is under way; it guards the fields below
	unlocking chan struct{}
	released  bool
	// releaseErr is what Unlock returns once released is set: nil or ErrLockLost.
	releaseErr error
}

// TryLock acquires a lock if it is free or has the same holder, and renews it from then on. The
// error is ErrNotApplied if the lock has another holder, and ErrNotExecuted if ttl is below 1 ms;
// otherwise it is as for Set. If the answer took longer than ttl, Lost is closed when TryLock
// returns. The Lock keeps holder, which must not be changed.
func (c *Client) TryLock(ctx context.Context, name string, holder []byte, ttl time.Duration) (*Lock,
	error,
) {
	if ttl < time.Millisecond {
		return nil, fmt.Errorf("%w: lock %q: the time to live is %v: must be at least 1ms",
			ErrNotExecuted, name, ttl)
	}
	asked := now()
	token, err := c.Set(ctx, name, holder, IfAbsentOrSame(), Expire(ttl))
	if err != nil {
		return nil, err
	}
	l := &Lock{
		client: c, name: name, holder: holder, ttl: ttl, token: token,
		lost: make(chan struct{}), stopped: make(chan struct{}), unlocking: make(chan struct{}, 1),
	}
	running, stop := context.WithCancel(c.running)
	l.stop = stop
	if asked.elapsed() >= ttl { // known before the caller begins its work
		stop()
		close(l.lost)
		close(l.stopped)
		return l, nil
	}
	go l.renew(running, asked)
	return l, nil
}

// isLost reports whether Lost is closed.
func (l *Lock) isLost() bool {
	select {
	case <-l.lost:
		return true
	default:
		return false
	}
}

// Token returns the fencing token: the version of the lock when it was acquired.
func (l *Lock) Token() Version { return l.token }

// Lost returns a channel that is closed when another client may have the lock, and when the client
// was closed. Unlock does not close it.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// renew renews the lock until it is stopped or lost. It counts the time to live from the moment at
// which the last successful request was sent, which is never later than the moment at which the
// store applied it.
func (l *Lock) renew(ctx context.Context, renewedAt moment) {
	defer close(l.stopped)
	defer l.stop()
	defer func() {
		if l.client.running.Err() != nil && !l.isLost() { // nothing renews it any more
			close(l.lost)
		}
	}()
	const (
		renewals = 3 // per time to live
		// the least timeout of an attempt, unless the time to live ends first
		minTimeout = 2 * time.Second
	)
	for {
		if !pauseUntil(ctx, renewedAt, l.ttl/renewals) {
			return
		}
		for {
			sentAt, left := now(), l.ttl-renewedAt.elapsed()
			if left <= 0 {
				// the lock may have expired, and another client may have had it: a renewal now
				// would acquire it anew
				close(l.lost)
				return
			}
			attempt, cancel := context.WithTimeout(ctx, min(left, max(l.ttl/renewals, minTimeout)))
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
			if !backoff.Pause(ctx, min(l.ttl/10, lockRetry, l.ttl-renewedAt.elapsed())) {
				return
			}
		}
	}
}

// Unlock ends the renewal and releases the lock. The error is ErrLockLost if this client did not
// have the lock any more, or Lost was closed before. After nil or ErrLockLost, later calls return
// the same. After any other error Unlock may be called again; otherwise the lock expires. If a call
// returns ErrOutcomeUnknown and the next one ErrLockLost, the first one may have released the lock.
func (l *Lock) Unlock(ctx context.Context) error {
	select {
	case l.unlocking <- struct{}{}:
		defer func() { <-l.unlocking }()
	case <-ctx.Done():
		return fmt.Errorf("unlock: %w: %w", ErrNotExecuted, ctx.Err())
	}
	if l.released {
		return l.releaseErr
	}
	l.stop()
	<-l.stopped
	_, err := l.client.VDel(ctx, l.name, l.holder)
	lost := errors.Is(err, ErrNotApplied) || errors.Is(err, ErrNotFound)
	if err != nil && !lost {
		return fmt.Errorf("unlock: %w", err)
	}
	l.released = true
	if lost || l.isLost() {
		l.releaseErr = fmt.Errorf("unlock: %w", ErrLockLost)
	}
	return l.releaseErr
}
