package mqttconn

import (
	"crypto/tls"
	"net"
	"syscall"
	"time"
)

// rest lets what comes gather before it is read. Brokers write each message by itself, and to wake up for each is what costs most: a
// wake-up of another process is dearer than all that is done with a message. How long it takes adapts to how much comes, so that a read
// finds about gatherBytes, within bounds; where little comes it makes little difference.
type rest struct {
	socket syscall.RawConn // nil where there is none
	length time.Duration
	rested bool // before the last read
	level  int  // for which the socket was last told to wake up
	tell   func(fd uintptr)
	full   bool // the last read took all that it had room for: there is more
}

const (
	shortestRest = 250 * time.Microsecond
	// gatherBytes is about forty requests with small values.
	gatherBytes = 16 << 10
)

func newRest(conn net.Conn) *rest {
	r := &rest{length: shortestRest}
	r.tell = func(fd uintptr) { setLowWater(fd, r.level) }
	if wrapped, ok := conn.(*tls.Conn); ok {
		conn = wrapped.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		r.socket, _ = tcp.SyscallConn() // without it the rest is only a sleep
	}
	return r
}

// take rests, for at most as long as is said, unless there is more to read already.
func (r *rest) take(most time.Duration) {
	if r.rested = !r.full; !r.rested {
		return
	}
	// A sleep alone would not do: the runtime wakes up for each arrival, and notes it, whoever waits.
	r.wakeAt(readBuffer)
	time.Sleep(min(r.length, most))
	r.wakeAt(1)
}

// note takes into account how much a read found.
func (r *rest) note(n int, full bool) {
	r.full = full
	switch {
	case !r.rested:
	case n > 2*gatherBytes:
		r.length = max(r.length/2, shortestRest)
	case n < gatherBytes/2:
		r.length = min(2*r.length, time.Second)
	}
	r.rested = false
}

// wakeAt sets how many bytes have to be there for the connection to count as readable.
func (r *rest) wakeAt(bytes int) {
	if r.socket != nil {
		r.level = bytes
		_ = r.socket.Control(r.tell) // an error means that the connection has ended, as a read tells
	}
}
