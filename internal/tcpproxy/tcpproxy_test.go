package tcpproxy_test

import (
	"io"
	"net"
	"testing"
	"time"

	"holdfast/internal/tcpproxy"
)

// echo listens, and sends back what it receives.
func echo(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

// passes reports whether a byte comes back within a time.
func passes(conn net.Conn, within time.Duration) bool {
	_ = conn.SetDeadline(time.Now().Add(within))
	if _, err := conn.Write([]byte("x")); err != nil {
		return false
	}
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err == nil
}

// Connections pass, fall silent, go on, and end, by the state of the proxy.
func TestConnectionsFollowTheState(t *testing.T) {
	p := tcpproxy.Start(t, echo(t))
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", p.Address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	const soon = 30 * time.Second
	first := dial()
	if !passes(first, soon) {
		t.Fatal("an open proxy passes nothing")
	}
	p.Set(tcpproxy.Silent)
	if passes(first, 50*time.Millisecond) {
		t.Error("a silent proxy passes something")
	}
	p.Set(tcpproxy.Open)
	_ = first.SetDeadline(time.Now().Add(soon))
	if _, err := io.ReadFull(first, make([]byte, 1)); err != nil {
		t.Errorf("what was sent meanwhile is lost: %v", err)
	}
	if p.Cut(); passes(first, soon) {
		t.Error("a connection that was cut passes something")
	}
	if !passes(dial(), soon) {
		t.Error("after a cut, no connection passes")
	}
	if p.Set(tcpproxy.Refusing); passes(dial(), soon) {
		t.Error("a refusing proxy passes something")
	}
	if n := len(p.Attempts()); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
}
