package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// ErrLockLost says that a lock was not renewed in time: somebody else may hold it now.
var ErrLockLost = errors.New("the lock was lost")

// Lock is a lock that this client holds, as far as it knows. A process that was paused may not notice that its lock expired. Pass Fence(lock.Token()) to each
// write that the lock protects: a key then refuses such a write after a later holder has set the key with its own token.
type Lock struct {
	client *Client
	name   string
	holder []byte
	ttl    time.Duration
	token  Version

	lost      chan struct{}
	stop      context.CancelFunc
	stopped   chan struct{}
	unlocking chan struct{} // has room for one, and is full while an Unlock is under way; it guards the fields below
	released  bool
	// releaseErr is what Unlock returns once released is set: nil or ErrLockLost.
	releaseErr error
}

// Lock waits until it has acquired the lock of this name, at most until the context ends, and renews it from then on. If this client dies, the lock
// expires ttl after the last renewal that the store executed, by cluster time, which stands still while there is no leader.
//
// After an error that is ErrOutcomeUnknown, an attempt may have acquired the lock; it is not renewed, and expires by itself. After any other error this
// client does not have the lock: after ErrNotApplied another client had it when the context ended, and a ServerError says why the store refused the SET, or
// the KEYNOTIFY by which Lock waits. A context that ended is found by errors.Is, too.
func (c *Client) Lock(ctx context.Context, name string, ttl time.Duration) (*Lock, error) {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	a := &acquisition{client: c, name: name, holder: []byte(c.config.ClientID + ":" + hex.EncodeToString(random)), ttl: ttl}
	lock, err := a.attempt(ctx)
	if !shouldRetry(ctx, err) {
		return lock, a.failure(err)
	}
	watcher, err := a.watch(ctx)
	for shouldRetry(ctx, err) && pause(ctx, lockRetry) {
		watcher, err = a.watch(ctx)
	}
	if err != nil {
		return nil, a.failure(errors.Join(err, ctx.Err()))
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		watcher.abandonLocked(nil)
	}()
	for {
		lock, err := a.attempt(ctx)
		if !shouldRetry(ctx, err) {
			return lock, a.failure(err)
		}
		if !errors.Is(err, ErrNotApplied) { // the lock may be free; another attempt with the same holder is safe
			if !pause(ctx, lockRetry) {
				return nil, a.failure(errors.Join(err, ctx.Err()))
			}
			continue
		}
		if err := untilFree(ctx, watcher, ttl); err != nil {
			return nil, a.failure(err)
		}
	}
}

// acquisition is one call of Lock. It is not safe for concurrent use.
type acquisition struct {
	client *Client
	name   string
	holder []byte
	ttl    time.Duration
	known  error // ErrOutcomeUnknown if an attempt may have acquired the lock, ErrNotApplied if another client has it, nil if no attempt was executed
}

// attempt tries to acquire the lock, for no longer than a command may take. After ErrNotApplied no earlier attempt holds the lock: the store executes the
// requests of a client in the order in which they were sent.
func (a *acquisition) attempt(ctx context.Context) (*Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, a.client.config.Timeout)
	defer cancel()
	lock, err := a.client.TryLock(ctx, a.name, a.holder, a.ttl)
	if err == nil && lock.isLost() {
		lock, err = nil, fmt.Errorf("%w: the answer arrived after the lock's time to live", ErrOutcomeUnknown)
	}
	switch {
	case errors.Is(err, ErrOutcomeUnknown), errors.Is(err, ErrProtocol):
		a.known = ErrOutcomeUnknown
	case errors.Is(err, ErrNotApplied):
		a.known = ErrNotApplied
	}
	return lock, err
}

// watch watches the lock. It waits for the answer for no longer than a command may take.
func (a *acquisition) watch(ctx context.Context) (*Watcher, error) {
	ctx, cancel := context.WithTimeout(ctx, a.client.config.Timeout)
	defer cancel()
	return a.client.Watch(ctx, a.name)
}

// failure returns the error of Lock. cause is why it gave up, which may be the error of a KEYNOTIFY or of an attempt that was not executed.
func (a *acquisition) failure(cause error) error {
	switch {
	case cause == nil:
		return nil
	case a.known != nil && (a.known == ErrOutcomeUnknown || !isPermanent(cause)):
		return &lockError{known: a.known, cause: cause}
	case errors.Is(cause, ErrOutcomeUnknown): // of a KEYNOTIFY
		return &lockError{known: ErrNotExecuted, cause: cause}
	default:
		return cause
	}
}

// lockError is an error of Lock. Of ErrNotExecuted, ErrNotApplied and ErrOutcomeUnknown, errors.Is finds only the one in the field known, whatever cause
// wraps. Everything else of cause is found by errors.Is and errors.As.
type lockError struct{ known, cause error }

// Error implements error.
func (e *lockError) Error() string { return fmt.Sprintf("lock: %v: %v", e.known, e.cause) }

// As finds an error of cause.
func (e *lockError) As(target any) bool { return errors.As(e.cause, target) }

// Is implements the rule above.
func (e *lockError) Is(target error) bool {
	switch target {
	case ErrNotExecuted, ErrNotApplied, ErrOutcomeUnknown:
		return target == e.known
	default:
		return errors.Is(e.cause, target)
	}
}

// lockRetry is the pause after an attempt whose result does not say whether another client has the lock.
const lockRetry = 100 * time.Millisecond

// shouldRetry reports whether Lock tries again: another client has the lock, the store is overloaded, or one attempt brought no answer.
func shouldRetry(ctx context.Context, err error) bool {
	return errors.Is(err, ErrNotApplied) || (ctx.Err() == nil && (errors.Is(err, ErrOverloaded) ||
		errors.Is(err, context.DeadlineExceeded) || (errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrClosed))))
}

// untilFree returns nil when a lock may be free: it was deleted, changes may have been missed, or ttl, at least a second, has passed. ttl is the
// waiter's; the holder's may differ.
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

// TryLock acquires a lock if it is free or has the same holder, and renews it from then on. The error is ErrNotApplied when the lock has another holder. If
// the answer took longer than ttl, Lost is closed when TryLock returns. The Lock keeps holder, which must not be changed. A ttl below 1 ms is an
// ErrNotExecuted.
func (c *Client) TryLock(ctx context.Context, name string, holder []byte, ttl time.Duration) (*Lock, error) {
	if ttl < time.Millisecond {
		return nil, fmt.Errorf("%w: lock %q: the time to live is %v: must be at least 1ms", ErrNotExecuted, name, ttl)
	}
	asked := time.Now()
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
	if time.Since(asked) >= ttl { // known before the caller begins its work
		stop()
		close(l.lost)
		close(l.stopped)
		return l, nil
	}
	go l.renew(running, asked)
	return l, nil
}

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

// Lost returns a channel that is closed when another client may have the lock, and when the client was closed. It is not closed any more after Unlock.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// renew renews the lock until it is stopped or lost. The time to live counts from when the last successful request was sent, not
// from when its answer came: the store may have applied it that early.
func (l *Lock) renew(ctx context.Context, renewedAt time.Time) {
	defer close(l.stopped)
	defer l.stop()
	defer func() {
		if l.client.running.Err() != nil && !l.isLost() { // nothing renews it any more
			close(l.lost)
		}
	}()
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

// Unlock ends the renewal and releases the lock. The error is ErrLockLost when this client did not have it any more, or Lost was closed before. After nil
// and ErrLockLost, later calls return the same. After any other error Unlock may be called again, or the lock expires. After ErrOutcomeUnknown, an ErrLockLost of the next call may mean that the first call released the lock.
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
