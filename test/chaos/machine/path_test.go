package main

import (
	"io"
	"net"
	"testing"
	"time"
)

// What goes through the path comes out as it was, in both directions, after the delay; an end on one side is one on the other.
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
	_ = probe.Close() // the path listens there
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
