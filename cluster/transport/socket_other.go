//go:build !linux

package transport

import "net"

// tune does nothing: only Linux has TCP_USER_TIMEOUT. Elsewhere the deadlines of raft and of the
// callers end a dead connection.
func tune(net.Conn, kind) {}
