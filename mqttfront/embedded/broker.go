// Package embedded is an MQTT broker inside the process, for trials and demonstrations. It uses
// mochi-mqtt.
//
// Broker is also its own broker.Driver, and provides more than the other drivers. It stamps
// requests with their publisher, reports disconnects, and disconnects clients. It delivers
// notifications to clients that did not subscribe to them, because some client libraries do not
// subscribe.
//
// mochi v2.7.9 has faults that real clients meet. This package works around them with mochi's
// public hooks; each workaround has a comment and a test. The workarounds have one cost: the broker
// does not respect a client's Receive Maximum.
package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
	"holdfast/internal/mqttconn"

	"holdfast/internal/ordered"
	"holdfast/mqttfront/broker"
)

// Config says how the broker listens, and who belongs to the store itself.
type Config struct {
	Listen  string      // host:port; port 0 is any free one
	TLS     *tls.Config // nil: plain TCP
	Log     *slog.Logger
	Wall    func() int64 // milliseconds since the Unix epoch
	Cluster string       // the prefix of the nodes' client ids, which nobody else may use
	// NodeUsername and NodePassword are the login of the store's nodes. Other clients need no
	// login. NodePassword is called for each connection. If it is nil or returns nothing, no
	// connection is a node's, unless the broker is Open.
	NodeUsername string
	NodePassword func() []byte
	// Open accepts each connection with a node's client id as that of a node, without a login.
	Open bool
}

// Broker is a running broker. Its methods are safe for concurrent use.
type Broker struct {
	config   Config
	server   *mqtt.Server
	listener *listener
	hook     *hook
	base     int64        // ordinals (the numbers of connections) begin above it
	ordinal  atomic.Int64 // ordinal of the latest connection
	closing  sync.Once
	closeErr error // result of Close

	mu        sync.Mutex
	observers ordered.Set[*func(broker.Disconnect)] // the callbacks of WatchDisconnects
}

const (
	connectTimeout = 10 * time.Second // for a CONNECT packet
	writeTimeout   = 5 * time.Second  // for a client that does not read
	// resumeTimeout replaces writeTimeout while a session is resumed: all publishing clients wait
	// meanwhile.
	resumeTimeout = 250 * time.Millisecond
	// maxPacketSize bounds packets of clients, in bytes, also before their login: mochi allocates
	// the length in a packet's header before it reads the packet.
	maxPacketSize = 20 << 20
	// maxInFlight bounds the messages in flight to one client. It is below the number of packet
	// ids, because OnPacketRead needs a free one.
	maxInFlight = 60_000
	// maxSessionExpiry bounds the session expiry interval that a client asks for, in seconds.
	maxSessionExpiry = 3600
	// maxSessionBytes bounds the messages that are queued for a session without a connection, in
	// bytes. Beyond that the session is removed.
	maxSessionBytes = 64 << 20
)

// Start starts a broker. The error says why, for instance that the port is in use.
func Start(config Config) (*Broker, error) {
	capabilities := mqtt.NewDefaultServerCapabilities()
	capabilities.ReceiveMaximum = 65535
	capabilities.MaximumInflight = maxInFlight
	capabilities.MaximumClientWritesPending = 131072
	capabilities.MaximumPacketSize = maxPacketSize
	// otherwise mochi computes expiry times from Created, which OnPublish replaces
	capabilities.MaximumMessageExpiryInterval = 0
	capabilities.MaximumSessionExpiryInterval = maxSessionExpiry
	// mochi would keep a client's aliases for its next connection
	capabilities.TopicAliasMaximum = 0
	capabilities.Compatibilities.NoInheritedPropertiesOnAck = true
	b := &Broker{config: config, base: config.Wall() << 20}
	b.ordinal.Store(b.base)
	b.server = mqtt.New(&mqtt.Options{
		// mochi logs whole packets, payload and all
		Capabilities: capabilities, Logger: slog.New(slog.DiscardHandler),
		ClientNetReadBufferSize: 64 << 10, ClientNetWriteBufferSize: 64 << 10,
		SysTopicResendInterval: 3600,
	})
	b.hook = &hook{
		nodes: nodeLogin{&b.config}, server: b.server,
		nextOrdinal: func() int64 { return b.ordinal.Add(1) }, disconnected: b.reportDisconnect,
		log: config.Log,
	}
	if err := b.server.AddHook(b.hook, nil); err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	b.server.Topics.Subscribe(ghostClient, packets.Subscription{Filter: ghostFilter, Qos: 1})
	b.listener = newListener(config, b.hook.ended)
	if err := b.server.AddListener(b.listener); err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	if err := b.server.Serve(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the embedded broker: %w", err), b.Close())
	}
	return b, nil
}

// Address returns the host and port on which the broker listens.
func (b *Broker) Address() string { return b.listener.Address() }

// Close disconnects all clients and waits until their connections have ended. Later calls return
// the same error.
func (b *Broker) Close() error {
	b.closing.Do(func() { b.closeErr = b.server.Close() })
	return b.closeErr
}

// The user properties that the broker stamps on requests. It removes properties of these names that
// the client sent.
const (
	ClientIDProperty   = "$holdfast-client-id"
	UsernameProperty   = "$holdfast-username"
	connectionProperty = "$holdfast-connection"
	qosProperty        = "$holdfast-qos"
)

// Origin implements broker.Driver.
func (b *Broker) Origin(request *mqttconn.Publish) (origin broker.Origin) {
	for _, user := range request.Properties.User {
		switch user.Key {
		case connectionProperty:
			_, _ = fmt.Sscan(user.Value, &origin.Time) // the broker wrote it
		case qosProperty:
			if user.Value == "2" {
				origin.QoS = 2
			}
		}
	}
	return origin
}

// TrustedIdentity implements broker.Driver.
func (b *Broker) TrustedIdentity() bool { return true }

// WatchDisconnects implements broker.Driver. It first reports that all clients that were connected
// before the broker started have disconnected.
func (b *Broker) WatchDisconnects(ctx context.Context, disconnected func(broker.Disconnect)) error {
	b.mu.Lock()
	// under the lock, so that the next disconnect is reported after it
	disconnected(broker.Disconnect{Everyone: true, Time: b.base})
	b.observers.Add(&disconnected)
	b.mu.Unlock()
	<-ctx.Done()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.observers.Delete(&disconnected)
	return nil
}

// reportDisconnect reports a client's disconnect to the callers of WatchDisconnects.
func (b *Broker) reportDisconnect(clientID string, ordinal int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for observer := range b.observers.All() {
		(*observer)(broker.Disconnect{ClientID: clientID, Time: ordinal})
	}
}

// Kick implements broker.Driver.
func (b *Broker) Kick(_ context.Context, publisher broker.Publisher) error {
	client, ok := b.server.Clients.Get(publisher.ClientID)
	if ok && !client.Closed() {
		disconnect(client, packets.ErrAdministrativeAction)
	}
	return nil
}

// protected reports whether only nodes may publish on a topic: notifications, and the topics under
// holdfast/ (probes and the markers of mirrors and presence).
func protected(topic string) bool {
	return strings.HasPrefix(topic, notificationPrefix) || strings.HasPrefix(topic, "holdfast/")
}
