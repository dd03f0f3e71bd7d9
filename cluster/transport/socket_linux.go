package transport

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// The limits on how long sent data may stay unacknowledged (TCP_USER_TIMEOUT). Without a limit, a
// connection would still wait in long retransmission timeouts after a partition has healed. A
// receiver that reads nothing also reaches the limit. So the limit is longer for connections whose
// receiver may wait for a slow disk.
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
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: time.Second,
		Interval: time.Second, Count: 3,
	})
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	limit := unacknowledgedBulk
	if k == kindCall {
		limit = unacknowledgedCall
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
			int(limit.Milliseconds()))
	})
}
