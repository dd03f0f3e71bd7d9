package embedded

import (
	"cmp"
	"net"
	"slices"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// OnSessionEstablish prepares the resumption of a session. mochi calls it before the new client
// takes over the session of the old one, and before CONNACK.
func (h *hook) OnSessionEstablish(client *mqtt.Client, packet packets.Packet) {
	old, ok := h.server.Clients.Get(client.ID)
	if ok {
		h.away.Delete(old)
		h.retire(old)
	}
	h.gate.Lock()
	h.resuming.Store(client)
	setWriteTimeout(client, resumeTimeout)
	if !ok || packet.Connect.Clean {
		return
	}
	// mochi resends in the order of uint16(Created). OnPublish has stored a sequence number there,
	// which may exceed 16 bits. So Created becomes the position.
	unacknowledged := old.State.Inflight.GetAll(false)
	slices.SortFunc(unacknowledged,
		func(a, b packets.Packet) int { return cmp.Compare(a.Created, b.Created) })
	for i := range unacknowledged {
		unacknowledged[i].Created = int64(i)
		old.State.Inflight.Set(unacknowledged[i])
	}
}

// retire ends the old connection of a client id. If that connection is ending already, for another
// reason, retire waits until mochi is done with it, for at most takeoverWait: mochi removes the
// client and its subscriptions by client id, and would remove the new client's.
func (h *hook) retire(old *mqtt.Client) {
	if !old.Closed() {
		disconnect(old, packets.ErrSessionTakenOver)
	}
	if errorIs(old.StopCause(), packets.ErrSessionTakenOver) {
		// OnDisconnect waits until mochi has marked it as taken over, and then mochi removes
		// nothing
		return
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

// OnSessionEstablished ends the resumption of a session. mochi calls it after CONNACK and the
// resend, before it reads the next packet.
func (h *hook) OnSessionEstablished(client *mqtt.Client, _ packets.Packet) {
	client.State.Inflight.ResetSendQuota(-1) // mochi has copied the quota of the old client
	h.release(client)
}

func setWriteTimeout(client *mqtt.Client, timeout time.Duration) {
	if conn, ok := client.Net.Conn.(*clientConn); ok {
		conn.setTimeout(timeout)
	}
}

// release gives up gate if client holds it for writing.
func (h *hook) release(client *mqtt.Client) {
	if h.resuming.CompareAndSwap(client, nil) {
		setWriteTimeout(client, writeTimeout)
		h.gate.Unlock()
	}
}

// ended cleans up after a network connection that mochi is done with. If CONNACK or the resend
// could not be written, mochi has called neither OnSessionEstablished nor OnDisconnect. If the
// authentication failed, nothing is left to clean up.
func (h *hook) ended(network net.Conn) {
	if channel, ok := h.live.LoadAndDelete(network); ok {
		close(channel.(chan struct{}))
	}
	if client := h.resuming.Load(); client != nil && client.Net.Conn == network {
		h.connections.Delete(client)
		h.release(client)
	}
}

// takeoverWait bounds two waits for mochi: until it has marked a client as taken over, and until it
// is done with a connection that is ending.
const takeoverWait = 2 * time.Second

// OnDisconnect reports a disconnect to the store.
func (h *hook) OnDisconnect(client *mqtt.Client, _ error, _ bool) {
	c := h.connection(client)
	h.connections.Delete(client)
	if errorIs(client.StopCause(), packets.ErrSessionTakenOver) {
		// mochi marks the client as taken over only after it has closed the connection. If this
		// method returned before that, mochi would remove the new client.
		for end := time.Now().Add(takeoverWait); !client.IsTakenOver() && time.Now().Before(end); {
			time.Sleep(50 * time.Microsecond)
		}
	}
	if c != nil && !c.node {
		h.disconnected(client.ID, c.ordinal)
	}
}

// OnClientExpired removes the subscriptions of a session that has expired. mochi does not, and the
// next session with that client id would inherit them.
func (h *hook) OnClientExpired(client *mqtt.Client) { h.forget(client) }

// OnQosPublish bounds the messages that are queued for a session without a connection, by
// maxSessionBytes. Beyond that it removes the session. The client learns that from Session Present
// 0 when it connects again.
func (h *hook) OnQosPublish(client *mqtt.Client, packet packets.Packet, _ int64, _ int) {
	if !client.Closed() {
		return
	}
	size, _ := h.away.LoadOrStore(client, new(atomic.Int64))
	if size.(*atomic.Int64).Add(sizeOf(&packet)) <= maxSessionBytes {
		return
	}
	h.log.Warn("the session of a disconnected client is removed: too many messages are queued for it", "client", client.ID)
	h.forget(client)
	h.server.Clients.Delete(client.ID)
}

// forget removes the subscriptions and the queued messages of a session that has ended.
func (h *hook) forget(client *mqtt.Client) {
	h.away.Delete(client)
	h.server.UnsubscribeClient(client)
	client.ClearInflights()
}

// sizeOf returns about how many bytes of memory a queued message takes.
func sizeOf(packet *packets.Packet) int64 {
	const overhead, perProperty = 256, 64
	size := overhead + len(packet.TopicName) + len(packet.Payload) +
		len(packet.Properties.ResponseTopic) + len(packet.Properties.CorrelationData)
	for i := range packet.Properties.User {
		size += perProperty + len(packet.Properties.User[i].Key) +
			len(packet.Properties.User[i].Val)
	}
	return int64(size)
}
