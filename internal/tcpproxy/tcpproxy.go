// Package tcpproxy is a TCP proxy for tests, which ends connections, refuses them, or delivers
// nothing, as the test wants.
package tcpproxy

import (
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// State says what a Proxy does with connections.
type State int

const (
	Open     State = iota // connections pass
	Refusing              // connections are closed, and new ones too
	Silent                // connections stay open, and nothing passes
)

// Proxy passes TCP connections on to an address. It is safe for concurrent use.
type Proxy struct {
	target   string
	listener net.Listener
	done     sync.WaitGroup

	mu       sync.Mutex
	conns    []net.Conn
	state    State
	changed  chan struct{} // closed when the state changes
	attempts []time.Time
}

// Start starts a proxy that runs until the test ends. target is an address with a port.
func Start(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: target, listener: listener, changed: make(chan struct{})}
	p.done.Go(p.accept)
	t.Cleanup(func() {
		p.Set(Refusing)
		_ = listener.Close()
		p.done.Wait()
	})
	return p
}

// Address returns the address on which the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Attempts returns when clients connected, also when that was refused.
func (p *Proxy) Attempts() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.attempts)
}

// Set changes the state.
func (p *Proxy) Set(state State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = state
	close(p.changed)
	p.changed = make(chan struct{})
	if state == Refusing {
		p.cutLocked()
	}
}

// Cut ends all connections. The state stays as it is.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutLocked()
}

func (p *Proxy) cutLocked() {
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
}

func (p *Proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.target)
		if !p.add(near, far, err == nil) {
			_ = near.Close()
			if err == nil {
				_ = far.Close()
			}
			continue
		}
		p.done.Go(func() { p.pass(near, far) })
		p.done.Go(func() { p.pass(far, near) })
	}
}

// add counts an attempt to connect, and reports whether it may pass.
func (p *Proxy) add(near, far net.Conn, reached bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attempts = append(p.attempts, time.Now())
	if !reached || p.state == Refusing {
		return false
	}
	p.conns = append(p.conns, near, far)
	return true
}

func (p *Proxy) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		p.awaitNotSilent()
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) awaitNotSilent() {
	for {
		p.mu.Lock()
		silent, changed := p.state == Silent, p.changed
		p.mu.Unlock()
		if !silent {
			return
		}
		<-changed
	}
}
