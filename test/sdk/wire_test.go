package sdk

import (
	"strings"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/protocol/hlc"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
	"github.com/eclipse/paho.golang/packets"
)

// The SDK's requests, and the replies and notifications that it must get, byte for byte.
func TestRequestsAndRepliesByteForByte(t *testing.T) {
	t.Parallel()
	ctx := testCtx(t)
	p := dial(ctx, t, peerOptions{})
	key := unique("wire")
	q := p.watch(ctx, key)

	check := func(payload, answer string, ts bool) (req, rep *packets.Publish, at int) {
		t.Helper()
		req, rep, at = p.wire.reply(ctx, t, payload)
		u := props(t, req)
		t.Logf("request: topic %q response topic %q correlation %x (%d) expiry %d content type %q format %d qos %d props %v payload %q",
			req.Topic, req.Properties.ResponseTopic, req.Properties.CorrelationData,
			len(req.Properties.CorrelationData),
			*req.Properties.MessageExpiry, req.Properties.ContentType,
			*req.Properties.PayloadFormat, req.QoS, u, req.Payload)
		if req.QoS != 1 || req.Retain || len(req.Properties.CorrelationData) != 16 ||
			req.Properties.ResponseTopic != responseTopic(p.id) || u["__srcId"] != p.id ||
			u["__protVer"] != "1.0" || u["__ts"] == "" {
			t.Errorf("the SDK has changed what it sends")
		}
		u = props(t, rep)
		t.Logf("reply: content type %q qos %d props %v payload %q", rep.Properties.ContentType,
			rep.QoS, u, rep.Payload)
		if string(rep.Payload) != answer {
			t.Errorf("%q: payload %q, want %q", payload, rep.Payload, answer)
		}
		if rep.QoS != 1 || rep.Retain || rep.Duplicate {
			t.Errorf("%q: QoS %d retain %v dup %v", payload, rep.QoS, rep.Retain, rep.Duplicate)
		}
		if ct := rep.Properties.ContentType; ct != "application/octet-stream" {
			t.Errorf("%q: content type %q", payload, ct)
		}
		if f := rep.Properties.PayloadFormat; f != nil && *f != 0 {
			t.Errorf("%q: payload format %d", payload, *f)
		}
		if rep.Properties.ResponseTopic != "" {
			t.Errorf("%q: response topic %q", payload, rep.Properties.ResponseTopic)
		}
		if e := rep.Properties.MessageExpiry; e == nil || *e < 1 ||
			*e > *req.Properties.MessageExpiry {
			t.Errorf("%q: message expiry %v of %d", payload, e, *req.Properties.MessageExpiry)
		}
		if u["__stat"] != "200" || u["__protVer"] != "1.0" || (u["__ts"] != "") != ts {
			t.Errorf("%q: user properties %v", payload, u)
		}
		return req, rep, at
	}

	check(blob("KEYNOTIFY", key), "+OK\r\n", false)
	p.get(ctx, key)
	check(blob("GET", key), "$-1\r\n", false)
	p.set(ctx, key, "v", expiry(60500*time.Millisecond),
		statestore.WithTimeout(4500*time.Millisecond), statestore.WithPersist(true))
	req, rep, at := check(blob("SET", key, "v", "PX", "60500"), "+OK\r\n", true)
	if e := *req.Properties.MessageExpiry; e != 5 {
		t.Errorf("the SDK sends 4.5 s as %d", e)
	}
	if u := props(t, req); u["aio-persistence"] != "true" || u["$partition"] != p.id {
		t.Errorf("properties of SET: %v", u)
	}
	version := props(t, rep)["__ts"]
	hl := func(s string) hlc.HybridLogicalClock {
		return must[hlc.HybridLogicalClock](t)(hlc.New().Parse("ts", s))
	}
	if hl(version).Compare(hl(props(t, req)["__ts"])) <= 0 {
		t.Errorf("version %s is not above the request's %s", version, props(t, req)["__ts"])
	}
	if f := strings.Split(version, ":"); len(f[0]) != 13 || (len(f[1]) > 1 && f[1][0] == '0') {
		t.Errorf("version %q is padded", version)
	}

	// The notification of a change comes before the reply to it.
	p.wire.mu.Lock()
	noteAt := -1
	for i, m := range p.wire.in {
		if m.Topic == notifyTopic(p.id, key) {
			noteAt = i
		}
	}
	p.wire.mu.Unlock()
	if noteAt < 0 || noteAt > at {
		t.Errorf("notification at %d, reply at %d", noteAt, at)
	}

	p.get(ctx, key)
	check(blob("GET", key), "$1\r\nv\r\n", true)
	if r, err := p.kv.Set(ctx, key, "w", nx); err != nil || r.Value {
		t.Error(r, err)
	}
	check(blob("SET", key, "w", "NX"), ":-1\r\n", true)
	if r, err := p.kv.Set(ctx, key, "w", nex, expiry(time.Second)); err != nil || r.Value {
		t.Error(r, err)
	}
	check(blob("SET", key, "w", "NEX", "PX", "1000"), ":-1\r\n", true)
	p.vdel(ctx, key, "w")
	check(blob("VDEL", key, "w"), ":-1\r\n", true)
	p.vdel(ctx, key, "v", fenced(stamp(t, 0, "me")))
	req, _, _ = check(blob("VDEL", key, "v"), ":1\r\n", true)
	t.Logf("fencing token: %q", props(t, req)["__ft"])
	p.del(ctx, key)
	check(blob("DEL", key), ":0\r\n", false)
	if _, err := p.kv.Set(ctx, key, "x", statestore.Condition("BOGUS")); err == nil {
		t.Error("no error")
	}
	check(blob("SET", key, "x", "BOGUS"), "-ERR syntax error\r\n", false)
	if err := p.kv.KeyNotifyStop(ctx, key); err != nil {
		t.Error(err)
	}
	check(blob("KEYNOTIFY", key, "STOP"), "+OK\r\n", false)

	next(ctx, t, q)
	next(ctx, t, q)
	for i, want := range []string{blob("NOTIFY", "SET", "VALUE", "v"), blob("NOTIFY", "DELETE")} {
		m := p.wire.received(notifyTopic(p.id, key))[i]
		u := props(t, m)
		t.Logf("notification: topic %q content type %q props %v payload %q", m.Topic,
			m.Properties.ContentType, u, m.Payload)
		if string(m.Payload) != want {
			t.Errorf("notification %d: %q, want %q", i, m.Payload, want)
		}
		if u["__ts"] != version || u["__protVer"] != "1.0" {
			t.Errorf("notification %d: user properties %v, want version %s", i, u, version)
		}
		if m.QoS != 1 || m.Retain || m.Properties.ContentType != "application/octet-stream" ||
			len(m.Properties.CorrelationData) != 0 || m.Properties.ResponseTopic != "" {
			t.Errorf("notification %d: %+v", i, m)
		}
		if e := m.Properties.MessageExpiry; e == nil || *e < 1 {
			t.Errorf("notification %d: message expiry %v", i, e)
		}
	}

	p.wire.mu.Lock()
	defer p.wire.mu.Unlock()
	c := p.wire.connects[0]
	t.Logf("CONNECT: clean start %v keep alive %d session expiry %d receive maximum %d packet size %v alias %v user %v",
		c.CleanStart, c.KeepAlive, *c.Properties.SessionExpiryInterval,
		*c.Properties.ReceiveMaximum,
		c.Properties.MaximumPacketSize, c.Properties.TopicAliasMaximum, c.Properties.User)
	for _, s := range p.wire.subs {
		t.Logf("SUBSCRIBE: %+v", s.Subscriptions)
	}
}
