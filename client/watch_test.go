package client_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/testwait"
)

// Each loss of the connection is reported, also when no key changes in between. A loss may be
// reported more than once: at the reconnect, and when the watch is made anew.
func TestEachLossOfTheConnectionIsAGap(t *testing.T) {
	p := startProxy(t)
	c := connect(t, func(config *client.Config) { config.Addresses = []string{p.Address()} })
	watcher, err := c.Watch(t.Context(), "gaps")
	if err != nil {
		t.Fatal(err)
	}
	for loss := range 3 {
		p.Cut()
		if _, err := c.Set(t.Context(), "unrelated", nil); err != nil { // the connection is back
			t.Fatal(err)
		}
		select {
		case event := <-watcher.Events():
			if event.Kind != client.EventGap {
				t.Fatalf("%+v", event)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("loss %d was not told", loss+1)
		}
		for quiet := false; !quiet; { // further gaps, as when the watch is made anew
			select {
			case event := <-watcher.Events():
				if event.Kind != client.EventGap {
					t.Fatalf("after a gap: %+v", event)
				}
			case <-time.After(300 * time.Millisecond):
				quiet = true
			}
		}
	}
}

// The client renews its watches at intervals, which restores a watch that an operator ended. The
// watcher gets no event for a renewal.
func TestWatchesAreRenewed(t *testing.T) {
	c := connect(t, func(config *client.Config) { config.WatchRenewal = 50 * time.Millisecond })
	watcher, err := c.Watch(t.Context(), "renewed")
	if err != nil {
		t.Fatal(err)
	}
	endWatches(t, c.ID())
	testwait.Within(t, 10*time.Second, "the watch is renewed",
		func() bool { return watches(c.ID()) })
	if len(watcher.Events()) > 0 {
		t.Errorf("a renewal is told: %+v", <-watcher.Events())
	}
	if _, err := c.Set(t.Context(), "renewed", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if event := <-watcher.Events(); string(event.Value) != "v" {
		t.Errorf("%+v", event)
	}
}

// A receiver that is too slow gets an EventGap, also when nothing changes after that.
func TestGapOfAWatchIsReported(t *testing.T) {
	c := connect(t, func(config *client.Config) { config.WatchBuffer = 2 })
	watcher, err := c.Watch(t.Context(), "gap")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if _, err := c.Set(t.Context(), "gap", []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	var kinds []client.EventKind
	for len(kinds) < 3 {
		select {
		case event := <-watcher.Events():
			kinds = append(kinds, event.Kind)
		case <-time.After(10 * time.Second):
			t.Fatalf("%v, and nothing more", kinds)
		}
	}
	if kinds[2] != client.EventGap {
		t.Errorf("%v", kinds)
	}
}

// A watch that begins while an older one of the same key is being closed stays in place.
func TestClosingAWatchKeepsANewerOne(t *testing.T) {
	c := connect(t)
	for i := range 50 {
		old, err := c.Watch(t.Context(), "rewatch")
		if err != nil {
			t.Fatal(err)
		}
		var closing sync.WaitGroup
		closing.Go(func() { _ = old.Close(t.Context()) })
		newer, err := c.Watch(t.Context(), "rewatch")
		if err != nil {
			t.Fatal(err)
		}
		closing.Wait()
		value := fmt.Sprint(i)
		seen := false
		for deadline := time.Now().Add(10 * time.Second); !seen && time.Now().Before(deadline); {
			if _, err := c.Set(t.Context(), "rewatch", []byte(value)); err != nil {
				// again in each round, because a gap may hide the first SET
				t.Fatal(err)
			}
			select {
			case event := <-newer.Events():
				seen = string(event.Value) == value
			case <-time.After(200 * time.Millisecond):
			}
		}
		if !seen {
			t.Fatalf("round %d: the newer watch is deaf", i)
		}
		if err := newer.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The watcher of a pattern receives the changes of all keys that match, also if another watcher
// watches one of these keys.
func TestWatcherOfAPatternReceivesAllMatches(t *testing.T) {
	c, ctx := connect(t), t.Context()
	all, err := c.Watch(ctx, "globbed/*/on", client.Glob())
	if err != nil {
		t.Fatal(err)
	}
	one, err := c.Watch(ctx, "globbed/1/on")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"globbed/1/on", "globbed/1/off", "globbed/2/on"} {
		if _, err := c.Set(ctx, key, []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"globbed/1/on", "globbed/2/on"} {
		if e := <-all.Events(); e.Key != want || e.Kind != client.EventSet {
			t.Errorf("%+v, want %s", e, want)
		}
	}
	if e := <-one.Events(); e.Key != "globbed/1/on" {
		t.Errorf("%+v", e)
	}
	if err := all.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Del(ctx, "globbed/1/on"); err != nil {
		t.Fatal(err)
	}
	if e := <-one.Events(); e.Kind != client.EventDeleted {
		t.Errorf("after the end of the other: %+v", e)
	}
	if e, open := <-all.Events(); open {
		t.Errorf("after Close: %+v", e)
	}
	if _, err := c.Watch(ctx, "[", client.Glob()); !errors.Is(err, client.ErrNotExecuted) {
		t.Errorf("a malformed pattern: %v", err)
	}
}

// † The store may have ended a watch whose renewal it refused. When it accepts the next one, the
// watcher gets an EventGap.
func TestRefusedRenewalIsAGap(t *testing.T) {
	var watches atomic.Int32
	topic := "stand-in/" + t.Name()
	standIn(t, topic, func([]byte) string {
		if watches.Add(1) == 2 {
			return "-ERR the service is overloaded; try again\r\n"
		}
		return answerOK
	})
	c, err := client.Connect(t.Context(),
		client.Config{
			Addresses: []string{broker}, ClientID: t.Name(), InvokeTopic: topic,
			WatchRenewal: 200 * time.Millisecond,
		})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	w, err := c.Watch(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-w.Events():
		if e.Kind != client.EventGap {
			t.Errorf("%+v", e)
		}
	case <-time.After(15 * time.Second):
		t.Errorf("no gap after %d KEYNOTIFYs", watches.Load())
	}
}
