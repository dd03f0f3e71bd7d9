package mqttfront

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
)

// keepingBroker keeps every session, whatever ends it, with one old request in it.
type keepingBroker struct{ connects chan packets.Connect }

func (b *keepingBroker) dial(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	go b.serve(far)
	return near, nil
}

func (b *keepingBroker) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for reader := bufio.NewReader(conn); ; {
		packet, err := mqttconn.ReadPacket(reader, 1<<20)
		if err != nil {
			return
		}
		connect, ok := packet.Content.(*packets.Connect)
		if !ok {
			continue
		}
		b.connects <- *connect
		// Before the CONNACK: no broker does that, but what comes right behind it may be read before the node has looked at the CONNACK.
		var sent bytes.Buffer
		if !connect.CleanStart {
			sent.Write(mqttconn.AppendPublish(nil, &packets.Publish{Topic: topics.Invoke, QoS: 1, PacketID: 1, Payload: []byte(del), Properties: &packets.Properties{
				ResponseTopic: "clients/c/r", CorrelationData: []byte("0123456789abcdef"),
			}}))
		}
		if _, err := (&packets.Connack{SessionPresent: !connect.CleanStart, Properties: &packets.Properties{}}).WriteTo(&sent); err != nil {
			return
		}
		if _, err := conn.Write(sent.Bytes()); err != nil {
			return
		}
	}
}

// A node that may not resume its session ends it by a connection of its own, and begins the next without a clean start, so that the broker
// persists it. Where the broker keeps the old one all the same, nothing in it is taken, and the node asks for a clean start.
func TestSessionThatIsKeptIsNotTaken(t *testing.T) {
	f, _ := newTestFront(t)
	broker := &keepingBroker{connects: make(chan packets.Connect, 100)}
	f.world.Dialer = &mqttconn.Dialer{Addresses: []mqttconn.Address{{Host: "broker:1883"}}, Timeout: time.Second, Network: broker.dial}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.receive(ctx) }()
	for i, want := range []struct {
		cleanStart, expires bool
	}{{true, true}, {false, false}, {true, false}} {
		connect := <-broker.connects
		if connect.ClientID != "holdfast-n1-in" || connect.CleanStart != want.cleanStart || (connect.Properties.SessionExpiryInterval == nil) != want.expires {
			t.Errorf("connection %d: %+v", i, connect)
		}
	}
	cancel()
	<-ended
	if f.pending.len() != 0 {
		t.Error("an old request was taken from a session that was ended")
	}
}

// A process that is stopped sends no probes. What it reads from its socket when it goes on came to the broker after the last probe that it saw,
// and perhaps long ago: deduplication may have forgotten it.
func TestRequestLongAfterTheLastProbeIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newTestFront(t)
		session := f.mode.ownSession(f)
		near, far := net.Pipe()
		defer func() { _, _ = near.Close(), far.Close() }()
		in := &ingest{
			front: f, session: session, probes: session.probes, since: time.Now(), handled: t.Context(), reason: make(chan error, 1),
			acks: mqttconn.NewAcks(mqttconn.NewConn(near, mqttconn.Receiver{MaxPacket: maxPacket})),
		}
		number := uint16(0)
		receive := func(topic string, payload []byte) {
			number++
			in.received(mqttconn.Message{Publish: &paho.Publish{Topic: topic, QoS: 1, PacketID: number, Payload: payload, Properties: &paho.PublishProperties{
				ResponseTopic: "clients/c/r", CorrelationData: fmt.Appendf(nil, "%016d", number),
			}}})
		}
		probe := fmt.Appendf(nil, "%d %d %d", session.probes.boot, 0, f.world.Wall())
		time.Sleep(f.config.SessionAge - time.Second)
		receive(topics.Invoke, []byte(del))
		receive(session.probes.topic, probe) // it took its time, and tells that what follows came to the broker after it
		receive(topics.Invoke, []byte(del))
		if f.pending.len() != 2 {
			t.Fatalf("%d requests are held", f.pending.len())
		}
		time.Sleep(2 * time.Second)
		receive(topics.Invoke, []byte(del))
		receive(topics.Invoke, []byte(del))
		if f.pending.len() > 2 {
			t.Error("a request that may be older than the session's age was taken")
		}
		// What was left out may have been an earlier request of the same client: nothing more is taken, however young it is.
		time.Sleep(contactSaveInterval)
		young := time.Now().Add(-time.Second)
		receive(session.probes.topic, fmt.Appendf(nil, "%d %d %d", session.probes.boot, young.Sub(session.probes.start).Microseconds(), f.world.Wall()))
		receive(topics.Invoke, []byte(del))
		if f.pending.len() > 2 {
			t.Error("a request was taken behind those that were left out")
		}
		if wall, _ := f.world.Contact.Load(); wall != 0 {
			t.Error("a restart would resume the session")
		}
		select {
		case err := <-in.reason:
			if !errors.Is(err, errStale) {
				t.Error(err)
			}
		default:
			t.Error("the session goes on")
		}
		if _, resumed := session.probes.resumable(); resumed {
			t.Error("the session is resumed")
		}
	})
}
