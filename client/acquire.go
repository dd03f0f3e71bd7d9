package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/backoff"
)

// Lock waits until it has acquired the lock of this name, at most until the context ends, and
// renews it from then on. If this client dies, the lock expires ttl after the last renewal that the
// store executed, by cluster time, which stands still while there is no leader.
//
// The error wraps the reason why Lock gave up: the context's error, ErrClosed, ErrRefused, or a
// ServerError. The store gave the ServerError for the SET that acquires the lock, or for the
// KEYNOTIFY that watches it. The error also says whether this client may have the lock:
//   - ErrOutcomeUnknown: an attempt may have acquired the lock. It is not renewed, and expires by
//     itself.
//   - ErrNotApplied: this client does not have the lock. Another client had it at the last attempt.
//   - neither: this client does not have the lock. The store executed no attempt, or refused the
//     last SET or KEYNOTIFY.
func (c *Client) Lock(ctx context.Context, name string, ttl time.Duration) (*Lock, error) {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	a := &acquisition{
		client: c, name: name,
		holder: []byte(c.config.ClientID + ":" + hex.EncodeToString(random)), ttl: ttl,
	}
	lock, err := a.attempt(ctx)
	if !shouldRetry(ctx, err) {
		return lock, a.failure(err)
	}
	watcher, err := a.watch(ctx)
	for shouldRetry(ctx, err) && backoff.Pause(ctx, lockRetry) {
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
		if !errors.Is(err, ErrNotApplied) {
			// the lock may be free; another attempt with the same holder is safe
			if !backoff.Pause(ctx, lockRetry) {
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
	// known is what the attempts have shown. It is ErrOutcomeUnknown if an attempt may have
	// acquired the lock. It is ErrNotApplied if another client had the lock at the last attempt
	// that the store executed. It is nil if the store executed no attempt.
	known error
}

// attempt tries to acquire the lock, and waits for the answer for at most Config.Timeout. After
// ErrNotApplied no earlier attempt holds the lock: the store executes the requests of a client in
// the order in which they were sent.
func (a *acquisition) attempt(ctx context.Context) (*Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, a.client.config.Timeout)
	defer cancel()
	lock, err := a.client.TryLock(ctx, a.name, a.holder, a.ttl)
	if err == nil && lock.isLost() {
		lock, err = nil, fmt.Errorf("%w: the answer arrived after the lock's time to live",
			ErrOutcomeUnknown)
	}
	switch {
	case errors.Is(err, ErrOutcomeUnknown), errors.Is(err, ErrProtocol):
		a.known = ErrOutcomeUnknown
	case errors.Is(err, ErrNotApplied):
		a.known = ErrNotApplied
	}
	return lock, err
}

// watch watches the lock, and waits for the answer for at most Config.Timeout.
func (a *acquisition) watch(ctx context.Context) (*Watcher, error) {
	ctx, cancel := context.WithTimeout(ctx, a.client.config.Timeout)
	defer cancel()
	return a.client.Watch(ctx, a.name)
}

// failure returns the error of Lock. cause is why Lock gave up: the error of an attempt, of the
// watch, or of the context.
func (a *acquisition) failure(cause error) error {
	switch {
	case cause == nil:
		return nil
	case a.known != nil && (a.known == ErrOutcomeUnknown || !isPermanent(cause)):
		return &lockError{known: a.known, cause: cause}
	case errors.Is(cause, ErrOutcomeUnknown):
		// known is nil, so no SET was executed: the outcome of a KEYNOTIFY is unknown
		return &lockError{known: ErrNotExecuted, cause: cause}
	default:
		return cause
	}
}

// lockError is an error of Lock. Of ErrNotExecuted, ErrNotApplied and ErrOutcomeUnknown, errors.Is
// finds only known, even if cause wraps another one: that is about a KEYNOTIFY, or about one of
// several attempts. All other errors are looked up in cause.
type lockError struct{ known, cause error }

// Error implements error.
func (e *lockError) Error() string {
	if errors.Is(e.cause, e.known) { // the text of cause has that of known already
		return fmt.Sprintf("lock: %v", e.cause)
	}
	return fmt.Sprintf("lock: %v: %v", e.known, e.cause)
}

// As finds an error of cause.
func (e *lockError) As(target any) bool { return errors.As(e.cause, target) }

// Is implements the rule of lockError.
func (e *lockError) Is(target error) bool {
	switch target {
	case ErrNotExecuted, ErrNotApplied, ErrOutcomeUnknown:
		return target == e.known
	default:
		return errors.Is(e.cause, target)
	}
}

// lockRetry is the pause after an attempt whose result does not say whether another client has the
// lock.
const lockRetry = 100 * time.Millisecond

// shouldRetry reports whether Lock goes on after an error: another client has the lock; or the
// context has not ended, and the store is overloaded or did not answer in time.
func shouldRetry(ctx context.Context, err error) bool {
	return errors.Is(err, ErrNotApplied) || (ctx.Err() == nil && (errors.Is(err, ErrOverloaded) ||
		errors.Is(err, ErrNoStore) ||
		errors.Is(err, context.DeadlineExceeded) ||
		(errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrClosed))))
}

// untilFree returns nil when a lock may be free: its key was deleted, changes may have been missed,
// or max(ttl, 1 s) has passed. The time bound is for an expiry without an event. ttl is the time to
// live that this client asks for; the holder's may differ.
func untilFree(ctx context.Context, watcher *Watcher, ttl time.Duration) error {
	timer := time.NewTimer(max(ttl, time.Second))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case event, ok := <-watcher.Events():
			if !ok {
				return watcher.Err()
			}
			if event.Kind != EventSet {
				return nil
			}
		}
	}
}
