package sdk

import (
	"strings"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/protocol/hlc"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
)

// After a reconnect the SDK resumes its session. (If the broker has lost it,
// the SDK gives up for good.) Then it sends KEYNOTIFY for each watched key
// again, and makes up a notification from the reply to a GET.
func TestReconnectWatchesAgain(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p, other := dial(ctx, t, peerOptions{}), dial(ctx, t, peerOptions{})
	key, dead := unique("k"), unique("dead")
	q, qd := p.watch(ctx, key), p.watch(ctx, dead)
	until := func(q <-chan note, op, val string) {
		t.Helper()
		for {
			if n := next(ctx, t, q); n.Operation == op && n.Value == val {
				return
			}
		}
	}
	p.set(ctx, key, "before")
	p.set(ctx, dead, "before")
	until(q, "SET", "before")
	until(qd, "SET", "before")

	hold := make(chan struct{})
	p.cut(hold)
	p.await(ctx, p.down, "the disconnect event")
	other.set(ctx, key, "while away")
	other.del(ctx, dead)
	close(hold)
	p.await(ctx, p.up, "the connect event")
	until(q, "SET", "while away")
	until(qd, "DELETE", "")
	if g := p.get(ctx, key); g.Value != "while away" {
		t.Errorf("GET after the reconnect: %+v", g)
	}
	// Both watches are in force again: the SDK's handler has come to its end.
	other.set(ctx, key, "after")
	until(q, "SET", "after")
	other.set(ctx, dead, "after")
	until(qd, "SET", "after")

	p.wire.mu.Lock()
	defer p.wire.mu.Unlock()
	last := p.wire.connects[len(p.wire.connects)-1]
	if last.CleanStart || !p.wire.connacks[len(p.wire.connacks)-1].SessionPresent {
		t.Error("the session was not resumed")
	}
}

// A request that was executed, but whose PUBACK and reply the client never
// saw, is sent again with the same correlation data: it takes effect once.
func TestResentRequestTakesEffectOnce(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p, watcher := dial(ctx, t, peerOptions{}), dial(ctx, t, peerOptions{})
	key := unique("k")
	q := watcher.watch(ctx, key)

	for _, c := range []struct {
		val string
		opt []statestore.SetOption
	}{
		{"once", []statestore.SetOption{nx}},
		{"twice", nil},
		{"lock", []statestore.SetOption{expiry(time.Minute)}},
	} {
		type result struct {
			r   *statestore.Response[bool]
			err error
		}
		done := make(chan result, 1)
		p.deafen()
		go func() {
			r, err := p.kv.Set(ctx, key, c.val, c.opt...)
			done <- result{r, err}
		}()
		n := next(ctx, t, q) // it has been executed
		p.cut(nil)
		p.await(ctx, p.up, "the connect event")
		res := next(ctx, t, done)
		if res.err != nil || !res.r.Value || res.r.Version.Compare(n.Version) != 0 {
			t.Errorf("%s: %+v %v, want true at %v", c.val, res.r, res.err, n.Version)
		}
		// On the wire: sent twice, answered alike each time.
		var corr []string
		p.wire.mu.Lock()
		for _, m := range p.wire.out {
			if strings.Contains(string(m.Payload), blob("SET", key, c.val)[4:]) {
				// without the count
				corr = append(corr, string(m.Properties.CorrelationData))
				if dup := len(corr) > 1; m.Duplicate != dup {
					t.Errorf("%s: DUP is %v in request %d", c.val, m.Duplicate, len(corr))
				}
			}
		}
		var replies int
		for _, m := range p.wire.in {
			if string(m.Properties.CorrelationData) == corr[0] {
				replies++
				if v := props(t, m)["__ts"]; string(m.Payload) != "+OK\r\n" ||
					must[hlc.HybridLogicalClock](t)(hlc.New().Parse("ts",
						v)).Compare(n.Version) != 0 {
					t.Errorf("%s: answered %q at %s, want +OK at %v", c.val, m.Payload, v,
						n.Version)
				}
			}
		}
		p.wire.mu.Unlock()
		if len(corr) != 2 || corr[0] != corr[1] || replies == 0 {
			t.Errorf("%s: sent %x, %d replies", c.val, corr, replies)
		}
		watcher.awaitDelivery(ctx)
		if len(q) != 0 {
			t.Errorf("%s: %d more notifications: it was executed again", c.val, len(q))
		}
		if g := watcher.get(ctx, key); g.Version.Compare(n.Version) != 0 {
			t.Errorf("%s: the version is %v, was %v", c.val, g.Version, n.Version)
		}
	}
	if l := watcher.wire.received(notifyTopic(watcher.id, key)); len(l) != 3 {
		t.Errorf("%d notifications on the wire, want 3", len(l))
	}
}
