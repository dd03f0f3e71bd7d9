package emqx

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pahopackets "github.com/eclipse/paho.golang/packets"
	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
	"go.uber.org/goleak"

	"holdfast/internal/mqttconn"
	"holdfast/internal/testwait"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/presence"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// standIn imitates the parts of EMQX 5 that the driver uses. It publishes the system topics of
// clients that connect and disconnect, and serves the REST API requests that the driver makes. It
// was written from EMQX's documentation, and was not compared with the product.
type standIn struct {
	mqtt.HookBase
	server *mqtt.Server
	api    *httptest.Server

	mu      sync.Mutex
	changed sync.Cond // signalled when one of the fields below changes
	// how many ends of connections that were taken over were published
	takeovers int
	// the end of a connection that was taken over is published last
	endsLast  bool
	newest    map[string]*mqtt.Client // by client id: the client of its newest connection
	sessions  map[string]int          // by client id: how many of its connections were reported
	takenOver map[*mqtt.Client]bool   // who was told so
	// when each client connected, in milliseconds since the Unix epoch
	connected map[*mqtt.Client]int64
	// the latest time in connected; without behind, each one is later than the one before
	latest int64
	// how far the clock of the broker node is behind that takes the next connections, in
	// milliseconds
	behind int64
}

const (
	apiKey    = "key"
	apiSecret = "secret"
)

func startStandIn(t *testing.T) *standIn {
	t.Helper()
	s := &standIn{
		connected: map[*mqtt.Client]int64{}, newest: map[string]*mqtt.Client{},
		takenOver: map[*mqtt.Client]bool{}, sessions: map[string]int{},
	}
	s.changed.L = &s.mu
	s.server = mqtt.New(&mqtt.Options{InlineClient: true, Logger: slog.New(slog.DiscardHandler)})
	listener := listeners.NewTCP(listeners.Config{ID: "tcp", Address: "127.0.0.1:0"})
	for _, err := range []error{s.server.AddHook(s, nil), s.server.AddListener(listener)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.server.Serve(); err != nil {
		t.Fatal(err)
	}
	s.api = httptest.NewServer(http.HandlerFunc(s.serveAPI))
	t.Cleanup(func() {
		s.api.Close()
		_ = s.server.Close()
	})
	return s
}

func (s *standIn) address() string {
	listener, _ := s.server.Listeners.Get("tcp")
	return listener.Address()
}

// ID implements mqtt.Hook.
func (*standIn) ID() string { return "emqx" }

// Provides implements mqtt.Hook.
func (*standIn) Provides(hook byte) bool {
	return slices.Contains([]byte{
		mqtt.OnConnectAuthenticate, mqtt.OnACLCheck, mqtt.OnSessionEstablished, mqtt.OnDisconnect,
		mqtt.OnPacketEncode,
	}, hook)
}

// OnConnectAuthenticate implements mqtt.Hook: everybody may connect.
func (*standIn) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }

// OnACLCheck implements mqtt.Hook: everybody may do everything.
func (*standIn) OnACLCheck(*mqtt.Client, string, bool) bool { return true }

func (s *standIn) report(event, clientID string, fields map[string]any) {
	fields["clientid"], fields["username"], fields["ipaddress"], fields["proto_ver"] = clientID,
		"undefined", "127.0.0.1", 5
	payload, err := json.Marshal(fields)
	if err == nil {
		err = s.server.Publish("$SYS/brokers/emqx@127.0.0.1/clients/"+clientID+"/"+event, payload,
			false, 0)
	}
	if err != nil {
		panic(err)
	}
}

// OnSessionEstablished implements mqtt.Hook.
func (s *standIn) OnSessionEstablished(client *mqtt.Client, _ packets.Packet) {
	s.mu.Lock()
	at := max(time.Now().UnixMilli(), s.latest+1) - s.behind
	s.latest, s.connected[client] = max(at, s.latest), at
	s.newest[client.ID] = client
	s.changed.Broadcast()
	s.mu.Unlock()
	s.report("connected", client.ID,
		map[string]any{"connected_at": at, "clean_start": true, "keepalive": 30})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[client.ID]++
	s.changed.Broadcast()
}

// OnPacketEncode implements mqtt.Hook. It notes which clients get a DISCONNECT because another one
// took their session over. StopCause does not always say so: the client may close the connection
// before mochi sets it.
func (s *standIn) OnPacketEncode(client *mqtt.Client, packet packets.Packet) packets.Packet {
	if packet.FixedHeader.Type == packets.Disconnect &&
		packet.ReasonCode == packets.ErrSessionTakenOver.Code {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.takenOver[client] = true
	}
	return packet
}

// OnDisconnect implements mqtt.Hook. With endsLast, the event of a connection that was taken over
// follows that of the new one.
func (s *standIn) OnDisconnect(client *mqtt.Client, _ error, _ bool) {
	s.mu.Lock()
	for s.endsLast && s.takenOver[client] && s.newest[client.ID] == client {
		s.changed.Wait()
	}
	at := s.connected[client]
	isTakenOver := s.takenOver[client]
	delete(s.connected, client)
	s.mu.Unlock()
	reason := "normal"
	if isTakenOver {
		reason = takenOver
	}
	s.report("disconnected", client.ID,
		map[string]any{
			"connected_at": at, "disconnected_at": time.Now().UnixMilli(),
			"reason": reason,
		})
	if reason == takenOver {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.takeovers++
		s.changed.Broadcast()
	}
}

// awaitTakeover waits until the end of a connection that was taken over is published.
func (s *standIn) awaitTakeover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.takeovers == 0 {
		s.changed.Wait()
	}
}

func (s *standIn) serveAPI(w http.ResponseWriter, r *http.Request) {
	if key, secret, ok := r.BasicAuth(); !ok || key != apiKey || secret != apiSecret {
		http.Error(w, `{"code":"BAD_API_KEY_OR_SECRET","message":"Check api_key/api_secret"}`,
			http.StatusUnauthorized)
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, "/api/v5/clients/")
	if !ok {
		http.Error(w, `{"code":"NOT_FOUND","message":"Request Path Not Found"}`,
			http.StatusNotFound)
		return
	}
	what := ""
	if at := strings.LastIndex(path, "/"); at >= 0 &&
		(path[at:] == "/subscriptions" || path[at:] == "/subscribe") {
		path, what = path[:at], path[at:]
	}
	client, ok := s.server.Clients.Get(path)
	if !ok || client.Closed() {
		http.Error(w, `{"code":"CLIENTID_NOT_FOUND","message":"Client ID not found"}`,
			http.StatusNotFound)
		return
	}
	switch r.Method + what {
	case "DELETE":
		// it may have gone just now
		_ = s.server.DisconnectClient(client, packets.ErrAdministrativeAction)
		w.WriteHeader(http.StatusNoContent)
	case "GET/subscriptions":
		list := []subscription{}
		for _, present := range client.State.Subscriptions.GetAll() {
			list = append(list, subscription{Topic: present.Filter, QoS: present.Qos})
		}
		_ = json.NewEncoder(w).Encode(list) // the driver sees what it gets
	case "POST/subscribe":
		var wanted subscription
		if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil || wanted.QoS != 1 {
			http.Error(w, `{"code":"INVALID_PARAMETER"}`, http.StatusBadRequest)
			return
		}
		added := packets.Subscription{Filter: wanted.Topic, Qos: wanted.QoS}
		s.server.Topics.Subscribe(client.ID, added)
		client.State.Subscriptions.Add(wanted.Topic, added)
		_ = json.NewEncoder(w).Encode(wanted)
	default:
		http.Error(w, `{"code":"NOT_FOUND"}`, http.StatusMethodNotAllowed)
	}
}

// withAPI returns a driver that only calls the API.
func withAPI(api API) *Driver { return &Driver{api: api} }

// The driver subscribes a client to all of its notifications, unless the client has such a
// subscription already. A subscription to the notifications of one key does not count.
func TestSubscribesOnBehalfOfClients(t *testing.T) {
	s := startStandIn(t)
	d := withAPI(API{
		URL: s.api.URL, Key: func() []byte { return []byte(apiKey + ":" + apiSecret) },
		Client: s.api.Client(),
	})
	const prefix = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/"
	defer s.connect(t, "go").Abort()
	defer s.connect(t, "rust").Abort()
	rust, _ := s.server.Clients.Get("rust")
	own := packets.Subscription{Filter: prefix + "72757374/command/notify/#", Qos: 1}
	rust.State.Subscriptions.Add(own.Filter, own)
	defer s.connect(t, "one").Abort()
	one, _ := s.server.Clients.Get("one")
	ofOneKey := packets.Subscription{Filter: prefix + "6F6E65/command/notify/6B/#", Qos: 1}
	one.State.Subscriptions.Add(ofOneKey.Filter, ofOneKey)
	for _, test := range []struct {
		client, hex string
		made        bool
	}{
		{"go", "676F", true},
		{"go", "676F", false},
		{"rust", "72757374", false},
		{"one", "6F6E65", true},
		{"gone", "676F6E65", false},
	} {
		t.Run(fmt.Sprintf("%s, made %v", test.client, test.made), func(t *testing.T) {
			made, err := d.SubscribeNotifications(t.Context(), test.client, prefix+test.hex+
				"/command/notify/+")
			if err != nil || made != test.made {
				t.Errorf("%s: made %v, %v", test.client, made, err)
			}
		})
	}
	client, _ := s.server.Clients.Get("go")
	if got, ok := client.State.Subscriptions.Get(prefix + "676F/command/notify/+"); !ok ||
		got.Qos != 1 {
		t.Errorf("%+v, %v", got, ok)
	}
	wrong := withAPI(API{URL: s.api.URL, Client: s.api.Client()})
	if _, err := wrong.SubscribeNotifications(t.Context(), "go", "x"); err == nil {
		t.Error("no error without a key")
	}
	unset := withAPI(API{})
	if _, err := unset.SubscribeNotifications(t.Context(), "go", "x"); !errors.Is(err,
		broker.ErrUnsupported) {
		t.Errorf("without broker.api.url: %v", err)
	}
}

// connect connects a client, and waits until the stand-in has reported it: mochi sends the CONNACK
// before that, and a second connection of the client could be reported before the first. Close and
// Abort of the result end the connection.
func (s *standIn) connect(t *testing.T, id string) *mqttconn.Publisher {
	t.Helper()
	s.mu.Lock()
	before := s.sessions[id]
	s.mu.Unlock()
	dialer := &mqttconn.Dialer{
		Addresses: []mqttconn.Address{{Host: s.address()}},
		Timeout:   time.Second,
	}
	conn, err := dialer.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	publisher, err := mqttconn.NewPublisher(t.Context(), conn,
		&pahopackets.Connect{ClientID: id, CleanStart: true, KeepAlive: 30}, 10)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(publisher.Close)
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.sessions[id] == before {
		s.changed.Wait()
	}
	return publisher
}

func newDriver(s *standIn, key string) *Driver {
	config := presence.Config{
		Cluster: "holdfast", Node: "n1", Wall: func() int64 { return time.Now().UnixMilli() },
		Boot: 1, Log: slog.New(slog.DiscardHandler),
		Login: mqttconn.Login{
			Dialer: &mqttconn.Dialer{
				Addresses: []mqttconn.Address{{Host: s.address()}},
				Timeout:   time.Second,
			},
			KeepAlive: 30 * time.Second, Timeout: 5 * time.Second,
		},
		SessionExpiry: time.Minute, Interval: 100 * time.Millisecond,
	}
	return New(config, API{
		URL: s.api.URL + "/", Key: func() []byte { return []byte(key + "\n") },
		Client: s.api.Client(),
	})
}

// listen runs the driver, and returns the disconnects that it reports.
func listen(t *testing.T, d *Driver) <-chan broker.Disconnect {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan broker.Disconnect, 1000)
	ended := make(chan error, 1)
	go func() { ended <- d.WatchDisconnects(ctx, func(d broker.Disconnect) { told <- d }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	testwait.Within(t, 5*time.Second, "the driver has subscribed",
		func() bool { return d.Publish(t.Context(), "holdfast/test", nil) == nil })
	return told
}

// awaitDisconnect waits for a disconnect of the client that ends a watch made at the time watch.
// Only a disconnect of that time or later ends it.
func awaitDisconnect(t *testing.T, told <-chan broker.Disconnect, id string, watch int64) {
	t.Helper()
	for {
		select {
		case d := <-told:
			if d.ClientID == id && d.Time >= watch {
				return
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("the end of %s is not told", id)
		}
	}
}

// The time of a reported disconnect is late enough to end a watch that the client made just before.
func TestDisconnectsAreReported(t *testing.T) {
	s := startStandIn(t)
	d := newDriver(s, apiKey+":"+apiSecret)
	told := listen(t, d)
	client := s.connect(t, "press")
	watch := d.Origin(nil).Time
	left := time.Now()
	client.Close()
	awaitDisconnect(t, told, "press", watch)
	t.Logf("a watch of 0 s: ended after %v", time.Since(left).Round(time.Millisecond))
}

// † A session takeover is no disconnect, even if the event of the old connection's end arrives
// last.
func TestSessionTakeoverIsNoDisconnect(t *testing.T) {
	for name, behind := range map[string]time.Duration{
		"one clock": 0,
		"the clock of the second broker node is behind": time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			s := startStandIn(t)
			d := newDriver(s, apiKey+":"+apiSecret)
			told := listen(t, d)
			s.connect(t, "press")
			s.mu.Lock()
			s.behind, s.endsLast = behind.Milliseconds(), true
			s.mu.Unlock()
			s.connect(t, "press")
			watch := d.Origin(nil).Time
			s.awaitTakeover()
			// what is due at the same time is reported in the order of the names
			s.connect(t, "robot").Close()
			for reports := 0; reports < 3; {
				// at the connection, at its end, and once more after a while: by then an end of
				// press would have been, too
				select {
				case disconnect := <-told:
					if disconnect.ClientID == "press" && disconnect.Time >= watch {
						t.Fatalf("reported as disconnected: %+v", disconnect)
					}
					if disconnect.ClientID == "robot" {
						reports++
					}
				case <-time.After(30 * time.Second):
					t.Fatal("the other client's end is not reported")
				}
			}
		})
	}
}

// Kick disconnects a client by the REST API. It returns nil if the client is not connected any
// more. It returns an error if EMQX rejects the API key, or if the URL is not that of its API.
func TestDisconnectOfAClientThatIsGoneIsNoError(t *testing.T) {
	s := startStandIn(t)
	client := s.connect(t, "line/1 press")
	d := newDriver(s, apiKey+":"+apiSecret)
	if err := d.Kick(t.Context(), broker.Publisher{ClientID: "line/1 press"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-client.Done():
	case <-time.After(5 * time.Second):
		t.Error("the client was not disconnected")
	}
	if err := d.Kick(t.Context(), broker.Publisher{ClientID: "nobody"}); err != nil {
		t.Errorf("a client that is not there: %v", err)
	}
	if err := newDriver(s, "key:wrong").Kick(t.Context(),
		broker.Publisher{ClientID: "x"}); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a wrong secret: %v", err)
	}
	elsewhere := newDriver(s, apiKey+":"+apiSecret)
	elsewhere.api.URL += "/api/v5" // a likely mistake: the driver adds this path itself
	if err := elsewhere.Kick(t.Context(), broker.Publisher{ClientID: "nobody"}); err == nil ||
		!strings.Contains(err.Error(), "404") {
		t.Errorf("a wrong URL: %v", err)
	}
	if err := New(presence.Config{Wall: func() int64 { return 0 }}, API{}).Kick(t.Context(),
		broker.Publisher{}); !errors.Is(err, broker.ErrUnsupported) {
		t.Errorf("without an API: %v", err)
	}
}

// Read parses the payloads that EMQX's manual shows. It ignores other events and malformed
// payloads.
func TestPayloadsOfTheManualAreRead(t *testing.T) {
	for _, test := range []struct {
		topic, payload string
		want           presence.Event
	}{
		{
			"$SYS/brokers/emqx@127.0.0.1/clients/press/connected",
			`{"username":"u","ts":1625572213873,"sockport":1883,"proto_ver":5,"proto_name":"MQTT","keepalive":60,"ipaddress":"127.0.0.1","expiry_interval":0,"connected_at":1625572213873,"connack":0,"clientid":"press","clean_start":true}`,
			presence.Event{Kind: presence.Connected, ClientID: "press", Connection: 1625572213873},
		},
		{
			"$SYS/brokers/emqx@127.0.0.1/clients/press/disconnected",
			`{"username":"u","ts":1625572213873,"sockport":1883,"reason":"tcp_closed","proto_ver":5,"proto_name":"MQTT","ipaddress":"127.0.0.1","disconnected_at":1625572214000,"connected_at":1625572213873,"clientid":"press"}`,
			presence.Event{
				Kind: presence.Disconnected, ClientID: "press",
				Connection: 1625572213873,
			},
		},
		{
			"$SYS/brokers/e/clients/press/disconnected",
			`{"reason":"discarded","clientid":"press","connected_at":7}`,
			presence.Event{Kind: presence.TakenOver, ClientID: "press", Connection: 7},
		},
		{"$SYS/brokers/e/clients/press/subscribed", `{"clientid":"press"}`, presence.Event{}},
		{"$SYS/brokers/e/clients/press/disconnected", `{"clientid":`, presence.Event{}},
		{"$SYS/brokers/e/clients/press/disconnected", `{}`, presence.Event{}},
	} {
		t.Run(test.topic, func(t *testing.T) {
			if event, ok := (source{}).Read(test.topic, []byte(test.payload),
				false); event != test.want || ok != (test.want != presence.Event{}) {
				t.Errorf("%s: %+v", test.topic, event)
			}
		})
	}
	if event, ok := (source{}).Read("$SYS/brokers/e/clients/press/disconnected",
		[]byte(`{"clientid":"press","reason":"normal"}`), true); ok {
		t.Errorf("a retained event counts: %+v", event)
	}
	if fmt.Sprint((source{}).Filters()) != "[$SYS/brokers/+/clients/#]" {
		t.Error("the filters have changed: say so in docs/brokers.md")
	}
}
