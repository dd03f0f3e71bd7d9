package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/client"
)

// changes collects what a Follower reports.
type changes struct {
	mu   sync.Mutex
	list []string
}

func (c *changes) add(e client.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := fmt.Sprintf("%s=%s", e.Key, e.Value)
	if e.Kind == client.EventDeleted {
		text = e.Key + " deleted"
	}
	c.list = append(c.list, text)
}

func (c *changes) has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, line := range c.list {
		if line == text {
			return true
		}
	}
	return false
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func contents(f *client.Follower) string {
	var all []string
	for key, item := range f.All() {
		all = append(all, fmt.Sprintf("%s=%s", key, item.Value))
	}
	return strings.Join(all, " ")
}

// A copy is complete when Follow returns, and stays so. After a lost connection it brings itself up to date, and reports what was deleted meanwhile.
func TestFollowerOutlivesItsConnection(t *testing.T) {
	other, ctx := connect(t), t.Context()
	set := func(key, value string) {
		if _, err := other.Set(ctx, "followed/"+key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	set("kept", "1")
	set("gone", "1")
	p := startProxy(t)
	c := connect(t, func(config *client.Config) { config.Addresses = []string{p.address()} })
	var seen changes
	f, err := c.Follow(ctx, "followed/*", client.OnChange(seen.add))
	if err != nil {
		t.Fatal(err)
	}
	if got := contents(f); got != "followed/gone=1 followed/kept=1" || !f.Synced() || !seen.has("followed/kept=1") {
		t.Errorf("the first copy is %q, synced %v, reported %q", got, f.Synced(), seen.list)
	}
	set("kept", "2")
	set("another", "1")
	eventually(t, "a change arrives", func() bool { item, _ := f.Get("followed/kept"); return bytes.Equal(item.Value, []byte("2")) })
	p.cut(true)
	eventually(t, "it knows that it may lack changes", func() bool { return !f.Synced() })
	set("new", "1")
	if _, err := other.Del(ctx, "followed/gone"); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.closed = false
	p.mu.Unlock()
	eventually(t, "it is up to date again", f.Synced)
	if got := contents(f); got != "followed/another=1 followed/kept=2 followed/new=1" {
		t.Errorf("after the connection came back: %q", got)
	}
	if !seen.has("followed/gone deleted") || !seen.has("followed/new=1") {
		t.Errorf("reported: %q", seen.list)
	}
	if err := f.Close(ctx); err != nil || f.Synced() || f.Err() != nil {
		t.Errorf("closed: %v, synced %v, %v", err, f.Synced(), f.Err())
	}
	if watches(c.ID()) {
		t.Error("the store still has the watch")
	}
}

// A slow function loses changes, but never the last one of a key: the copy is read again.
func TestSlowFollowerGetsTheLastChange(t *testing.T) {
	ctx := t.Context()
	c := connect(t, func(config *client.Config) { config.WatchBuffer = 1 })
	hold := make(chan struct{})
	first := true
	f, err := c.Follow(ctx, "slow/*", client.OnChange(func(client.Event) {
		if first {
			first = false
			<-hold
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if _, err := c.Set(ctx, "slow/k", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	close(hold)
	eventually(t, "it has the last value", func() bool { item, _ := f.Get("slow/k"); return string(item.Value) == "99" })
	eventually(t, "it knows that it is complete", f.Synced)
	if err := f.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestFollowerEndsWithItsClient(t *testing.T) {
	c := connect(t)
	f, err := c.Follow(t.Context(), "ended/*")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	<-f.Done()
	if err := f.Err(); !errors.Is(err, client.ErrClosed) || f.Synced() {
		t.Errorf("%v, synced %v", err, f.Synced())
	}
	if _, err := c.Follow(t.Context(), "ended/*"); !errors.Is(err, client.ErrClosed) {
		t.Errorf("on a closed client: %v", err)
	}
}
