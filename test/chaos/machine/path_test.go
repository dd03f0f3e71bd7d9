package main

import (
	"io"
	"net"
	"testing"
	"time"
)

// The proxy passes data on unchanged, in both directions, each after the delay. When the broker's
// side ends, the client's side ends, too.
func TestPathDelaysAndForwards(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = echo.Close() }()
	go func() {
		conn, err := echo.Accept()
		if err != nil {
			return
		}
		_, _ = io.CopyN(conn, conn, 5) // then it ends
		_ = conn.Close()
	}()
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := probe.Addr().String()
	_ = probe.Close() // the proxy listens there
	p, err := newDelayProxy(address, echo.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	const delay = 60 * time.Millisecond
	p.setDelay(delay)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	began := time.Now()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != "hello" {
		t.Errorf("%q came back: %v", got, err)
	}
	if took := time.Since(began); took < 2*delay {
		t.Errorf("it took %v there and back", took)
	}
}
