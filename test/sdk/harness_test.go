package sdk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/mqtt"
	"github.com/Azure/iot-operations-sdks/go/protocol"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
	"github.com/eclipse/paho.golang/packets"
)

// The harness: each peer is one session client of the SDK, with a tap on its
// socket. The SDK hands every received PUBLISH to goroutines of its own, so its
// channels do not keep the order of arrival. The tap records that order.
// Nothing here waits by sleeping.

const (
	storeID     = "FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
	invokeTopic = "statestore/v1/" + storeID + "/command/invoke"
)

// broker returns the host and port of HOLDFAST_BROKER. The tests read this environment:
//
//	HOLDFAST_BROKER     mqtt://host:port, mqtts://host:port or host:port; when empty, TestMain
//	                    starts `holdfast dev`
//	HOLDFAST_CA         file of the authority that has signed the certificate of a broker with TLS
//	HOLDFAST_USERNAME, HOLDFAST_PASSWORD
//	                    the login, when there is one
//	HOLDFAST_CLIENT_PREFIX
//	                    what client ids begin with, for brokers that tie them to user names
//	HOLDFAST_SUBSCRIBE  1: the harness subscribes to the notification topic on the SDK's behalf
//	                    (the SDK never does); for brokers without implicit delivery
//	HOLDFAST_REPEATS    1: the leader has changed or may change, and the store may repeat the
//	                    latest notifications (at least once). TestMain sets it when the product
//	                    that it started logs the end of a leadership
//	HOLDFAST_TIMEOUT    limit for each single test, default 60s
func broker(t *testing.T) (string, uint16) {
	t.Helper()
	a := os.Getenv("HOLDFAST_BROKER")
	if a == "" {
		t.Fatal("HOLDFAST_BROKER is not set") // TestMain sets it
	}
	if _, rest, ok := strings.Cut(a, "://"); ok {
		a = rest
	}
	host, port, err := net.SplitHostPort(strings.TrimSuffix(a, "/"))
	if err != nil {
		t.Fatalf("HOLDFAST_BROKER: %v", err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatalf("HOLDFAST_BROKER: %v", err)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]" // The SDK joins host and port by "%s:%d".
	}
	return host, uint16(n)
}

func testCtx(t *testing.T) context.Context {
	t.Helper()
	d := time.Minute
	if s := os.Getenv("HOLDFAST_TIMEOUT"); s != "" {
		var err error
		if d, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// provider returns the SDK's provider of connections to the broker, and the login as options.
func provider(t *testing.T) (mqtt.ConnectionProvider, []mqtt.SessionClientOption) {
	t.Helper()
	host, port := broker(t)
	connect := mqtt.TCPConnection(host, port)
	if strings.HasPrefix(os.Getenv("HOLDFAST_BROKER"), "mqtts://") {
		connect = mqtt.TLSConnection(host, port, mqtt.WithCA(os.Getenv("HOLDFAST_CA")))
	}
	user := os.Getenv("HOLDFAST_USERNAME")
	if user == "" {
		return connect, nil
	}
	return connect, []mqtt.SessionClientOption{
		mqtt.WithUsername(mqtt.ConstantUsername(user)),
		mqtt.WithPassword(mqtt.ConstantPassword([]byte(os.Getenv("HOLDFAST_PASSWORD")))),
	}
}

// unique makes a name that no other test and no other run uses.
func unique(prefix string) string { return prefix + "-" + rand.Text()[:12] }

func notifyPrefix(client string) string {
	return fmt.Sprintf("clients/statestore/v1/%s/%X/command/notify/", storeID, client)
}

func notifyTopic(client, key string) string { return notifyPrefix(client) + fmt.Sprintf("%X", key) }

func responseTopic(client string) string {
	return fmt.Sprintf("clients/%X/%s/response", client, invokeTopic)
}

func blob(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

// props returns the user properties of a message. It fails the test if one comes twice.
func props(t *testing.T, p *packets.Publish) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, u := range p.Properties.User {
		if _, twice := m[u.Key]; twice {
			t.Errorf("user property %q comes twice on %s", u.Key, p.Topic)
		}
		m[u.Key] = u.Value
	}
	return m
}

// mangler changes a message that is about to be published.
type mangler func(topic *string, payload *[]byte, o *mqtt.PublishOptions)

// mangled is a session client whose messages fn changes before they are published.
type mangled struct {
	*mqtt.SessionClient
	fn atomic.Pointer[mangler]
	up chan<- struct{}
}

// RegisterConnectEventHandler registers the state store client's handler, and
// sends to m.up each time that the handler has returned. The handler runs in a
// goroutine of its own, at the first connect too. A key that is watched before
// it runs is watched a second time, with a notification made up from a GET.
func (m *mangled) RegisterConnectEventHandler(h mqtt.ConnectEventHandler) func() {
	return m.SessionClient.RegisterConnectEventHandler(func(e *mqtt.ConnectEvent) {
		h(e)
		m.up <- struct{}{}
	})
}

func (m *mangled) Publish(
	ctx context.Context, topic string, payload []byte, opts ...mqtt.PublishOption,
) (*mqtt.Ack, error) {
	if fn := m.fn.Load(); fn != nil {
		for _, o := range opts {
			if po, ok := o.(*mqtt.PublishOptions); ok {
				(*fn)(&topic, &payload, po)
			}
		}
	}
	return m.SessionClient.Publish(ctx, topic, payload, opts...)
}

type (
	client = statestore.Client[string, string]
	note   = statestore.Notify[string, string]
)

type peer struct {
	t    *testing.T
	id   string
	sess *mangled
	app  *protocol.Application
	kv   *client
	wire *wire

	mu         sync.Mutex
	conn       *tapConn
	dialing    chan struct{} // nil: dial at once
	up         chan struct{} // one for each connection, when the SDK has watched its keys again
	down       chan struct{}
	beaconOnce sync.Once
	beacon     string
}

type peerOptions struct {
	id   string
	app  []protocol.ApplicationOption
	kv   []statestore.ClientOption
	sess []mqtt.SessionClientOption
}

// dial connects a session client and starts a state store client on it.
func dial(ctx context.Context, t *testing.T, o peerOptions) *peer {
	t.Helper()
	if o.id == "" {
		o.id = unique("sdk")
	}
	o.id = os.Getenv("HOLDFAST_CLIENT_PREFIX") + o.id
	p := &peer{
		t: t, id: o.id,
		wire: &wire{changed: make(chan struct{}), seen: map[string]bool{}},
		up:   make(chan struct{}, 64),
		down: make(chan struct{}, 64),
	}
	connect, login := provider(t)
	sess, err := mqtt.NewSessionClient(o.id, func(ctx context.Context) (net.Conn, error) {
		p.mu.Lock()
		dialing := p.dialing
		p.mu.Unlock()
		if dialing != nil {
			select {
			case <-dialing:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		conn, err := connect(ctx)
		if err != nil {
			return nil, err
		}
		c := &tapConn{Conn: conn, in: stream{w: p.wire}, out: stream{w: p.wire, out: true}}
		p.mu.Lock()
		p.conn = c
		p.mu.Unlock()
		return c, nil
	}, append(login, o.sess...)...)
	if err != nil {
		t.Fatal(err)
	}
	p.sess = &mangled{SessionClient: sess, up: p.up}

	var closing atomic.Bool
	sess.RegisterFatalErrorHandler(func(err error) {
		if !closing.Load() {
			t.Errorf("the session client of %s gave up: %v", p.id, err)
		}
	})
	sess.RegisterDisconnectEventHandler(func(*mqtt.DisconnectEvent) { p.down <- struct{}{} })
	if p.app, err = protocol.NewApplication(o.app...); err != nil {
		t.Fatal(err)
	}
	if p.kv, err = statestore.New[string, string](p.app, p.sess, o.kv...); err != nil {
		t.Fatal(err)
	}
	if err := sess.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The test's context is gone by now. Stop sends DISCONNECT with
		// session expiry 0. (Client.Close would wait for an UNSUBACK, for
		// ever if there is no broker.)
		closing.Store(true)
		for len(p.down) > 0 {
			<-p.down
		}
		_ = sess.Stop()
		select {
		case <-p.down:
		case <-time.After(5 * time.Second):
		}
		p.wire.checkRepeats(t)
	})
	if err := p.kv.Start(ctx); err != nil {
		t.Fatalf("start: %v", err)
	}
	p.await(ctx, p.up, "the connect event")
	if os.Getenv("HOLDFAST_SUBSCRIBE") == "1" {
		p.subscribe(ctx)
	}
	return p
}

func (p *peer) await(ctx context.Context, c <-chan struct{}, what string) {
	p.t.Helper()
	select {
	case <-c:
	case <-ctx.Done():
		p.t.Fatalf("waiting for %s: %v", what, context.Cause(ctx))
	}
}

func (p *peer) subscribe(ctx context.Context) {
	p.t.Helper()
	ack, err := p.sess.Subscribe(ctx, notifyPrefix(p.id)+"+", mqtt.WithQoS(1))
	if err != nil {
		p.t.Fatal(err)
	}
	if ack.ReasonCode != 1 {
		p.t.Fatalf("SUBACK 0x%x for the notification topic", ack.ReasonCode)
	}
}

// mangle calls f while fn changes what the peer publishes.
func (p *peer) mangle(fn mangler, f func()) {
	p.sess.fn.Store(&fn)
	defer p.sess.fn.Store(nil)
	f()
}

// deafen lets the peer hear nothing more on the present connection.
func (p *peer) deafen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn.deaf.Store(true)
}

// cut breaks the connection without a DISCONNECT. The session client connects
// again after 1/8 s or, if hold is not nil, once hold is closed.
func (p *peer) cut(hold chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing = hold
	_ = p.conn.Close()
}

// must is for calls that have to succeed.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (p *peer) set(ctx context.Context, key, val string,
	opt ...statestore.SetOption,
) *statestore.Response[bool] {
	p.t.Helper()
	res := must[*statestore.Response[bool]](p.t)(p.kv.Set(ctx, key, val, opt...))
	if !res.Value {
		p.t.Fatalf("SET %q: not applied", key)
	}
	return res
}

func (p *peer) get(ctx context.Context, key string) *statestore.Response[string] {
	p.t.Helper()
	return must[*statestore.Response[string]](p.t)(p.kv.Get(ctx, key))
}

func (p *peer) del(ctx context.Context, key string,
	opt ...statestore.DelOption,
) *statestore.Response[int] {
	p.t.Helper()
	return must[*statestore.Response[int]](p.t)(p.kv.Del(ctx, key, opt...))
}

func (p *peer) vdel(ctx context.Context, key, val string,
	opt ...statestore.VDelOption,
) *statestore.Response[int] {
	p.t.Helper()
	return must[*statestore.Response[int]](p.t)(p.kv.VDel(ctx, key, val, opt...))
}

// notifications registers a channel with the SDK and drains it: an SDK channel that
// nobody reads holds up the PUBACKs of everything that comes after.
func (p *peer) notifications(key string) <-chan note {
	q := make(chan note, 1<<14)
	ch, stop := p.kv.Notify(key)
	p.t.Cleanup(stop)
	go func() {
		seen := map[string]bool{}
		for n := range ch {
			change := fmt.Sprint(n.Operation, n.Version, n.Value)
			if !repeats() || !seen[change] {
				q <- n
			}
			seen[change] = true
		}
	}()
	return q
}

func (p *peer) watch(ctx context.Context, key string) <-chan note {
	p.t.Helper()
	q := p.notifications(key)
	if err := p.kv.KeyNotify(ctx, key); err != nil {
		p.t.Fatal(err)
	}
	return q
}

func next[T any](ctx context.Context, t *testing.T, q <-chan T) T {
	t.Helper()
	select {
	case n, ok := <-q:
		if !ok {
			t.Fatal("the channel is closed")
		}
		return n
	case <-ctx.Done():
		t.Fatalf("no notification: %v", context.Cause(ctx))
	}
	panic("unreachable")
}

// awaitDelivery returns when everything that was published to p before has arrived:
// it changes a key that p watches and waits for that notification on the wire.
// (All that one client gets is published on one connection, in order.)
func (p *peer) awaitDelivery(ctx context.Context) {
	p.t.Helper()
	p.beaconOnce.Do(func() {
		p.beacon = unique("beacon")
		p.watch(ctx, p.beacon)
	})
	val := unique("at")
	p.set(ctx, p.beacon, val)
	p.wire.until(ctx, p.t, "the beacon", func() bool {
		for i := len(p.wire.in) - 1; i >= 0; i-- {
			if q := p.wire.in[i]; q.Topic == notifyTopic(p.id, p.beacon) &&
				strings.Contains(string(q.Payload), val) {
				return true
			}
		}
		return false
	})
}

// passes waits for d by the store's own clock: it sets a key with the expiry d,
// and waits until the key has expired.
func (p *peer) passes(ctx context.Context, d time.Duration) {
	p.t.Helper()
	key := unique("timer")
	q := p.watch(ctx, key)
	p.set(ctx, key, "x", statestore.WithExpiry(d))
	for next(ctx, p.t, q).Operation != "DELETE" {
	}
}

func wantErr(t *testing.T, what string, err error, want statestore.ServiceError) {
	t.Helper()
	if !errors.Is(err, want) || !errors.Is(err, statestore.ErrService) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}
