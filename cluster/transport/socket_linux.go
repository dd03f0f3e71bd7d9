package transport

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// unacknowledged is how long the other machine may leave data unacknowledged. After a partition a connection would otherwise
// sleep on in ever longer retransmission timeouts.
const unacknowledged = 3 * time.Second

// tune sets the options of a connection; where that is not possible, it works as well, only slower.
func tune(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
	})
}
