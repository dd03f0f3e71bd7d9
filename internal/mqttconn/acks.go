package mqttconn

import (
	"sync"

	"github.com/eclipse/paho.golang/packets"
)

// Acks sends the PUBACKs of one connection in the order in which the messages arrived, as MQTT
// demands, whatever the order in which they are done. A message that is done after its connection
// has ended is not acknowledged, and the broker sends it again. It is safe for concurrent use.
type Acks struct {
	conn *Conn

	mu    sync.Mutex
	first uint64       // number of queue[0]
	queue []pendingAck // messages without a PUBACK, in the order of arrival
	out   []byte       // buffer for PUBACKs
}

type pendingAck struct {
	id   uint16
	done bool
}

// NewAcks returns the acknowledgements of a connection.
func NewAcks(conn *Conn) *Acks { return &Acks{conn: conn} }

// Arrived notes a message at QoS 1 and returns the number by which Done knows it.
func (a *Acks) Arrived(packetID uint16) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue = append(a.queue, pendingAck{id: packetID})
	return a.first + uint64(len(a.queue)) - 1
}

// Sent reports whether the PUBACK of a message was written, and so those of all before it.
func (a *Acks) Sent(number uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return number < a.first
}

// Waiting returns how many messages have no PUBACK yet.
func (a *Acks) Waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.queue)
}

// Done marks a message as done. It is acknowledged as soon as all before it are done. An error
// means that the connection has ended.
func (a *Acks) Done(number uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if number < a.first || number >= a.first+uint64(len(a.queue)) {
		return nil
	}
	a.queue[number-a.first].done = true
	a.out = a.out[:0]
	for len(a.queue) > 0 && a.queue[0].done {
		id := a.queue[0].id
		a.out = append(a.out, packets.PUBACK<<4, 2, byte(id>>8), byte(id))
		a.queue = a.queue[1:]
		a.first++
	}
	if len(a.out) == 0 {
		return nil
	}
	return a.conn.sendNow(a.out)
}
