package broker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fakeDriver vouches for client ids. Its Kick never returns in time. SubscribeNotifications returns
// made and err.
type fakeDriver struct {
	NoDriver
	kicked  chan Publisher
	watch   func(context.Context, func(Disconnect)) error
	made    bool
	err     error
	filters chan string
}

func (fakeDriver) TrustedIdentity() bool { return true }

func (d fakeDriver) Kick(ctx context.Context, publisher Publisher) error {
	d.kicked <- publisher
	<-ctx.Done()
	return ctx.Err()
}

func (d fakeDriver) WatchDisconnects(ctx context.Context, disconnected func(Disconnect)) error {
	return d.watch(ctx, disconnected)
}

func (d fakeDriver) SubscribeNotifications(_ context.Context, clientID, filter string) (bool,
	error,
) {
	d.filters <- clientID + " " + filter
	return d.made, d.err
}

// counter counts results.
type counter struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *counter) count(result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[result]++
}

func (c *counter) of(result string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[result]
}

// Kick does not wait for the broker, however slow it is and however many clients are to be
// disconnected. A client that finds the queue full stays connected.
func TestKickerDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver, results := fakeDriver{kicked: make(chan Publisher, 1000)}, counter{}
		k := NewKicker(driver, results.count, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go k.Run(ctx)
		began := time.Now()
		for range 10 * maxKicks {
			k.Kick(Publisher{ClientID: "robot"})
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("waited for %v", waited)
		}
		time.Sleep(2 * maxKicks * kickTimeout) // in virtual time
		kicked := len(driver.kicked)
		if kicked == 0 || kicked > maxKicks+1 || results.of("failed") != kicked ||
			results.of("dropped") != 10*maxKicks-kicked {
			t.Errorf("%d kicked: %v", kicked, results.counts)
		}
	})
}

func TestKickerLeavesForgedIdentitiesAlone(t *testing.T) {
	for name, test := range map[string]struct {
		driver    Driver
		publisher Publisher
	}{
		"the broker vouches for nobody":   {NoDriver{}, Publisher{ClientID: "robot"}},
		"the broker knows no id for this": {fakeDriver{}, Publisher{Username: "robot"}},
	} {
		t.Run(name, func(t *testing.T) {
			var results counter
			k := NewKicker(test.driver, results.count, slog.New(slog.DiscardHandler))
			k.Kick(test.publisher)
			if results.of("untrusted") != 1 || len(k.kicks) != 0 {
				t.Errorf("%v, %d queued", results.counts, len(k.kicks))
			}
		})
	}
}

// A node that does not lead keeps the latest disconnects.
func TestFeedKeepsTheLatest(t *testing.T) {
	const many = maxDisconnects + 10
	driver := fakeDriver{watch: func(ctx context.Context, disconnected func(Disconnect)) error {
		for i := range many {
			disconnected(Disconnect{Time: int64(i)})
		}
		<-ctx.Done()
		return nil
	}}
	synctest.Test(t, func(t *testing.T) {
		dropped := 0
		f := NewFeed(driver, func(context.Context) {}, func() { dropped++ },
			slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		go f.Run(ctx)
		synctest.Wait()
		cancel()
		synctest.Wait()
		if first := <-f.Disconnects(); first.Time != many-maxDisconnects ||
			dropped != many-maxDisconnects {
			t.Errorf("the oldest is %d, %d dropped", first.Time, dropped)
		}
	})
}

// lineCounter counts the lines of a log.
type lineCounter struct{ lines atomic.Int64 }

func (c *lineCounter) Write(line []byte) (int, error) {
	c.lines.Add(1)
	return len(line), nil
}

// A failure is logged once, and again after the feed has worked.
func TestFeedLogsEachOutageOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		driver := fakeDriver{watch: func(ctx context.Context, _ func(Disconnect)) error {
			if attempts++; attempts == 4 {
				time.Sleep(2 * healthyWatch) // in virtual time
			}
			return errors.New("connection refused")
		}}
		var logged lineCounter
		f := NewFeed(driver, func(context.Context) { time.Sleep(time.Second) }, func() {},
			slog.New(slog.NewTextHandler(&logged, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		go f.Run(ctx)
		for want, after := range []time.Duration{10 * time.Second, 3 * healthyWatch} {
			time.Sleep(after)
			synctest.Wait()
			if got := logged.lines.Load(); got != int64(want+1) {
				t.Errorf("%d lines, want %d", got, want+1)
			}
		}
		cancel()
		time.Sleep(2 * time.Second)
		synctest.Wait()
	})
}

// Err returns the last failure until it is older than the given duration, also while the feed works
// again.
func TestFeedReportsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// of the first attempts
		failures := []error{errors.New("connection refused"), errors.New("not authorized")}
		var attempts atomic.Int64
		driver := fakeDriver{watch: func(ctx context.Context, _ func(Disconnect)) error {
			if n := int(attempts.Add(1)); n <= len(failures) {
				return failures[n-1]
			}
			<-ctx.Done()
			return nil
		}}
		pause := func(ctx context.Context) {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		f := NewFeed(driver, pause, func() {}, slog.New(slog.DiscardHandler))
		if err := f.Err(time.Minute); err != nil {
			t.Errorf("before the first attempt: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go f.Run(ctx)
		for _, test := range []struct {
			after    time.Duration // since the step before, in virtual time
			attempts int64
			want     error
		}{
			{0, 1, failures[0]},
			{time.Second, 2, failures[1]},
			{30 * time.Second, 3, failures[1]},
			{time.Nanosecond, 3, nil},
		} {
			time.Sleep(test.after)
			synctest.Wait()
			if err := f.Err(30 * time.Second); attempts.Load() != test.attempts ||
				!errors.Is(err, test.want) {
				t.Errorf("after %d attempts, want %d: got %v, want %v", attempts.Load(),
					test.attempts, err, test.want)
			}
		}
		cancel()
		synctest.Wait()
	})
}

func TestSubscriberCallsTheDriver(t *testing.T) {
	for name, test := range map[string]struct {
		made    bool
		err     error
		result  string
		notMade bool
	}{
		"the driver subscribes the client": {true, nil, "made", false},
		"the client has a subscription":    {false, nil, "present", true},
		"the driver cannot do it":          {false, ErrUnsupported, "unsupported", true},
		"the broker fails":                 {false, errors.New("503"), "failed", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				driver, results := fakeDriver{
					made: test.made, err: test.err,
					filters: make(chan string, 1),
				}, counter{}
				s := NewSubscriber(driver, results.count, slog.New(slog.DiscardHandler))
				ctx, cancel := context.WithCancel(t.Context())
				go s.Run(ctx)
				notMade := false
				if !s.Subscribe(Subscription{
					ClientID: "a", Filter: "f",
					NotMade: func() { notMade = true },
				}) {
					t.Error("refused")
				}
				synctest.Wait()
				if asked := <-driver.filters; asked != "a f" || results.of(test.result) != 1 ||
					notMade != test.notMade {
					t.Errorf("asked for %q, %v, not made: %v", asked, results.counts, notMade)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
	t.Run("without such a driver", func(t *testing.T) {
		if NewSubscriber(NoDriver{}, func(string) {},
			slog.New(slog.DiscardHandler)).Subscribe(Subscription{ClientID: "a"}) {
			t.Error("accepted")
		}
	})
}

// Subscribe does not wait for the broker. Subscriptions that find the queue full are dropped.
func TestSubscriberDropsBeyondItsBound(t *testing.T) {
	var results counter
	s := NewSubscriber(fakeDriver{}, results.count, slog.New(slog.DiscardHandler))
	for range maxSubscriptions + 5 {
		s.Subscribe(Subscription{ClientID: "a"})
	}
	if results.of("dropped") != 5 {
		t.Errorf("%v", results.counts)
	}
}
