package client

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn/mqtttest"
	"holdfast/resp"
)

// startBroker starts a broker that serves one connection after the other. handle gets the
// connection's number, from 1 on; see mqtttest.Serve.
func startBroker(t *testing.T,
	handle func(number int, conn net.Conn,
		packet *packets.ControlPacket) packets.Packet,
) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for number := 1; ; number++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mqtttest.Serve(conn,
				func(packet *packets.ControlPacket) (packets.Packet,
					bool,
				) {
					return handle(number, conn, packet), true
				})
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-served
	})
	return "mqtt://" + listener.Addr().String()
}

// A request that is given up while no packet id is free was not executed, and is never sent.
func TestGivenUpRequestIsNotSent(t *testing.T) {
	received, release := make(chan string, 10), make(chan struct{})
	address := startBroker(t, func(_ int, _ net.Conn,
		packet *packets.ControlPacket,
	) packets.Packet {
		switch content := packet.Content.(type) {
		case *packets.Connect:
			one := uint16(1)
			return &packets.Connack{Properties: &packets.Properties{ReceiveMaximum: &one}}
		case *packets.Publish:
			received <- string(content.Payload)
			<-release // until then the only packet id stays in use
		}
		return nil
	})
	c, err := Connect(t.Context(), Config{Addresses: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	set := func(ctx context.Context, key string) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := c.Set(ctx, key, nil)
			done <- err
		}()
		return done
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := set(ctx, "first")
	if payload := <-received; !strings.Contains(payload, "first") {
		t.Fatalf("%q", payload)
	}
	brief, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := <-set(brief, "second"); !errors.Is(err, ErrNotExecuted) ||
		errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("given up before it was sent: %v", err)
	}
	third := set(ctx, "third")
	close(release)
	if payload := <-received; !strings.Contains(payload, "third") {
		t.Errorf("after the first one: %q", payload)
	}
	cancel()
	for _, done := range []chan error{first, third} {
		if err := <-done; !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("sent, and not answered: %v", err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// lineHandler is a slog.Handler that sends the message and the error of each record to a channel.
type lineHandler struct {
	slog.Handler
	lines chan string
}

func (h lineHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h lineHandler) Handle(_ context.Context, record slog.Record) error {
	line := record.Message
	record.Attrs(func(a slog.Attr) bool {
		line += ": " + a.Value.String()
		return true
	})
	h.lines <- line
	return nil
}

// The log says why the client cannot connect, but not at each attempt. It also says when the client
// is connected again.
func TestOutageIsLogged(t *testing.T) {
	subscribed := make(chan net.Conn, 10)
	// the reason code of the CONNACK, by the number of the connection
	refusals := []byte{2: 0x86, 3: 0x87, 4: 0}
	address := startBroker(t, func(number int, conn net.Conn,
		packet *packets.ControlPacket,
	) packets.Packet {
		switch packet.Content.(type) {
		case *packets.Connect:
			if number < len(refusals) && refusals[number] != 0 {
				return &packets.Connack{
					ReasonCode: refusals[number],
					Properties: &packets.Properties{},
				}
			}
		case *packets.Subscribe:
			subscribed <- conn
		}
		return nil
	})
	lines := make(chan string, 100)
	c, err := Connect(t.Context(),
		Config{
			Addresses: []string{address},
			Log:       slog.New(lineHandler{slog.DiscardHandler, lines}),
		})
	if err != nil {
		t.Fatal(err)
	}
	_ = (<-subscribed).Close()
	var heads []string
	for !slices.Contains(heads, "connected again") {
		head, reason, _ := strings.Cut(<-lines, ": ")
		switch {
		case strings.HasPrefix(head, "cannot connect"):
			_, code, _ := strings.Cut(reason, "0x")
			head = "cannot connect 0x" + code[:min(2, len(code))]
		case head == "connection lost":
			continue // how often depends on what the close meets
		}
		heads = append(heads, head)
	}
	if want := []string{"cannot connect 0x86", "connected again"}; !slices.Equal(heads, want) {
		t.Errorf("%q is logged, want %q", heads, want)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A renewal that is under way when the last watcher is closed leaves no watch in the store. The
// store executes the renewal's KEYNOTIFY after the STOP here, so the client sends STOP again.
func TestRenewalDoesNotOutliveTheWatch(t *testing.T) {
	reply := func(conn net.Conn, request *packets.Publish) {
		answer := packets.Publish{
			Topic: request.Properties.ResponseTopic, Payload: []byte("+OK\r\n"),
			Properties: &packets.Properties{CorrelationData: request.Properties.CorrelationData},
		}
		if _, err := answer.WriteTo(conn); err != nil {
			t.Error(err)
		}
	}
	var renewal *packets.Publish // the second KEYNOTIFY
	commands, began := make(chan string, 10), make(chan struct{})
	watch, stop := string(resp.AppendArray(nil, subject{key: "k"}.keyNotify()...)),
		string(resp.AppendArray(nil, subject{key: "k"}.keyNotifyStop()...))
	address := startBroker(t, func(_ int, conn net.Conn,
		packet *packets.ControlPacket,
	) packets.Packet {
		request, ok := packet.Content.(*packets.Publish)
		if !ok {
			return nil
		}
		command := string(request.Payload)
		if command == watch && len(commands) == 1 {
			renewal = request
			close(began)
			return nil
		}
		// before the test sees the command: after the last one it closes the client
		reply(conn, request)
		commands <- command
		if renewal != nil {
			reply(conn, renewal)
			commands <- watch
			renewal = nil
		}
		return nil
	})
	c, err := Connect(t.Context(), Config{Addresses: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w, err := c.Watch(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.syncWatchLocked(w.watched, nil)
	c.mu.Unlock()
	<-began
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{watch, stop, watch, stop} {
		select {
		case got := <-commands:
			if got != want {
				t.Fatalf("command %d is %q, want %q", i, got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("command %d is missing, want %q: the store has a watch that no watcher of the client has", i, want)
		}
	}
}

// When Close returns, no goroutine that renews a watch runs any more, not even one whose KEYNOTIFY
// is not answered.
func TestCloseWaitsForRenewals(t *testing.T) {
	answers := make(chan string, 1)
	answers <- "the first KEYNOTIFY"
	address := startBroker(t, func(_ int, conn net.Conn,
		packet *packets.ControlPacket,
	) packets.Packet {
		request, ok := packet.Content.(*packets.Publish)
		if !ok {
			return nil
		}
		select {
		case <-answers:
			answer := packets.Publish{
				Topic: request.Properties.ResponseTopic, Payload: []byte("+OK\r\n"),
				Properties: &packets.Properties{CorrelationData: request.Properties.CorrelationData},
			}
			if _, err := answer.WriteTo(conn); err != nil {
				t.Error(err)
			}
		default: // the renewals
		}
		return nil
	})
	for range 20 { // without the wait, some of the goroutines still run
		c, err := Connect(t.Context(), Config{Addresses: []string{address}})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case answers <- "the first KEYNOTIFY":
		default:
		}
		w, err := c.Watch(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		session := c.session
		for range 10 {
			c.syncWatchLocked(w.watched, nil)
		}
		c.mu.Unlock()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		if running := session.watchSyncs[w.watched]; running > 0 {
			t.Errorf("%d goroutines run after Close", running)
		}
		c.mu.Unlock()
	}
}

// Two clients with one id end each other's connections. Some brokers give no reason, so the log
// says what to look for.
func TestConnectionsThatEndSoonAreExplained(t *testing.T) {
	address := startBroker(t, func(_ int, conn net.Conn,
		packet *packets.ControlPacket,
	) packets.Packet {
		if _, isSubscribe := packet.Content.(*packets.Subscribe); isSubscribe {
			// as when another client takes the session over
			time.AfterFunc(10*time.Millisecond, func() { _ = conn.Close() })
		}
		return nil
	})
	lines := make(chan string, 100)
	c, err := Connect(t.Context(),
		Config{
			Addresses: []string{address}, ClientID: "press-1",
			Log: slog.New(lineHandler{slog.DiscardHandler, lines}),
		})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for {
		select {
		case line := <-lines:
			if strings.Contains(line, "does another client use the same client id") {
				return
			}
		case <-time.After(30 * time.Second):
			t.Fatal("nothing is logged")
		}
	}
}
