package leader

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/mqttfront/session"
)

// replay is a connection that delivers some bytes and then io.EOF. It discards what is written to
// it.
type replay struct {
	net.Conn
	bytes []byte
	left  int
}

func (r *replay) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.bytes[len(r.bytes)-r.left:])
	r.left -= n
	return n, nil
}

func (r *replay) Write(p []byte) (int, error)      { return len(p), nil }
func (r *replay) Close() error                     { return nil }
func (r *replay) SetWriteDeadline(time.Time) error { return nil }

// burst is a number of SETs as a broker sends them.
func burst(count int) (encoded []byte) {
	expiry, format := uint32(10), byte(0)
	for i := range count {
		encoded = mqttconn.AppendPublish(encoded, &packets.Publish{
			Topic: topics.Invoke, QoS: 1, PacketID: uint16(i + 1),
			Payload: fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$20\r\nkey-%016d\r\n$100\r\n%0100d\r\n",
				i, i),
			Properties: &packets.Properties{
				ResponseTopic: "clients/holdfast-client-1/services/statestore/_any_/command/invoke/response", CorrelationData: fmt.Appendf(nil, "%0*d", idDigits, i),
				MessageExpiry: &expiry, ContentType: "application/octet-stream",
				PayloadFormat: &format,
				User: []packets.User{
					{Key: "__ts", Value: "1696374425000:00001:client-1"},
					{Key: "__srcId", Value: "holdfast-client-1"},
					{Key: "__protVer", Value: "1.0"},
				},
			},
		})
	}
	return encoded
}

// path takes bursts of SETs from the connection to the replies on the wire, as a leader does, with
// the log between the two as an entry that is encoded, checked and applied. Raft itself and the
// network are left out.
type path struct {
	t       testing.TB
	front   *node
	store   *fakeStore
	outbox  *fakeOutbox
	bytes   []byte
	ids     []int  // where the number of each request begins in bytes; each has idDigits digits
	next    int    // number of the last request
	index   uint64 // log index of the last entry
	number  uint64 // Entry.Number of the last entry
	buffer  []byte
	encoded []byte
}

const idDigits = 16

func newPath(t testing.TB, size int) *path {
	p := &path{t: t, bytes: append([]byte{packets.CONNACK << 4, 3, 0, 0, 0}, burst(size)...)}
	for i := range size {
		// the property, its length, its value
		correlation := fmt.Appendf(nil, "%c%c%c%0*d", 9, 0, idDigits, idDigits, i)
		p.ids = append(p.ids, bytes.Index(p.bytes, correlation)+3)
	}
	p.front, p.store = newNode(t)
	p.outbox = serve(p.front)
	p.apply(&fsm.Entry{Commands: []fsm.Command{{Kind: fsm.KindLeaderStart, Nonce: 1, Version: 1}}},
		nil)
	return p
}

func (p *path) apply(entry *fsm.Entry, tags []any) {
	p.index++
	p.buffer = fsm.AppendEntry(nil, entry) // raft keeps it
	if _, err := fsm.DecodeEntry(p.buffer); err != nil {
		p.t.Fatal(err)
	}
	outcome, err := p.store.machine.Apply(p.index, 1, p.buffer)
	if err != nil {
		p.t.Fatal(err)
	}
	p.front.Applied(outcome, tags)
}

// run takes one burst all the way.
func (p *path) run() {
	for _, at := range p.ids { // each is a request of its own
		p.next++
		for i, n := at+idDigits-1, p.next; i >= at; i, n = i-1, n/10 {
			p.bytes[i] = byte('0' + n%10)
		}
	}
	var acks *mqttconn.Acks
	conn, _, err := mqttconn.Connect(context.Background(),
		&replay{bytes: p.bytes, left: len(p.bytes)}, &packets.Connect{},
		mqttconn.Receiver{
			MaxPacket: session.MaxPacket,
			Publish: func(message mqttconn.Message) {
				number := acks.Arrived(message.PacketID)
				p.front.receiver.decodeAndAdmit(context.Background(), message, now(),
					func() { _ = acks.Done(number) })
			},
		})
	if err != nil {
		p.t.Fatal(err)
	}
	acks = mqttconn.NewAcks(conn)
	conn.Start()
	if <-conn.Done(); conn.Err() != io.EOF {
		p.t.Fatal(conn.Err())
	}
	p.number++
	p.apply(&fsm.Entry{
		Term: 1, Number: p.number, Elapsed: int64(p.number), Wall: 1_696_374_425_000,
		Commands: p.store.proposed,
	}, p.store.tags)
	p.store.proposed, p.store.tags = p.store.proposed[:0], p.store.tags[:0]
	p.encoded = p.encoded[:0]
	for _, o := range p.outbox.outputs {
		p.encoded = mqttconn.AppendPublish(p.encoded, o.Encode(time.Now()))
	}
	p.outbox.deliver()
	if keys := p.store.machine.Status().Keys; int(keys) != len(p.ids) {
		p.t.Fatalf("%d keys", keys)
	}
	conn.Close()
	if p.front.Busy() != 0 {
		p.t.Fatalf("%d busy", p.front.Busy())
	}
}

// allocationsPerSet is the most allocations of a SET on the leader, from the connection to its
// reply. Lower it when a change saves some.
const allocationsPerSet = 11

func TestAllocationsPerSetAreBounded(t *testing.T) {
	if os.Getenv("HOLDFAST_ALLOCATIONS") == "" {
		t.Skip("HOLDFAST_ALLOCATIONS is not set: make allocations (the race detector allocates, too)")
	}
	const size = 64
	p := newPath(t, size)
	p.run()
	per := testing.AllocsPerRun(100, p.run) / size
	t.Logf("%.2f allocations for each SET of a burst of %d", per, size)
	if per > allocationsPerSet {
		t.Errorf("%.2f allocations for each SET, want at most %d", per, allocationsPerSet)
	}
}

// BenchmarkSet is one burst of 64 from the connection to the replies.
func BenchmarkSet(b *testing.B) {
	p := newPath(b, 64)
	for b.Loop() {
		p.run()
	}
}
