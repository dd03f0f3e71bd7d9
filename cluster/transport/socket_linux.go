package transport

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// How long the other machine may leave data unacknowledged. After a partition a connection would otherwise sleep on in ever
// longer retransmission timeouts. The same limit holds for a receiver that takes nothing, so it has to be longer where a slow
// disk is behind it.
const (
	unacknowledgedCall = 3 * time.Second
	unacknowledgedBulk = time.Minute
)

// tune sets keep-alive and TCP_USER_TIMEOUT. If that fails, a dead connection only ends later.
func tune(conn net.Conn, k kind) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3})
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	limit := unacknowledgedBulk
	if k == kindCall {
		limit = unacknowledgedCall
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
}
