package sdk

import (
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/protocol/hlc"
	"github.com/Azure/iot-operations-sdks/go/services/leasedlock"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
	sterr "github.com/Azure/iot-operations-sdks/go/services/statestore/errors"
)

func TestFencingRefusesOlderTokens(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	key := unique("k")
	t1, t2, t3 := stamp(t, -3*time.Second, "a"), stamp(t, -2*time.Second, "a"),
		stamp(t, -1*time.Second, "a")

	// A key without a token accepts requests with and without one.
	p.set(ctx, key, "x")
	p.del(ctx, key, fenced(t1))
	p.set(ctx, key, "x")
	p.vdel(ctx, key, "x", fenced(t1))

	last := p.set(ctx, key, "x", fenced(t2))
	refused := func(what string, want statestore.ServiceError, tok ...hlc.HybridLogicalClock) {
		t.Helper()
		var s []statestore.SetOption
		var d []statestore.DelOption
		var v []statestore.VDelOption
		for _, x := range tok {
			s, d, v = append(s, fenced(x)), append(d, fenced(x)), append(v, fenced(x))
		}
		_, err := p.kv.Set(ctx, key, "y", s...)
		wantErr(t, what+": SET", err, want)
		_, err = p.kv.Set(ctx, key, "y", append(s, nx)...) // fencing comes before conditions
		wantErr(t, what+": SET NX", err, want)
		_, err = p.kv.Del(ctx, key, d...)
		wantErr(t, what+": DEL", err, want)
		_, err = p.kv.VDel(ctx, key, "x", v...)
		wantErr(t, what+": VDEL", err, want)
		_, err = p.kv.VDel(ctx, key, "other", v...)
		wantErr(t, what+": VDEL other", err, want)
		if g := p.get(ctx, key); g.Value != "x" || g.Version.Compare(last.Version) != 0 {
			t.Errorf("%s: value has changed: %+v", what, g)
		}
	}
	refused("no token", sterr.MissingFencingToken)
	refused("older token", sterr.FencingTokenLowerVersion, t1)

	// A SET that is not applied does not raise the token.
	if r := must[*statestore.Response[bool]](t)(p.kv.Set(ctx, key, "y", nx, fenced(t3))); r.Value {
		t.Error("NX was applied")
	}
	last = p.set(ctx, key, "x", fenced(t2)) // equal passes
	last = p.set(ctx, key, "x", fenced(t3)) // newer passes and raises
	refused("token that was good before", sterr.FencingTokenLowerVersion, t2)

	// Deleting ends the protection.
	p.del(ctx, key, fenced(t3))
	p.set(ctx, key, "x")
	p.del(ctx, key)
	// So does expiry.
	p.set(ctx, key, "x", fenced(t3), expiry(100*time.Millisecond))
	p.passes(ctx, 200*time.Millisecond)
	p.set(ctx, key, "x", fenced(t1))
}

// The case that fencing is for: the lease of A expires, and B acquires it. A
// does not know that, and its writes are refused.
func TestFormerLeaseHolderCannotWrite(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	a, b := dial(ctx, t, peerOptions{}), dial(ctx, t, peerOptions{})
	lock, data := unique("lock"), unique("data")
	la, lb := leasedlock.NewLock(a.kv, lock), leasedlock.NewLock(b.kv, lock)

	if ok, err := la.Acquire(ctx, 300*time.Millisecond); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ta := must[hlc.HybridLogicalClock](t)(la.Token(ctx))
	a.set(ctx, data, "from a", fenced(ta))
	if err := lb.Lock(ctx, time.Minute); err != nil { // woken by the expiry
		t.Fatal(err)
	}
	tb := must[hlc.HybridLogicalClock](t)(lb.Token(ctx))
	if tb.Compare(ta) <= 0 {
		t.Errorf("tokens do not grow: %v, then %v", ta, tb)
	}
	b.set(ctx, data, "from b", fenced(tb))
	_, err := a.kv.Set(ctx, data, "from a again", fenced(ta))
	wantErr(t, "the old holder", err, sterr.FencingTokenLowerVersion)
	_, err = a.kv.Set(ctx, data, "from a again")
	wantErr(t, "without a token", err, sterr.MissingFencingToken)
	if g := a.get(ctx, data); g.Value != "from b" {
		t.Errorf("data: %+v", g)
	}
}
