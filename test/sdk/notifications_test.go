package sdk

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/protocol/hlc"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
)

func TestChangesOfAKeyAreNotified(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p, other := dial(ctx, t, peerOptions{}), dial(ctx, t, peerOptions{})
	key, unwatched := unique("k"), unique("u")
	q := p.watch(ctx, key)
	want := func(op, val string, v hlc.HybridLogicalClock) {
		t.Helper()
		n := next(ctx, t, q)
		if n.Key != key || n.Operation != op || n.Value != val || n.Version.Compare(v) != 0 ||
			n.Ack != nil {
			t.Errorf("got %+v, want %s %q at %v", n, op, val, v)
		}
	}

	other.set(ctx, unwatched, "x")
	s := other.set(ctx, key, "one")
	want("SET", "one", s.Version)
	s = p.set(ctx, key, "two") // the writer hears of it too
	want("SET", "two", s.Version)
	if r := must[*statestore.Response[bool]](t)(other.kv.Set(ctx, key, "x", nx)); r.Value {
		t.Error("NX was applied")
	}
	other.vdel(ctx, key, "x")
	s = other.set(ctx, key, "two", nex)
	want("SET", "two", s.Version)
	other.vdel(ctx, key, "two")
	want("DELETE", "", s.Version)
	other.del(ctx, key)
	s = other.set(ctx, key, "")
	want("SET", "", s.Version)
	other.del(ctx, key)
	want("DELETE", "", s.Version)
	s = other.set(ctx, key, "three", expiry(200*time.Millisecond))
	want("SET", "three", s.Version)
	want("DELETE", "", s.Version)

	// After STOP nothing comes any more, and nothing came twice.
	if err := p.kv.KeyNotifyStop(ctx, key); err != nil {
		t.Fatal(err)
	}
	other.set(ctx, key, "unheard")
	other.del(ctx, key)
	p.awaitDelivery(ctx)
	if l := p.wire.received(notifyTopic(p.id, key)); len(l) != 8 || len(q) != 0 {
		t.Errorf("%d notifications on the wire, %d too many in the channel", len(l), len(q))
	}
	if l := p.wire.received(notifyTopic(p.id, unwatched)); len(l) != 0 {
		t.Errorf("%d notifications of a key that nobody watches", len(l))
	}
	other.wire.mu.Lock()
	defer other.wire.mu.Unlock()
	for _, m := range other.wire.in {
		if !strings.HasSuffix(m.Topic, "/response") {
			t.Errorf("the other client got %s", m.Topic)
		}
	}
}

// KEYNOTIFY twice is one watch; the SDK counts and sends STOP for the last.
func TestNotifyIsIdempotent(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	key := unique("k")
	p.watch(ctx, key)
	p.watch(ctx, key)
	p.set(ctx, key, "one")
	if err := p.kv.KeyNotifyStop(ctx, key); err != nil { // sends nothing
		t.Fatal(err)
	}
	p.set(ctx, key, "two")
	if err := p.kv.KeyNotifyStop(ctx, key); err != nil {
		t.Fatal(err)
	}
	p.set(ctx, key, "three")
	p.awaitDelivery(ctx)
	if l := p.wire.received(notifyTopic(p.id, key)); len(l) != 2 {
		t.Errorf("%d notifications, want 2", len(l))
	}
	if err := p.kv.KeyNotify(ctx, key); err != nil { // a new watch
		t.Fatal(err)
	}
	p.set(ctx, key, "four")
	p.awaitDelivery(ctx)
	if l := p.wire.received(notifyTopic(p.id, key)); len(l) != 3 {
		t.Errorf("%d notifications, want 3", len(l))
	}
}

// Two state store clients on one MQTT client are one watcher to the store. The
// second STOP is answered :0, which the SDK takes for success.
func TestSecondStopIsASuccess(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	key := unique("k")
	kv, err := statestore.New[string, string](p.app, p.sess)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Start(ctx); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*client{p.kv, kv} {
		if err := c.KeyNotify(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []*client{p.kv, kv} {
		if err := c.KeyNotifyStop(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	if _, rep, _ := p.wire.reply(ctx, t,
		blob("KEYNOTIFY", key, "STOP")); string(rep.Payload) != ":0\r\n" {
		t.Errorf("second STOP: %q", rep.Payload)
	}
	p.set(ctx, key, "x")
	p.awaitDelivery(ctx)
	if l := p.wire.received(notifyTopic(p.id, key)); len(l) != 0 {
		t.Errorf("%d notifications", len(l))
	}
}

// Notifications arrive in the order in which their changes were applied. (The
// SDK's channels do not keep that order.)
func TestNotificationsComeInOrder(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	writers := []*peer{dial(ctx, t, peerOptions{}), dial(ctx, t, peerOptions{}), p}
	keys := []string{unique("k"), unique("k"), unique("k")}
	for _, k := range keys {
		p.watch(ctx, k)
	}
	const each = 100
	var wg sync.WaitGroup
	for w, wr := range writers {
		wg.Go(func() {
			for i := range each {
				if _, err := wr.kv.Set(ctx, keys[(w+i)%3], fmt.Sprint(w, i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	p.awaitDelivery(ctx)
	p.wire.mu.Lock()
	defer p.wire.mu.Unlock()
	var last hlc.HybridLogicalClock
	var got int
	for _, m := range p.wire.in {
		for _, k := range keys {
			if m.Topic != notifyTopic(p.id, k) {
				continue
			}
			got++
			v := must[hlc.HybridLogicalClock](t)(hlc.New().Parse("ts", props(t, m)["__ts"]))
			if v.Compare(last) <= 0 {
				t.Errorf("%v came after %v", v, last)
			}
			last = v
		}
	}
	if got != each*len(writers) {
		t.Errorf("%d notifications, want %d", got, each*len(writers))
	}
}

// A client that also subscribes to its notification topic gets each
// notification once.
func TestSubscribedClientGetsEachNotificationOnce(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	key := unique("k")
	q := p.watch(ctx, key)
	p.subscribe(ctx)
	s := p.set(ctx, key, "x")
	if n := next(ctx, t, q); n.Version.Compare(s.Version) != 0 {
		t.Errorf("%+v", n)
	}
	p.awaitDelivery(ctx)
	if l := p.wire.received(notifyTopic(p.id, key)); len(l) != 1 {
		t.Errorf("%d notifications, want 1", len(l))
	}
}

// The client id goes into topics as Base16, and into __srcId as it is.
func TestAnyClientIDIsServed(t *testing.T) {
	t.Parallel()
	for _, id := range []string{
		"line 7/press:2", "Größe_☃", "UPPER.lower",
		strings.Repeat("x", 100),
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			ctx := testCtx(t)
			if os.Getenv("HOLDFAST_CLIENT_PREFIX") != "" {
				id = strings.ReplaceAll(id, "/", "_") // such a broker takes no '/' in client ids
			}
			p := dial(ctx, t, peerOptions{id: unique(id)})
			key := unique("k")
			q := p.watch(ctx, key)
			s := p.set(ctx, key, "x")
			if n := next(ctx, t, q); n.Value != "x" || n.Version.Compare(s.Version) != 0 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// A notification that the application does not acknowledge holds back all
// later PUBACKs of the client (paho sends them in order), also those for
// replies. The replies must arrive nevertheless.
func TestUnacknowledgedNotificationsHoldNoReplyBack(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{kv: []statestore.ClientOption{statestore.WithManualAck(true)}})
	key := unique("k")
	q := p.watch(ctx, key)
	p.set(ctx, key, "x")
	n := next(ctx, t, q)
	if n.Ack == nil {
		t.Fatal("nothing to acknowledge with")
	}
	for i := range 100 {
		p.set(ctx, key+"/other", strconv.Itoa(i))
	}
	n.Ack()
	if g := p.get(ctx, key+"/other"); g.Value != "99" {
		t.Errorf("%+v", g)
	}
}
