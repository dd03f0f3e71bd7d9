package embedded

import (
	"bytes"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// hook implements mqtt.Hook. It works around faults of mochi v2.7.9, and does for the store what no
// MQTT standard has: it stamps requests, reports disconnects, and delivers notifications without a
// subscription.
//
// For each connection mochi calls, on the goroutine that reads from it:
//
//	OnConnect, OnConnectAuthenticate, OnSessionEstablish, [CONNACK, resend],
//	OnSessionEstablished, [packets], OnDisconnect
//
// It stops after the first step that fails. The listener calls ended when that goroutine is done
// with the connection, after whichever step.
type hook struct {
	mqtt.HookBase
	nodes        nodeLogin
	server       *mqtt.Server
	nextOrdinal  func() int64 // returns the ordinal of a new connection
	disconnected func(clientID string, ordinal int64)
	log          *slog.Logger

	connections sync.Map // *mqtt.Client to *connection, from OnConnectAuthenticate to OnDisconnect
	// net.Conn to a channel, from OnConnectAuthenticate until the method ended closes it
	live sync.Map
	// *mqtt.Client of a session without a connection, to an *atomic.Int64 with the size of its
	// queued messages
	away sync.Map

	sequence atomic.Int64 // number of the last PUBLISH that was received
	// gate orders publishes and the resumption of sessions. A publish holds it for reading, the
	// resumption of a session for writing: a message that mochi routes between the old client of
	// the session and the new one would be lost.
	gate     sync.RWMutex
	resuming atomic.Pointer[mqtt.Client] // the client that holds gate for writing; nil if none does
}

// connection is what the hook knows of one connection.
type connection struct {
	ordinal int64 // orders all connections to this broker
	node    bool  // a node of the store has logged in
	// The fields below are used only on the goroutine that reads from the connection. packet id of
	// the packet that is being processed, as the client sent it and as mochi sees it; replacement 0
	// is unchanged
	original, replacement uint16
	publishing            bool // holds hook.gate for reading
	// the PUBLISH being processed is a request, and no node's session has subscribed to requests
	unreceived bool
}

// ID implements mqtt.Hook.
func (h *hook) ID() string { return "holdfast" }

// Provides implements mqtt.Hook: it lists the methods that mochi calls.
func (h *hook) Provides(event byte) bool {
	return slices.Contains([]byte{
		mqtt.OnConnectAuthenticate, mqtt.OnACLCheck, mqtt.OnConnect, mqtt.OnSessionEstablish,
		mqtt.OnSessionEstablished,
		mqtt.OnDisconnect, mqtt.OnPacketRead, mqtt.OnPacketEncode, mqtt.OnPublish,
		mqtt.OnSelectSubscribers,
		mqtt.OnClientExpired, mqtt.OnPacketProcessed, mqtt.OnQosPublish,
	}, event)
}

func (h *hook) connection(client *mqtt.Client) *connection {
	if found, ok := h.connections.Load(client); ok {
		return found.(*connection)
	}
	return nil
}

// OnConnect changes properties of CONNECT before mochi uses them.
func (h *hook) OnConnect(client *mqtt.Client, _ packets.Packet) error {
	// mochi must not count the client's send quota. It has one map for inbound and outbound packet
	// ids, so it does not always return quota, and a client stalls. It does not count down a
	// negative quota. Receive Maximum is changed, too: mochi makes the quota of a resumed session
	// from it.
	client.Properties.Props.ReceiveMaximum = 0
	client.State.Inflight.ResetSendQuota(-1)
	// mochi would repeat a message with a topic alias on the client's next connection, where the
	// alias is unknown.
	client.Properties.Props.TopicAliasMaximum = 0
	// To a client that wants no problem information mochi would not send user properties, also not
	// those of replies.
	client.Properties.Props.RequestProblemInfoFlag = false
	return nil
}

// OnConnectAuthenticate accepts every client, except one that uses a node's client id without the
// nodes' login, or has a will on a protected topic.
func (h *hook) OnConnectAuthenticate(client *mqtt.Client, packet packets.Packet) bool {
	node := h.nodes.isNode(client, packet.Connect.Password)
	if !node && (h.nodes.reserved(client.ID) || protected(packet.Connect.WillTopic)) {
		// mochi does not call OnACLCheck for a will
		return false
	}
	h.connections.Store(client, &connection{ordinal: h.nextOrdinal(), node: node})
	h.live.Store(client.Net.Conn, make(chan struct{}))
	return true
}

// OnACLCheck keeps clients from publishing what only nodes publish.
func (h *hook) OnACLCheck(client *mqtt.Client, topic string, write bool) bool {
	if !write || !protected(topic) {
		return true
	}
	c := h.connection(client)
	return c != nil && c.node
}

func errorIs(err error, code packets.Code) bool {
	found, ok := err.(packets.Code) //nolint:errorlint // mochi stores the bare code
	return ok && found == code
}

// disconnect disconnects a client with a reason code. mochi's own DisconnectClient is not used: it
// discards the buffer that has the DISCONNECT if other messages are waiting, and it sends
// DISCONNECT to MQTT 3.1.1 clients, whose protocol does not allow it.
func disconnect(client *mqtt.Client, code packets.Code) {
	if client.Properties.ProtocolVersion != 5 || client.Net.Conn == nil {
		client.Stop(code)
		return
	}
	packet := packets.Packet{
		ProtocolVersion: 5,
		FixedHeader:     packets.FixedHeader{Type: packets.Disconnect}, ReasonCode: code.Code,
	}
	var encoded bytes.Buffer
	if err := packet.DisconnectEncode(&encoded); err != nil {
		client.Stop(code)
		return
	}
	// a Write that blocks in mochi fails, so that mochi releases the lock
	_ = client.Net.Conn.SetWriteDeadline(time.Now().Add(time.Second))
	// mochi holds it while it writes
	client.Lock()
	defer client.Unlock()
	if !client.Closed() {
		_, _ = client.Net.Conn.Write(encoded.Bytes()) // the connection ends even if this fails
		// with the lock held: no packet may follow a DISCONNECT
		client.Stop(code)
	}
}
