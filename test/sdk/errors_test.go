package sdk

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/mqtt"
	"github.com/Azure/iot-operations-sdks/go/protocol"
	proterr "github.com/Azure/iot-operations-sdks/go/protocol/errors"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
	sterr "github.com/Azure/iot-operations-sdks/go/services/statestore/errors"
)

func TestArgumentErrorsAreTyped(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	_, set := p.kv.Set(ctx, "", "x")
	_, get := p.kv.Get(ctx, "")
	_, del := p.kv.Del(ctx, "")
	_, vdel := p.kv.VDel(ctx, "", "x")
	_, neg := p.kv.Set(ctx, "k", "x", expiry(-1))
	for name, err := range map[string]error{
		"Set without a key": set, "Get without a key": get, "Del without a key": del,
		"VDel without a key": vdel, "Set with a negative expiry": neg,
		"KeyNotify without a key":     p.kv.KeyNotify(ctx, ""),
		"KeyNotifyStop without a key": p.kv.KeyNotifyStop(ctx, ""),
	} {
		t.Run(name, func(t *testing.T) {
			if !errors.Is(err, statestore.ErrArgument) {
				t.Errorf("got %v", err)
			}
		})
	}
	p.wire.mu.Lock()
	defer p.wire.mu.Unlock()
	if len(p.wire.out) != 0 {
		t.Error("the SDK has sent something")
	}
}

func TestServiceErrorsAreTyped(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	key := unique("k")
	before := p.set(ctx, key, "kept")

	_, err := p.kv.Set(ctx, key, "x", statestore.Condition("BOGUS"))
	wantErr(t, "unknown option", err, sterr.SyntaxError)
	_, err = p.kv.Set(ctx, key, "x", expiry(500*time.Microsecond))
	wantErr(t, "PX 0", err, sterr.SyntaxError)
	_, err = p.kv.Set(ctx, strings.Repeat("k", 64<<10+1), "x")
	wantErr(t, "key of 64 KiB + 1", err, sterr.QuotaExceeded)
	// Its notification topic would be longer than a topic can be.
	err = p.kv.KeyNotify(ctx, strings.Repeat("k", 40_000))
	wantErr(t, "KEYNOTIFY on a long key", err, sterr.QuotaExceeded)
	if n := 4<<20 + 1; fits(p, n+4096) {
		_, err = p.kv.Set(ctx, unique("large"), strings.Repeat("v", n))
		wantErr(t, "value of 4 MiB + 1", err, sterr.QuotaExceeded)
	}

	payload := func(args ...string) mangler {
		return func(_ *string, b *[]byte, _ *mqtt.PublishOptions) { *b = []byte(blob(args...)) }
	}
	raw := func(s string) mangler {
		return func(_ *string, b *[]byte, _ *mqtt.PublishOptions) { *b = []byte(s) }
	}
	prop := func(k, v string) mangler {
		return func(_ *string, _ *[]byte, o *mqtt.PublishOptions) { o.UserProperties[k] = v }
	}
	without := func(k string) mangler {
		return func(_ *string, _ *[]byte, o *mqtt.PublishOptions) { delete(o.UserProperties, k) }
	}
	for _, c := range []struct {
		what string
		fn   mangler
		want statestore.ServiceError
	}{
		{"lower case", payload("set", key, "x"), sterr.UnknownCommand},
		{"EXPIRE", payload("EXPIRE", "0"), sterr.UnknownCommand},
		{"SET key", payload("SET", key), sterr.WrongNumberOfArguments},
		{"GET", payload("GET"), sterr.WrongNumberOfArguments},
		{"GET key key", payload("GET", key, key), sterr.WrongNumberOfArguments},
		{"VDEL key", payload("VDEL", key), sterr.WrongNumberOfArguments},
		{"no key", payload("SET", "", "x"), sterr.KeyLengthZero},
		{"PX twice", payload("SET", key, "x", "PX", "1", "PX", "2"), sterr.SyntaxError},
		{"NX NEX", payload("SET", key, "x", "NX", "NEX"), sterr.SyntaxError},
		{"PX alone", payload("SET", key, "x", "PX"), sterr.SyntaxError},
		{"no payload", raw(""), sterr.SyntaxError},
		{"inline", raw("GET " + key + "\r\n"), sterr.SyntaxError},
		{"rest", raw(blob("GET", key) + "x"), sterr.SyntaxError},
		{"huge count", raw("*999999999\r\n$3\r\nGET\r\n"), sterr.SyntaxError},
		{"huge length", raw("*2\r\n$3\r\nGET\r\n$999999999\r\nk\r\n"), sterr.SyntaxError},
		{"no timestamp", without("__ts"), sterr.TimestampMissing},
		{"malformed timestamp", prop("__ts", "yesterday"), sterr.TimestampMalformed},
		{"timestamp without node", prop("__ts", "1:0:"), sterr.TimestampMalformed},
		{"malformed token", prop("__ft", "1:2"), sterr.TimestampMalformed},
	} {
		t.Run(c.what, func(t *testing.T) {
			p.mangle(c.fn, func() {
				_, err := p.kv.Set(ctx, key, "x")
				wantErr(t, c.what, err, c.want)
			})
		})
	}
	p.mangle(func(_ *string, _ *[]byte, o *mqtt.PublishOptions) { o.QoS = 0 }, func() {
		_, err := p.kv.Set(ctx, key, "x")
		wantErr(t, "QoS 0", err, "request must be published with QoS 1")
	})
	// GET ignores the timestamp and the fencing token.
	for name, fn := range map[string]mangler{
		"GET without a timestamp":        without("__ts"),
		"GET with a malformed timestamp": prop("__ts", "yesterday"),
		"GET with a malformed token":     prop("__ft", "yesterday"),
	} {
		t.Run(name, func(t *testing.T) {
			p.mangle(fn, func() {
				if g, err := p.kv.Get(ctx, key); err != nil || g.Value != "kept" {
					t.Errorf("%+v %v", g, err)
				}
			})
		})
	}
	// NEX with an expected value, which the SDK has no option for.
	p.mangle(payload("SET", key, "x", "NEX", "other"), func() {
		if r, err := p.kv.Set(ctx, key, "x"); err != nil || r.Value {
			t.Errorf("NEX other: %+v %v", r, err)
		}
	})

	if g := p.get(ctx, key); g.Value != "kept" || g.Version.Compare(before.Version) != 0 {
		t.Errorf("refused requests have changed the value: %+v", g)
	}
	p.mangle(payload("SET", key, "x", "NEX", "kept"), func() { p.set(ctx, key, "x") })
}

func TestUnsupportedProtocolVersionIsRefused(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	key := unique("k")
	for _, v := range []string{"2.0", "0.9", "one"} {
		t.Run(v, func(t *testing.T) {
			p.mangle(func(_ *string, _ *[]byte,
				o *mqtt.PublishOptions,
			) {
				o.UserProperties["__protVer"] = v
			}, func() {
				_, err := p.kv.Set(ctx, key, "x")
				var remote *proterr.Remote
				if !errors.As(err, &remote) {
					t.Fatalf("%s: %v", v, err)
				}
				k, ok := remote.Kind.(proterr.UnsupportedVersion)
				if !ok || k.ProtocolVersion != v || len(k.SupportedMajorProtocolVersions) != 1 ||
					k.SupportedMajorProtocolVersions[0] != 1 {
					t.Errorf("%s: %+v", v, remote.Kind)
				}
			})
		})
	}
	for _, v := range []string{"1.0", "1.7"} {
		t.Run(v, func(t *testing.T) {
			p.mangle(func(_ *string, _ *[]byte,
				o *mqtt.PublishOptions,
			) {
				o.UserProperties["__protVer"] = v
			}, func() {
				if g := p.get(ctx, key); !g.Version.IsZero() {
					t.Errorf("the refused SET was executed: %+v", g)
				}
			})
		})
	}
}

func TestTimestampsOfSkewedClocksAreRefused(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	sane := dial(ctx, t, peerOptions{})
	fast := dial(ctx, t, peerOptions{app: []protocol.ApplicationOption{protocol.WithMaxClockDrift(
		time.Hour)}})
	if err := fast.app.SetHLC(stamp(t, 5*time.Minute, "ahead")); err != nil {
		t.Fatal(err)
	}
	key := unique("k")
	_, err := fast.kv.Set(ctx, key, "x")
	wantErr(t, "SET from the future", err, sterr.TimestampSkew)
	if g := fast.get(ctx, key); !g.Version.IsZero() {
		t.Errorf("it was executed: %+v", g)
	}
	// The store's clock has not moved: a client with the right time gets a
	// version that it can take.
	s := sane.set(ctx, key, "y")
	if ahead := time.Until(s.Version.UTC()); ahead > 30*time.Second {
		t.Errorf("the store is %v ahead", ahead)
	}
	if v := fast.vdel(ctx, key, "y"); v.Value != 1 {
		t.Errorf("VDEL: %+v", v)
	}

	_, err = sane.kv.Set(ctx, key, "x", fenced(stamp(t, 5*time.Minute, "ahead")))
	wantErr(t, "token from the future", err, sterr.FencingTokenSkew)
	_, err = sane.kv.Del(ctx, key, fenced(stamp(t, 5*time.Minute, "ahead")))
	wantErr(t, "DEL, token from the future", err, sterr.FencingTokenSkew)
}
