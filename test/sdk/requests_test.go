package sdk

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/protocol/hlc"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
)

const (
	nx  = statestore.NotExists
	nex = statestore.NotExistsOrEqual
)

func expiry(d time.Duration) statestore.WithExpiry { return statestore.WithExpiry(d) }

func fenced(v hlc.HybridLogicalClock) statestore.WithFencingToken {
	return statestore.WithFencingToken(v)
}

// stamp returns a timestamp of a hybrid logical clock (HLC): the time of the wall clock plus d.
func stamp(t *testing.T, d time.Duration, node string) hlc.HybridLogicalClock {
	t.Helper()
	return must[hlc.HybridLogicalClock](t)(hlc.New().Parse("test",
		fmt.Sprintf("%d:0:%s", time.Now().Add(d).UnixMilli(), node)))
}

func TestSetIsReadUntilDel(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	key := unique("k")

	if g := p.get(ctx, key); g.Value != "" || !g.Version.IsZero() {
		t.Errorf("GET of a missing key: %+v", g)
	}
	if d := p.del(ctx, key); d.Value != 0 || !d.Version.IsZero() {
		t.Errorf("DEL of a missing key: %+v", d)
	}
	s1 := p.set(ctx, key, "one")
	if s1.Version.IsZero() || !strings.HasSuffix(s1.Version.String(), ":StateStore") {
		t.Errorf("version of a SET: %v", s1.Version)
	}
	if g := p.get(ctx, key); g.Value != "one" || g.Version.Compare(s1.Version) != 0 {
		t.Errorf("GET: %+v, want one at %v", g, s1.Version)
	}
	s2 := p.set(ctx, key, "two")
	if s2.Version.Compare(s1.Version) <= 0 {
		t.Errorf("versions do not grow: %v, then %v", s1.Version, s2.Version)
	}
	if d := p.del(ctx, key); d.Value != 1 || d.Version.Compare(s2.Version) != 0 {
		t.Errorf("DEL: %+v, want 1 at %v", d, s2.Version)
	}
	if g := p.get(ctx, key); !g.Version.IsZero() {
		t.Errorf("GET after DEL: %+v", g)
	}
	// An empty value is not a missing one.
	s3 := p.set(ctx, key, "")
	if g := p.get(ctx, key); g.Value != "" || g.Version.Compare(s3.Version) != 0 {
		t.Errorf("GET of an empty value: %+v", g)
	}
}

func TestVDelDeletesOnlyTheValueThatItNames(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	key := unique("k")

	if v := p.vdel(ctx, key, "x"); v.Value != 0 || !v.Version.IsZero() {
		t.Errorf("VDEL of a missing key: %+v", v)
	}
	s := p.set(ctx, key, "x")
	if v := p.vdel(ctx, key, "y"); v.Value != -1 || v.Version.Compare(s.Version) != 0 {
		t.Errorf("VDEL with another value: %+v, want -1 at %v", v, s.Version)
	}
	if g := p.get(ctx, key); g.Value != "x" {
		t.Errorf("after VDEL with another value: %+v", g)
	}
	if v := p.vdel(ctx, key, "x"); v.Value != 1 || v.Version.Compare(s.Version) != 0 {
		t.Errorf("VDEL: %+v, want 1 at %v", v, s.Version)
	}
	if g := p.get(ctx, key); !g.Version.IsZero() {
		t.Errorf("after VDEL: %+v", g)
	}
}

func TestConditionsOfSetAreObeyed(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	key := unique("k")
	skipped := func(what string, at hlc.HybridLogicalClock, val string,
		opt ...statestore.SetOption,
	) {
		t.Helper()
		r := must[*statestore.Response[bool]](t)(p.kv.Set(ctx, key, val, opt...))
		if r.Value || r.Version.Compare(at) != 0 {
			t.Errorf("%s: %+v, want false at %v", what, r, at)
		}
	}

	s1 := p.set(ctx, key, "a", nx)
	skipped("NX on a key that exists", s1.Version, "b", nx)
	skipped("NX on a key that exists, equal", s1.Version, "a", nx)
	skipped("NEX with another value", s1.Version, "b", nex)
	skipped("NEX PX with another value", s1.Version, "b", nex, expiry(time.Minute))
	s2 := p.set(ctx, key, "a", nex)
	if s2.Version.Compare(s1.Version) <= 0 {
		t.Errorf("NEX: version %v after %v", s2.Version, s1.Version)
	}
	s3 := p.set(ctx, key, "a", statestore.WithCondition(nex), expiry(time.Minute))
	skipped("NX PX", s3.Version, "b", nx, expiry(time.Minute))
	if g := p.get(ctx, key); g.Value != "a" || g.Version.Compare(s3.Version) != 0 {
		t.Errorf("at the end: %+v", g)
	}
	p.del(ctx, key)
	p.set(ctx, key, "c", nex)
	p.del(ctx, key)
	p.set(ctx, key, "d", nx, expiry(time.Minute))
}

func TestExpiredKeyIsAbsent(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	gone, kept, renewed, watched := unique("gone"), unique("kept"), unique("renewed"),
		unique("watched")

	q := p.watch(ctx, watched)
	p.set(ctx, gone, "x", expiry(time.Second))
	p.set(ctx, kept, "x", expiry(time.Second))
	p.set(ctx, kept, "y") // removes the expiry
	p.set(ctx, renewed, "x", expiry(time.Second))
	p.set(ctx, renewed, "x", nex, expiry(time.Minute))
	start := time.Now()
	s := p.set(ctx, watched, "x", expiry(time.Second))
	if g := p.get(ctx, gone); g.Value != "x" {
		t.Errorf("before the expiry: %+v", g)
	}
	if n := next(ctx, t, q); n.Operation != "SET" || n.Value != "x" {
		t.Fatalf("first notification: %+v", n)
	}
	n := next(ctx, t, q)
	took := time.Since(start)
	if n.Operation != "DELETE" || n.Value != "" || n.Version.Compare(s.Version) != 0 {
		t.Errorf("notification of the expiry: %+v, want DELETE at %v", n, s.Version)
	}
	if took < 995*time.Millisecond {
		t.Errorf("PX 1000 expired after %v", took)
	}
	t.Logf("PX 1000 was notified after %v", took)
	for _, key := range []string{watched, gone} {
		if g := p.get(ctx, key); !g.Version.IsZero() {
			t.Errorf("GET after the expiry: %+v", g)
		}
		if d := p.del(ctx, key); d.Value != 0 {
			t.Errorf("DEL after the expiry: %+v", d)
		}
	}
	p.set(ctx, watched, "again", nx)
	for _, key := range []string{kept, renewed} {
		if g := p.get(ctx, key); g.Version.IsZero() {
			t.Errorf("%s has expired too", key)
		}
	}
}

func TestBinaryAndLargeValuesComeBack(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	var all strings.Builder
	for i := range 256 {
		all.WriteByte(byte(i))
	}
	for name, key := range map[string]string{
		"every byte": unique("") + all.String(),
		"topic":      unique("a/+/#/$SYS"),
		"crlf":       unique("\r\n$3\r\nGET\r\n"),
		"unicode":    unique("schlüssel ☃"),
		"long":       unique("") + strings.Repeat("k", 20_000),
	} {
		t.Run(name, func(t *testing.T) {
			val := key + all.String()
			q := p.watch(ctx, key)
			s := p.set(ctx, key, val)
			if g := p.get(ctx, key); g.Value != val || g.Version.Compare(s.Version) != 0 {
				t.Errorf("value differs")
			}
			if n := next(ctx, t, q); n.Key != key || n.Value != val ||
				n.Version.Compare(s.Version) != 0 {
				t.Errorf("notification differs")
			}
			if v := p.vdel(ctx, key, val); v.Value != 1 {
				t.Errorf("VDEL %+v", v)
			}
			if n := next(ctx, t, q); n.Key != key || n.Operation != "DELETE" {
				t.Errorf("second notification %+v", n)
			}
		})
	}

	for _, size := range []int{100_000, 1 << 20, 4 << 20} {
		if !fits(p, size+4096) {
			t.Logf("values of %d bytes: larger than the broker's packets", size)
			break
		}
		key, val := unique("large"), strings.Repeat("v", size-1)+"!"
		p.set(ctx, key, val)
		if p.get(ctx, key).Value != val {
			t.Errorf("value of %d bytes differs", size)
		}
		p.del(ctx, key)
	}

	// The same with []byte as the library's key and value types.
	kv, err := statestore.New[[]byte, []byte](p.app, p.sess)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Start(ctx); err != nil {
		t.Fatal(err)
	}
	key := []byte(unique("bytes"))
	if r, err := kv.Set(ctx, key, []byte{}); err != nil || !r.Value {
		t.Fatal(r, err)
	}
	if r, err := kv.Get(ctx, key); err != nil || r.Value == nil || len(r.Value) != 0 {
		t.Errorf("GET of empty bytes: %+v %v", r, err)
	}
	p.del(ctx, string(key))
	if r, err := kv.Get(ctx, key); err != nil || r.Value != nil {
		t.Errorf("GET of no bytes: %+v %v", r, err)
	}
}

// fits reports whether the broker accepts packets of n bytes. The SDK does not
// check that. The broker would disconnect it with 0x95, after which the SDK
// does not connect again.
func fits(p *peer, n int) bool {
	p.wire.mu.Lock()
	defer p.wire.mu.Unlock()
	limit := p.wire.connacks[0].Properties.MaximumPacketSize
	return limit == nil || int(*limit) >= n
}

func TestConcurrentRequestsGetTheirOwnReplies(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	key := unique("counter")
	var wg sync.WaitGroup
	var mu sync.Mutex
	versions := map[string]bool{}
	for i := range 200 {
		wg.Go(func() {
			own := key + strconv.Itoa(i)
			for _, k := range []string{own, key} {
				r, err := p.kv.Set(ctx, k, own)
				if err != nil || !r.Value {
					t.Errorf("SET: %+v %v", r, err)
					return
				}
				mu.Lock()
				if v := r.Version.String(); versions[v] {
					t.Errorf("version %s was given twice", v)
				} else {
					versions[v] = true
				}
				mu.Unlock()
			}
			if g, err := p.kv.Get(ctx, own); err != nil || g.Value != own {
				t.Errorf("GET: %+v %v", g, err)
			}
		})
	}
	wg.Wait()
}
