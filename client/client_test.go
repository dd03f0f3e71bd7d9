package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/tcpproxy"
)

func connect(t *testing.T, change ...func(*client.Config)) *client.Client {
	t.Helper()
	config := client.Config{Addresses: []string{broker}}
	for _, f := range change {
		f(&config)
	}
	c, err := client.Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// startProxy starts a proxy to the broker.
func startProxy(t *testing.T) *tcpproxy.Proxy {
	t.Helper()
	return tcpproxy.Start(t, strings.TrimPrefix(broker, "mqtt://"))
}

func TestRefusalsAreTypedErrors(t *testing.T) {
	c := connect(t)
	ctx := t.Context()
	token, _ := client.ParseVersion("1000:1:x")
	older, _ := client.ParseVersion("1000:0:x")
	future := client.Version{Wall: time.Now().UnixMilli() + 120_000, NodeID: "x"}
	if _, err := c.Set(ctx, "fenced", nil, client.Fence(token)); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		call func() error
		want error
	}{
		"not found": {
			func() error { _, _, err := c.Get(ctx, "nothing"); return err },
			client.ErrNotFound,
		},
		"del nothing": {
			func() error { _, err := c.Del(ctx, "nothing"); return err },
			client.ErrNotFound,
		},
		"vdel nothing": {
			func() error { _, err := c.VDel(ctx, "nothing", nil); return err },
			client.ErrNotFound,
		},
		"not applied": {
			func() error {
				_,
					err := c.VDel(ctx, "fenced", []byte("x"), client.Fence(token))
				return err
			},
			client.ErrNotApplied,
		},
		"token required": {
			func() error { _, err := c.Set(ctx, "fenced", nil); return err },
			client.ErrFencingTokenRequired,
		},
		"token lower": {
			func() error {
				_,
					err := c.Del(ctx, "fenced", client.Fence(older))
				return err
			},
			client.ErrFencingTokenLower,
		},
		"token skew": {
			func() error {
				_,
					err := c.Del(ctx, "fenced", client.Fence(future))
				return err
			},
			client.ErrFencingTokenSkew,
		},
		"empty key": {
			func() error { _, err := c.Set(ctx, "", nil); return err },
			client.ErrEmptyKey,
		},
		"quota": {func() error {
			_,
				err := c.Set(ctx, strings.Repeat("k", 70_000), nil)
			return err
		}, client.ErrQuota},
		"too large": {func() error {
			_,
				err := c.Set(ctx, "k", make([]byte, 30<<20))
			return err
		}, client.ErrNotExecuted},
		"set if version 0": {
			func() error {
				_,
					err := c.Set(ctx, "k", nil, client.IfVersion(client.Version{}))
				return err
			},
			client.ErrNotExecuted,
		},
		"two conditions": {func() error {
			_, err := c.Set(ctx, "k", nil, client.IfVersion(token), client.IfAbsentOrSame())
			return err
		}, client.ErrNotExecuted},
		"del if absent": {func() error {
			_,
				err := c.Del(ctx, "k", client.IfAbsent())
			return err
		}, client.ErrNotExecuted},
		"del with expiry": {
			func() error {
				_,
					err := c.Del(ctx, "k", client.Expire(time.Second))
				return err
			},
			client.ErrNotExecuted,
		},
		"vdel if version": {
			func() error {
				_,
					err := c.VDel(ctx, "k", nil, client.IfVersion(token))
				return err
			},
			client.ErrNotExecuted,
		},
		"vdel with expiry": {
			func() error {
				_,
					err := c.VDel(ctx, "k", nil, client.Expire(time.Second))
				return err
			},
			client.ErrNotExecuted,
		},
		"operation with a condition that it has not": {
			func() error {
				_,
					err := c.Txn(ctx, client.OpVDel("k", nil, client.IfVersion(token)))
				return err
			},
			client.ErrNotExecuted,
		},
		"del if version 0": {
			func() error {
				_,
					err := c.Del(ctx, "k", client.IfVersion(client.Version{}))
				return err
			},
			client.ErrNotExecuted,
		},
		"expire 0": {func() error {
			_,
				err := c.Set(ctx, "k", nil, client.Expire(0))
			return err
		}, client.ErrNotExecuted},
		"lock for no time": {func() error {
			_,
				err := c.TryLock(ctx, "l", []byte("h"), 0)
			return err
		}, client.ErrNotExecuted},
	} {
		t.Run(name, func(t *testing.T) {
			if err := test.call(); !errors.Is(err, test.want) {
				t.Errorf("%v", err)
			}
		})
	}
	var notApplied *client.NotAppliedError
	if _, err := c.Set(ctx, "fenced", nil, client.IfAbsent(), client.Fence(token)); !errors.As(err,
		&notApplied) || notApplied.Version.IsZero() {
		t.Errorf("%v", err)
	}
}

// Compare-and-set by the version notices that a key was set again, also to the same value.
func TestIfVersionRefusesAValueThatCameBack(t *testing.T) {
	c := connect(t)
	ctx := t.Context()
	first, err := c.Set(ctx, "if-version", []byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Set(ctx, "if-version", []byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	var notApplied *client.NotAppliedError
	if _, err := c.Set(ctx, "if-version", []byte("b"), client.IfVersion(first)); !errors.As(err,
		&notApplied) || notApplied.Version != second {
		t.Errorf("SET with an earlier version: %v", err)
	}
	if _, err := c.Del(ctx, "if-version", client.IfVersion(first)); !errors.As(err, &notApplied) ||
		notApplied.Version != second {
		t.Errorf("DEL with an earlier version: %v", err)
	}
	third, err := c.Set(ctx, "if-version", []byte("b"), client.Expire(time.Hour),
		client.IfVersion(second))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Del(ctx, "if-version", client.IfVersion(third)); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if _, err := c.Set(ctx, "if-version", nil, client.IfVersion(third)); !errors.As(err,
		&notApplied) || !notApplied.Version.IsZero() ||
		!strings.Contains(err.Error(), "does not exist") {
		t.Errorf("SET of nothing: %v", err)
	}
}

// A client id works if MQTT allows it and one topic level can hold it. It may have a ':' or be very
// long, which the node id of a timestamp must not.
func TestClientIDNeedNotBeANodeID(t *testing.T) {
	for _, id := range []string{"00:1B:44:11:3A:B7", strings.Repeat("x", 300)} {
		t.Run(id[:2], func(t *testing.T) {
			c := connect(t, func(config *client.Config) { config.ClientID = id })
			if _, err := c.Set(t.Context(), "client-id", []byte("v")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestKeysComeInOrderFromAllPages(t *testing.T) {
	c := connect(t)
	const count = 1500 // more than one page
	var work sync.WaitGroup
	for worker := range 10 {
		work.Go(func() {
			for i := worker; i < count; i += 10 {
				if _, err := c.Set(t.Context(), fmt.Sprintf("scanned/%04d/x", i), nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	n := 0
	for key, err := range c.Keys(t.Context(), "scanned/*/?") {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("scanned/%04d/x", n); key != want {
			t.Fatalf("%s, want %s", key, want)
		}
		n++
	}
	if n != count {
		t.Errorf("%d keys", n)
	}
	for key, err := range c.Keys(t.Context(), "scanned/*") {
		if key != "scanned/0000/x" || err != nil {
			t.Errorf("%s, %v", key, err)
		}
		break
	}
	for key, err := range c.Keys(t.Context(), "[") {
		if key != "" || !errors.Is(err, client.ErrSyntax) {
			t.Errorf("%q, %v", key, err)
		}
	}
}

// A command whose context has already ended is not sent.
func TestCommandWithEndedContextIsNotSent(t *testing.T) {
	c := connect(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 20 {
		if _, err := c.Set(ended, fmt.Sprint("cancelled", i), nil); !errors.Is(err,
			client.ErrNotExecuted) || errors.Is(err, client.ErrOutcomeUnknown) {
			t.Fatalf("%v", err)
		}
	}
	for i := range 20 {
		if _, _, err := c.Get(t.Context(), fmt.Sprint("cancelled", i)); !errors.Is(err,
			client.ErrNotFound) {
			t.Fatalf("it was sent: %v", err)
		}
	}
}

// A command that was given up does not overtake a later one.
func TestGivenUpCommandDoesNotOvertakeALaterOne(t *testing.T) {
	c := connect(t)
	for i := range 200 {
		key := fmt.Sprint("order", i)
		short, cancel := context.WithTimeout(t.Context(), time.Duration(i)*5*time.Microsecond)
		_, _ = c.Set(short, key, []byte("first")) // given up, mostly
		cancel()
		if _, err := c.Set(t.Context(), key, []byte("second")); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 200 {
		if value, _, err := c.Get(t.Context(), fmt.Sprint("order", i)); string(value) != "second" {
			t.Fatalf("round %d: %q, %v", i, value, err)
		}
	}
}

// When connections break, no command fails or takes effect twice, and watches and locks go on.
func TestBrokenConnectionsFailNoCommandAndEndNoWatch(t *testing.T) {
	p := startProxy(t)
	c := connect(t, func(config *client.Config) { config.Addresses = []string{p.Address()} })
	watcher, err := c.Watch(t.Context(), "reconnect")
	if err != nil {
		t.Fatal(err)
	}
	lock, err := c.Lock(t.Context(), "reconnect-lock", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	run := time.Now() // part of the keys: with -count, each run of the test uses the same store
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			// A SET that took effect and is sent again is answered with its own outcome, not with
			// "not applied".
			if _, err := c.Set(t.Context(), fmt.Sprint("once", run, i), nil,
				client.IfAbsent()); err != nil {
				t.Errorf("write %d: %v", i, err)
				return
			}
		}
	})
	for range 5 {
		<-time.After(100 * time.Millisecond)
		p.Cut()
	}
	close(stop)
	writing.Wait()
	if _, err := c.Set(t.Context(), "reconnect", []byte("last")); err != nil {
		t.Fatal(err)
	}
	gap := false
	for event := range watcher.Events() {
		value := event.Value
		if event.Kind == client.EventGap { // what changed until then is only found by reading
			gap = true
			if value, _, err = c.Get(t.Context(), "reconnect"); err != nil &&
				!errors.Is(err, client.ErrNotFound) {
				t.Fatal(err)
			}
		}
		if string(value) == "last" {
			break
		}
	}
	if !gap {
		t.Error("the watcher was not told of a gap")
	}
	if err := lock.Unlock(t.Context()); err != nil {
		t.Errorf("the lock: %v", err)
	}
}

// measureStalls measures, until the test ends, the longest time in which this process did not run.
func measureStalls(t *testing.T) (longest func() time.Duration) {
	const interval = 20 * time.Millisecond
	var most atomic.Int64
	ticker := time.NewTicker(interval)
	done := make(chan struct{})
	var measuring sync.WaitGroup
	measuring.Go(func() {
		for last := time.Now(); ; {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			now := time.Now()
			most.Store(max(most.Load(), int64(now.Sub(last)-interval)))
			last = now
		}
	})
	t.Cleanup(func() {
		ticker.Stop()
		close(done)
		measuring.Wait()
	})
	return func() time.Duration { return max(time.Duration(most.Load()), 0) }
}

// During an outage the client tries to connect at least every 1.5 s. So a SET with the default
// timeout of 10 s survives an outage of 7 s.
func TestReconnectAttemptsStayFrequent(t *testing.T) {
	const most = 1500 * time.Millisecond
	stall := measureStalls(t)
	p := startProxy(t)
	c := connect(t, func(config *client.Config) { config.Addresses = []string{p.Address()} })
	p.Set(tcpproxy.Refusing)
	answered := make(chan error, 1)
	go func() {
		_, err := c.Set(t.Context(), "outage", []byte("survived"))
		answered <- err
	}()
	<-time.After(7 * time.Second) // the outage
	p.Set(tcpproxy.Open)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	attempts := p.Attempts()
	for i := 1; i < len(attempts); i++ {
		if gap := attempts[i].Sub(attempts[i-1]); gap > most+stall() {
			t.Errorf("no attempt for %v, want at most %v, and %v in which this process did not run",
				gap, most, stall())
		}
	}
}

func TestLockIsHeldByOneClient(t *testing.T) {
	a, b := connect(t), connect(t)
	held, err := a.Lock(t.Context(), "lock", 3*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	// longer than the time to live: it is renewed
	short, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if _, err := b.Lock(short, "lock", time.Second); !errors.Is(err, client.ErrNotApplied) {
		t.Errorf("taken twice: %v", err)
	}
	taken := make(chan *client.Lock, 1)
	go func() {
		lock, _ := b.Lock(t.Context(), "lock", 10*time.Second)
		taken <- lock
	}()
	if err := held.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := <-taken
	if second == nil || !held.Token().Before(second.Token()) {
		t.Fatal("the second holder has no newer token")
	}
	if _, err := a.Set(t.Context(), "lock", []byte("thief")); err != nil {
		// a client that ignores the rules
		t.Fatal(err)
	}
	select {
	case <-second.Lost():
	case <-time.After(10 * time.Second):
		t.Error("the loss was not noticed")
	}
	if err := second.Unlock(t.Context()); !errors.Is(err, client.ErrLockLost) {
		t.Errorf("unlock of a lost lock: %v", err)
	}
	if err := second.Unlock(t.Context()); !errors.Is(err, client.ErrLockLost) {
		t.Errorf("unlock of a lost lock, again: %v", err)
	}
	if _, err := a.Del(t.Context(), "lock"); err != nil {
		t.Error(err)
	}
}

// Close ends waiting calls and watches with ErrClosed. A later call is not executed.
func TestCloseEndsWaitingCalls(t *testing.T) {
	p := startProxy(t)
	c := connect(t, func(config *client.Config) { config.Addresses = []string{p.Address()} })
	watcher, err := c.Watch(t.Context(), "close")
	if err != nil {
		t.Fatal(err)
	}
	p.Set(tcpproxy.Refusing)
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Set(t.Context(), "close", nil)
		waiting <- err
	}()
	<-time.After(50 * time.Millisecond)
	_ = c.Close()
	if err := <-waiting; !errors.Is(err, client.ErrClosed) {
		t.Errorf("%v", err)
	}
	for range watcher.Events() {
	}
	if !errors.Is(watcher.Err(), client.ErrClosed) {
		t.Errorf("%v", watcher.Err())
	}
	if _, err := c.Set(t.Context(), "close", nil); !errors.Is(err, client.ErrNotExecuted) ||
		!errors.Is(err, client.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// A wall clock that was wrong for a while does not make every later SET fail.
func TestWallClockComesBack(t *testing.T) {
	var mu sync.Mutex
	offset := int64(3_600_000)
	c := connect(t, func(config *client.Config) {
		config.Wall = func() int64 {
			mu.Lock()
			defer mu.Unlock()
			return time.Now().UnixMilli() + offset
		}
	})
	if _, err := c.Set(t.Context(), "skew", nil); !errors.Is(err, client.ErrTimestampSkew) {
		t.Errorf("%v", err)
	}
	mu.Lock()
	offset = 0
	mu.Unlock()
	if _, err := c.Set(t.Context(), "skew", nil); err != nil {
		t.Errorf("%v", err)
	}
}

// The client uses the first broker that answers, also if other addresses refuse the connection or
// stay silent.
func TestFirstBrokerThatAnswersServes(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	c := connect(t, func(config *client.Config) {
		config.Addresses = []string{"127.0.0.1:1", silent.Addr().String(), broker}
		config.Timeout = 3 * time.Second
	})
	if _, err := c.Set(t.Context(), "several", nil); err != nil {
		t.Error(err)
	}
}
