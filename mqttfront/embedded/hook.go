package embedded

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"holdfast/internal/topics"
)

const (
	notificationPrefix = "clients/statestore/v1/"
	// ghostClient has a shared subscription to all notifications: mochi asks OnSelectSubscribers only about topics that some
	// shared subscription matches. No client can have this id, because MQTT forbids U+0000.
	ghostClient = "\x00implicit"
	ghostFilter = "$SHARE/holdfast/" + notificationPrefix + "+/+/command/notify/#"
)

// hook is where mochi is corrected, and where the broker serves the store.
type hook struct {
	mqtt.HookBase
	nodes        nodeLogin
	server       *mqtt.Server
	nextOrdinal  func() int64
	disconnected func(clientID string, ordinal int64)
	log          *slog.Logger

	sequence atomic.Int64
	// gate holds publishes back while a session is being taken up: else those between the old one and its replacement are lost.
	gate        sync.RWMutex
	replacing   atomic.Pointer[mqtt.Client] // who holds the gate
	connections sync.Map                    // *mqtt.Client to *connection
	away        sync.Map                    // *mqtt.Client of a session without a connection, to the bytes it keeps
	live        sync.Map                    // net.Conn to a channel that is closed when mochi is through with it
}

// connection is what the hook knows of one connection.
type connection struct {
	ordinal int64
	node    bool // one of the store's own
	// The fields below belong to the goroutine that reads from the connection.
	original, replacement uint16 // packet id under translation
	publishing            bool   // holds the gate for reading
	unreceived            bool   // it is publishing a request, and no node's session has subscribed to requests
}

// ID implements mqtt.Hook.
func (h *hook) ID() string { return "holdfast" }

// Provides implements mqtt.Hook.
func (h *hook) Provides(event byte) bool {
	return slices.Contains([]byte{
		mqtt.OnConnectAuthenticate, mqtt.OnACLCheck, mqtt.OnConnect, mqtt.OnSessionEstablish, mqtt.OnSessionEstablished,
		mqtt.OnDisconnect, mqtt.OnPacketRead, mqtt.OnPacketEncode, mqtt.OnPublish, mqtt.OnSelectSubscribers,
		mqtt.OnClientExpired, mqtt.OnPacketProcessed, mqtt.OnQosPublish,
	}, event)
}

func (h *hook) connection(client *mqtt.Client) *connection {
	if found, ok := h.connections.Load(client); ok {
		return found.(*connection)
	}
	return nil
}

// OnConnect corrects what CONNECT has set, before anything uses it.
func (h *hook) OnConnect(client *mqtt.Client, _ packets.Packet) error {
	// mochi hangs for good, or stalls, once it counts a client's send quota: inbound and outbound packet ids share one map,
	// so quota is never given back. A negative quota is not counted. A resumed session would get the quota back from here.
	client.Properties.Props.ReceiveMaximum = 0
	client.State.Inflight.ResetSendQuota(-1)
	// An alias given to a client would be in a message that is sent again on its next connection.
	client.Properties.Props.TopicAliasMaximum = 0
	// A client that wants no problem information would get no user properties either.
	client.Properties.Props.RequestProblemInfoFlag = false
	return nil
}

// OnConnectAuthenticate lets everybody in, except under the client ids of the nodes.
func (h *hook) OnConnectAuthenticate(client *mqtt.Client, packet packets.Packet) bool {
	node := h.nodes.isNode(client, packet.Connect.Password)
	if !node && (h.nodes.reserved(client.ID) || protected(packet.Connect.WillTopic)) { // a will passes no access check
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

// OnSessionEstablish runs before an old session is inherited and before CONNACK.
func (h *hook) OnSessionEstablish(client *mqtt.Client, packet packets.Packet) {
	old, ok := h.server.Clients.Get(client.ID)
	if ok {
		h.away.Delete(old)
		h.retire(old)
	}
	h.gate.Lock()
	h.replacing.Store(client)
	setWriteTimeout(client, resumeTimeout)
	if !ok || packet.Connect.Clean {
		return
	}
	// mochi sends again in the order of uint16(Created), which is in seconds; OnPublish has put a sequence number there.
	unacknowledged := old.State.Inflight.GetAll(false)
	slices.SortFunc(unacknowledged, func(a, b packets.Packet) int { return cmp.Compare(a.Created, b.Created) })
	for i := range unacknowledged {
		unacknowledged[i].Created = int64(i)
		old.State.Inflight.Set(unacknowledged[i])
	}
}

// retire ends the connection that had the client's id before. One that ends by itself just now has to be through with it:
// mochi removes a client that went away, and its subscriptions, by its id, and would remove the new one.
func (h *hook) retire(old *mqtt.Client) {
	if !old.Closed() {
		disconnect(old, packets.ErrSessionTakenOver)
	}
	if errorIs(old.StopCause(), packets.ErrSessionTakenOver) {
		return // OnDisconnect waits for the mark that it was taken over
	}
	ended, ok := h.live.Load(old.Net.Conn)
	if !ok {
		return
	}
	timer := time.NewTimer(takeoverWait)
	defer timer.Stop()
	select {
	case <-ended.(chan struct{}):
	case <-timer.C:
	}
}

// OnSessionEstablished runs after CONNACK and the resend, before the first packet is read.
func (h *hook) OnSessionEstablished(client *mqtt.Client, _ packets.Packet) {
	client.State.Inflight.ResetSendQuota(-1) // a resumed session has brought its own
	h.release(client)
}

func setWriteTimeout(client *mqtt.Client, timeout time.Duration) {
	if conn, ok := client.Net.Conn.(*clientConn); ok {
		conn.setTimeout(timeout)
	}
}

func (h *hook) release(client *mqtt.Client) {
	if h.replacing.CompareAndSwap(client, nil) {
		setWriteTimeout(client, writeTimeout)
		h.gate.Unlock()
	}
}

// ended is called when mochi is through with a network connection. OnSessionEstablished is left out when CONNACK or the resend
// could not be written, and OnDisconnect when authentication failed.
func (h *hook) ended(network net.Conn) {
	if channel, ok := h.live.LoadAndDelete(network); ok {
		close(channel.(chan struct{}))
	}
	if client := h.replacing.Load(); client != nil && client.Net.Conn == network {
		h.connections.Delete(client)
		h.release(client)
	}
}

// takeoverWait bounds the waits for mochi to mark a connection as taken over, and to end one that is ending by itself.
const takeoverWait = 2 * time.Second

// OnDisconnect tells the store that a client disconnected.
func (h *hook) OnDisconnect(client *mqtt.Client, _ error, _ bool) {
	c := h.connection(client)
	h.connections.Delete(client)
	if errorIs(client.StopCause(), packets.ErrSessionTakenOver) {
		// mochi sets the mark only after it has closed the connection; without it, it may now forget the new one.
		for end := time.Now().Add(takeoverWait); !client.IsTakenOver() && time.Now().Before(end); {
			time.Sleep(50 * time.Microsecond)
		}
	}
	if c != nil && !c.node {
		h.disconnected(client.ID, c.ordinal)
	}
}

func errorIs(err error, code packets.Code) bool {
	found, ok := err.(packets.Code) //nolint:errorlint // mochi stores the bare code
	return ok && found == code
}

// OnClientExpired removes the subscriptions of a session that is over: mochi forgets to, and the next session under that id
// would inherit them.
func (h *hook) OnClientExpired(client *mqtt.Client) { h.forget(client) }

// OnQosPublish bounds what a session keeps while its client is away. Beyond it the session is dropped: the client starts a new
// one when it comes back, and knows.
func (h *hook) OnQosPublish(client *mqtt.Client, packet packets.Packet, _ int64, _ int) {
	if !client.Closed() {
		return
	}
	const overhead = 256
	kept, _ := h.away.LoadOrStore(client, new(atomic.Int64))
	if kept.(*atomic.Int64).Add(int64(overhead+len(packet.Payload))) <= maxSessionBytes {
		return
	}
	h.log.Warn("a session that is away has too many messages: it is dropped", "client", client.ID)
	h.forget(client)
	h.server.Clients.Delete(client.ID)
}

// forget removes what a session that is over has left behind.
func (h *hook) forget(client *mqtt.Client) {
	h.away.Delete(client)
	h.server.UnsubscribeClient(client)
	client.ClearInflights()
}

// OnPacketRead translates packet ids. mochi keeps those of both directions in one map: an inbound id that meets an outbound
// message in flight would delete that message (PUBLISH), or be refused (SUBSCRIBE, UNSUBSCRIBE). The ids of QoS 2 stay as they are.
func (h *hook) OnPacketRead(client *mqtt.Client, packet packets.Packet) (packets.Packet, error) {
	switch kind := packet.FixedHeader.Type; {
	case kind == packets.Publish && packet.FixedHeader.Qos == 1, kind == packets.Subscribe, kind == packets.Unsubscribe:
	default:
		return packet, nil
	}
	c := h.connection(client)
	if c == nil || packet.PacketID == 0 {
		return packet, nil
	}
	c.replacement = 0
	if _, clash := client.State.Inflight.Get(packet.PacketID); !clash {
		return packet, nil
	}
	id := packet.PacketID + 1<<15
	for range 1 << 16 {
		if _, taken := client.State.Inflight.Get(id); !taken && id != 0 {
			break
		}
		id++
	}
	c.original, c.replacement = packet.PacketID, id
	packet.PacketID = id
	return packet, nil
}

// OnPacketEncode corrects what goes out. Acknowledgements are written by the goroutine that read what they acknowledge.
func (h *hook) OnPacketEncode(client *mqtt.Client, packet packets.Packet) packets.Packet {
	switch packet.FixedHeader.Type {
	case packets.Puback, packets.Suback, packets.Unsuback:
		if packet.FixedHeader.Type == packets.Puback {
			if packet.ReasonCode == packets.CodeGrantedQos1.Code {
				packet.ReasonCode = 0 // 0x01 is no reason of a PUBACK: some clients crash on it
			}
			packet.Properties.User = nil // an echo of the request's
		}
		c := h.connection(client)
		if c != nil && c.unreceived && packet.FixedHeader.Type == packets.Puback {
			none := packets.CodeNoMatchingSubscribers
			packet.ReasonCode, packet.Properties.ReasonString = none.Code, none.Reason // mochi leaves out a code below 0x80 without properties
		}
		if c != nil && c.replacement != 0 && c.replacement == packet.PacketID {
			packet.PacketID = c.original
		}
	case packets.Connack:
		packet.Properties.MaximumPacketSize = maxPacketSize // mochi does not announce it
	}
	return packet
}

// OnPublish stamps requests with who published them and how.
func (h *hook) OnPublish(client *mqtt.Client, packet packets.Packet) (packets.Packet, error) {
	h.gate.RLock()
	c := h.connection(client)
	if c == nil { // the client is being thrown out
		h.gate.RUnlock()
		return packet, packets.CodeSuccessIgnore
	}
	c.publishing = true
	if packet.TopicName == topics.Invoke && strings.ContainsAny(packet.Properties.ResponseTopic, "+#") {
		// mochi would deliver the request without its response topic, and nobody could tell whom to disconnect.
		disconnect(client, packets.ErrAdministrativeAction)
		return packet, packets.CodeSuccessIgnore
	}
	packet.Created = h.sequence.Add(1) // the order of a resend
	if packet.TopicName == topics.Invoke {
		if c.unreceived = !h.reachesNode(topics.Invoke); c.unreceived {
			return packet, packets.CodeSuccessIgnore
		}
		packet.Properties.User = stamp(packet.Properties.User, client, c, packet.FixedHeader.Qos)
	}
	return packet, nil
}

// reachesNode reports whether a node's session has a subscription to a topic.
func (h *hook) reachesNode(topic string) bool {
	subscribers := h.server.Topics.Subscribers(topic)
	for id := range subscribers.Subscriptions {
		if h.nodes.reserved(id) {
			return true
		}
	}
	for _, group := range subscribers.Shared {
		for id := range group {
			if h.nodes.reserved(id) {
				return true
			}
		}
	}
	return false
}

// OnPacketProcessed follows each OnPublish, on the same goroutine, also when the acknowledgement could not be written.
func (h *hook) OnPacketProcessed(client *mqtt.Client, _ packets.Packet, _ error) {
	if c := h.connection(client); c != nil && c.publishing {
		c.publishing, c.unreceived = false, false
		h.gate.RUnlock()
	}
}

func stamp(user []packets.UserProperty, client *mqtt.Client, c *connection, qos byte) []packets.UserProperty {
	stamps := []packets.UserProperty{
		{Key: ClientIDProperty, Val: client.ID},
		{Key: UsernameProperty, Val: string(client.Properties.Username)},
		{Key: connectionProperty, Val: strconv.FormatInt(c.ordinal, 10)},
		{Key: qosProperty, Val: strconv.Itoa(int(qos))},
	}
	user = slices.DeleteFunc(user, func(u packets.UserProperty) bool {
		return slices.ContainsFunc(stamps, func(s packets.UserProperty) bool { return s.Key == u.Key })
	})
	return append(user, stamps...)
}

// OnSelectSubscribers delivers a notification once to the client that it is for, whether or not that client has subscribed.
func (h *hook) OnSelectSubscribers(subscribers *mqtt.Subscribers, packet packets.Packet) *mqtt.Subscribers {
	if _, ok := subscribers.Shared[ghostFilter]; !ok {
		return subscribers
	}
	delete(subscribers.Shared, ghostFilter)
	level, _, _ := strings.Cut(strings.TrimPrefix(packet.TopicName, notificationPrefix), "/")
	rest := strings.TrimPrefix(packet.TopicName, notificationPrefix+level+"/")
	encoded, _, _ := strings.Cut(rest, "/")
	id, err := hex.DecodeString(encoded)
	if err != nil {
		return subscribers
	}
	if _, subscribed := subscribers.Subscriptions[string(id)]; subscribed {
		return subscribers
	}
	client, ok := h.server.Clients.Get(string(id))
	if !ok || client.Closed() { // without the second test it would be queued for a session that is offline
		return subscribers
	}
	subscribers.Subscriptions[string(id)] = packets.Subscription{Filter: packet.TopicName, Qos: 1}
	return subscribers
}

// disconnect disconnects a client. mochi's own DisconnectClient leaves the DISCONNECT in a buffer that it throws away when
// messages are waiting, and sends it to MQTT 3.1.1 clients, who do not know it.
func disconnect(client *mqtt.Client, code packets.Code) {
	if client.Properties.ProtocolVersion != 5 || client.Net.Conn == nil {
		client.Stop(code)
		return
	}
	packet := packets.Packet{ProtocolVersion: 5, FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ReasonCode: code.Code}
	var encoded bytes.Buffer
	if err := packet.DisconnectEncode(&encoded); err != nil {
		client.Stop(code)
		return
	}
	_ = client.Net.Conn.SetWriteDeadline(time.Now().Add(time.Second)) // a writer that is stuck gives the lock up
	client.Lock()                                                     // mochi writes under it
	defer client.Unlock()
	if !client.Closed() {
		_, _ = client.Net.Conn.Write(encoded.Bytes()) // as far as it goes: the connection ends now
		client.Stop(code)                             // within the lock: nothing may follow a DISCONNECT
	}
}
