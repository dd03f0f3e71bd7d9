//go:build !linux

package transport

import "net"

// tune has nothing to set where TCP_USER_TIMEOUT is unknown: raft's and the callers' own deadlines end a dead connection.
func tune(net.Conn, kind) {}
