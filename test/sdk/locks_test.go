package sdk

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/services/leasedlock"
	sterr "github.com/Azure/iot-operations-sdks/go/services/statestore/errors"
)

func TestLockWaitsForItsHolder(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	for name, release := range map[string]bool{"release": true, "expiry": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testCtx(t)
			a, b := dial(ctx, t, peerOptions{}), dial(ctx, t, peerOptions{})
			key := unique("lock")
			la, lb := leasedlock.NewLock(a.kv, key), leasedlock.NewLock(b.kv, key)
			d := time.Minute
			if !release {
				d = time.Second
			}
			start := time.Now()
			if err := la.Lock(ctx, d); err != nil {
				t.Fatal(err)
			}
			got := make(chan error, 1)
			go func() { got <- lb.Lock(ctx, time.Minute) }()
			b.wire.until(ctx, t, "the refusal", func() bool {
				for _, m := range b.wire.in {
					if string(m.Payload) == ":-1\r\n" {
						return true
					}
				}
				return false
			})
			if release {
				if err := la.Unlock(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if err := next(ctx, t, got); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); !release && took < 995*time.Millisecond {
				t.Errorf("a lock of 1 s was lost after %v", took)
			}
			holder(ctx, t, la.Lease, b.id)
			if err := lb.Unlock(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}

	t.Run("timeout", func(t *testing.T) {
		t.Parallel()
		a, b := dial(ctx, t, peerOptions{}), dial(ctx, t, peerOptions{})
		key := unique("lock")
		if err := leasedlock.NewLock(a.kv, key).Lock(ctx, time.Minute); err != nil {
			t.Fatal(err)
		}
		err := leasedlock.NewLock(b.kv, key).Lock(ctx, time.Minute,
			leasedlock.WithTimeout(5*time.Second))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		// It has stopped watching.
		if _, rep, _ := b.wire.reply(ctx, t,
			blob("KEYNOTIFY", key, "STOP")); string(rep.Payload) != "+OK\r\n" {
			t.Errorf("STOP: %q", rep.Payload)
		}
	})
}

// Clients that add to one number under one lock lose no update.
func TestEditsUnderALockLoseNothing(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	lock, data := unique("lock"), unique("data")
	const clients, each = 4, 5
	var wg sync.WaitGroup
	peers := make([]*peer, clients)
	for i := range peers {
		peers[i] = dial(ctx, t, peerOptions{})
	}
	for _, p := range peers {
		wg.Go(func() {
			l := leasedlock.NewLock(p.kv, lock)
			for range each {
				err := l.Edit(ctx, data, time.Minute,
					func(_ context.Context, v string, ok bool) (string, bool, error) {
						n, _ := strconv.Atoi(v)
						if ok != (n > 0) {
							t.Errorf("edit of %q, present %v", v, ok)
						}
						return strconv.Itoa(n + 1), true, nil
					})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	p := peers[0]
	if g := p.get(ctx, data); g.Value != strconv.Itoa(clients*each) {
		t.Errorf("sum %q, want %d", g.Value, clients*each)
	}
	l := leasedlock.NewLock(p.kv, lock)
	holder(ctx, t, l.Lease, "")

	// What was edited is protected by the lock's token.
	_, err := p.kv.Set(ctx, data, "x")
	wantErr(t, "SET beside the lock", err, sterr.MissingFencingToken)

	// If the callback returns an error, the value stays, and the lock is released.
	oops := errors.New("oops")
	if err := l.Edit(ctx, data, time.Minute,
		func(context.Context, string, bool) (string, bool, error) {
			return "x", true, oops
		}); !errors.Is(err, oops) {
		t.Errorf("got %v", err)
	}
	holder(ctx, t, l.Lease, "")

	// An edit can delete the value. (If there is none, the SDK would loop for ever,
	// leasedlock/lock.go:155.)
	if err := l.Edit(ctx, data, time.Minute,
		func(context.Context, string, bool) (string, bool, error) {
			return "", false, nil
		}); err != nil {
		t.Error(err)
	}
	if g := p.get(ctx, data); !g.Version.IsZero() {
		t.Errorf("after the deletion: %+v", g)
	}
}

// If an edit takes longer than its lease, and the next holder has written, its write is refused.
func TestEditIsFenced(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	a, b := dial(ctx, t, peerOptions{}), dial(ctx, t, peerOptions{})
	lock, data := unique("lock"), unique("data")
	inside, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-inside:
		case <-ctx.Done():
			return
		}
		// waits for the expiry
		if err := leasedlock.NewLock(b.kv, lock).Edit(ctx, data, time.Minute,
			func(context.Context, string, bool) (string, bool, error) {
				return "fast", true,
					nil
			}); err != nil {
			t.Error(err)
		}
	}()
	err := leasedlock.NewLock(a.kv, lock).Edit(ctx, data, 300*time.Millisecond,
		func(context.Context, string, bool) (string, bool, error) {
			close(inside)
			<-finished
			return "slow", true, nil
		})
	wantErr(t, "the slow edit", err, sterr.FencingTokenLowerVersion)
	if g := a.get(ctx, data); g.Value != "fast" {
		t.Errorf("data: %+v", g)
	}
}
