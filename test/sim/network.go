package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"holdfast/internal/ordered"
	"holdfast/test/sim/schedule"
)

// class says what a connection carries, so that a fault can hit one kind of traffic and not
// another. A connection between members is dialled as classCall, and becomes classRaft when its
// first write shows that.
type class string

const (
	classRaft class = "raft" // Raft's own messages
	// other requests between members: confirmations, statuses, joins, offers, hashes
	classCall   class = "call"
	classBroker class = "broker" // MQTT
)

// link is one direction between two hosts for one kind of traffic.
type link struct {
	from, to string
	class    class
}

// gate is open, or closed by one or more faults.
type gate struct {
	mu     schedule.Mutex
	closed int // how many faults have closed it
	opened chan struct{}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed++; g.closed == 1 {
		g.opened = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed--; g.closed == 0 {
		close(g.opened)
	}
}

// whenOpen returns a channel that is closed when the gate opens. It is nil while the gate is open.
func (g *gate) whenOpen() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == 0 {
		return nil
	}
	return g.opened
}

// linkState is the effect of faults on a link.
type linkState struct {
	gate  gate
	mu    schedule.Mutex
	delay time.Duration // mean extra latency of each write
}

// hostState is the effect of faults on a host.
type hostState struct {
	running gate // closed while its processes are stopped: nothing comes in, and nothing goes out
	// closed while it has no power: a dial gets no answer. What the host sent before still arrives.
	power gate
}

// network connects hosts by reliable ordered streams, like TCP. Data on one connection may overtake
// data on another. A link that is cut delivers nothing until the cut ends or the connection is
// reset by a fault. An end learns of the close of the other end as in TCP: by the end of the
// stream, or by a reset that answers what it has sent. Both take time, and neither passes a link
// that is cut.
type network struct {
	latency time.Duration // mean one-way latency between hosts; positive

	mu        schedule.Mutex
	random    *rand.Rand
	links     map[link]*linkState
	hosts     map[string]*hostState
	listeners map[string]*listener
	conns     ordered.Set[*conn]
}

func newNetwork(random *rand.Rand, latency time.Duration) *network {
	return &network{
		latency: latency, random: random, links: make(map[link]*linkState),
		hosts:     make(map[string]*hostState),
		listeners: make(map[string]*listener),
	}
}

func (n *network) link(l link) *linkState { return getOrCreate(&n.mu, n.links, l) }

func (n *network) host(name string) *hostState { return getOrCreate(&n.mu, n.hosts, name) }

// shut returns a channel that is closed when the first closed gate opens: a gate of the links, of
// their hosts, or another one. It is nil if all are open.
func (n *network) shut(links []link, others ...*gate) <-chan struct{} {
	gates := others
	for _, l := range links {
		gates = append(gates, &n.link(l).gate, &n.host(l.from).running, &n.host(l.to).running)
	}
	for _, g := range gates {
		if opened := g.whenOpen(); opened != nil {
			return opened
		}
	}
	return nil
}

// getOrCreate returns the value under a key of a map, and creates it if it is missing.
func getOrCreate[K comparable, V any](mu *schedule.Mutex, of map[K]*V, key K) *V {
	mu.Lock()
	defer mu.Unlock()
	value := of[key]
	if value == nil {
		value = new(V)
		of[key] = value
	}
	return value
}

// drawLatency returns the latency of one write on a link.
func (n *network) drawLatency(l link) time.Duration {
	state := n.link(l)
	state.mu.Lock()
	delay := state.delay
	state.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	jittered := n.latency/2 + time.Duration(n.random.Int64N(int64(n.latency)))
	if delay > 0 {
		jittered += delay/2 + time.Duration(n.random.Int64N(int64(delay)))
	}
	return jittered
}

// slow sets the mean extra latency of a link; 0 ends it.
func (n *network) slow(l link, delay time.Duration) {
	state := n.link(l)
	state.mu.Lock()
	defer state.mu.Unlock()
	state.delay = delay
}

// reset breaks all connections for which chosen returns true, on both sides, at once.
func (n *network) reset(chosen func(*conn) bool) {
	for _, c := range n.connections(chosen) {
		c.abort(errReset)
		c.peer.abort(errReset)
	}
}

// rebooted makes a reset reach the other ends of the connections that a host's last process left,
// as the answer to a keep-alive probe.
func (n *network) rebooted(host string) {
	for _, c := range n.connections(func(c *conn) bool { return c.outgoing().to == host }) {
		c.in.reset(c.peer.arrival())
	}
}

// connections returns the ends for which chosen returns true, in the order in which they were made.
func (n *network) connections(chosen func(*conn) bool) []*conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ends []*conn
	for c := range n.conns.All() {
		if chosen(c) {
			ends = append(ends, c)
		}
	}
	return ends
}

var (
	errReset   = os.NewSyscallError("read", syscall.ECONNRESET)
	errRefused = os.NewSyscallError("connect", syscall.ECONNREFUSED)
)

// stack is a process's network stack. When the process dies, its listeners and connections end.
type stack struct {
	network *network
	host    string

	mu        schedule.Mutex
	dead      bool
	conns     ordered.Set[*conn]
	listeners []*listener
}

func (n *network) newStack(host string) *stack {
	return &stack{network: n, host: host}
}

// Listen implements transport.Network.
func (s *stack) Listen(address string) (net.Listener, error) { return s.listen(address) }

func (s *stack) listen(address string) (*listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	if s.dead || s.network.listeners[address] != nil {
		return nil, fmt.Errorf("listen on %s: address in use", address)
	}
	l := &listener{
		stack: s, address: address, next: make(chan *conn, 256),
		done: make(chan struct{}),
	}
	s.network.listeners[address] = l
	s.listeners = append(s.listeners, l)
	return l, nil
}

// Dial implements transport.Network. It dials another member.
func (s *stack) Dial(ctx context.Context, address string) (net.Conn, error) {
	// Write changes this to classRaft if the connection is raft's
	return s.dial(ctx, address, classCall)
}

// DialBroker is for mqttconn.Dialer.Network.
func (s *stack) DialBroker(ctx context.Context, address string) (net.Conn, error) {
	return s.dial(ctx, address, classBroker)
}

func (s *stack) dial(ctx context.Context, address string, c class) (net.Conn, error) {
	n := s.network
	there, back := link{s.host, hostOf(address), c}, link{hostOf(address), s.host, c}
	for _, l := range []link{there, back} {
		power := &n.host(there.to).power
		for opened := n.shut([]link{l}, power); opened != nil; opened = n.shut([]link{l}, power) {
			select {
			case <-opened:
			case <-ctx.Done():
				return nil, fmt.Errorf("dial %s: %w", address, ctx.Err())
			}
		}
		select {
		case <-time.After(n.drawLatency(l)):
		case <-ctx.Done():
			return nil, fmt.Errorf("dial %s: %w", address, ctx.Err())
		}
	}
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s: %w", address, errRefused)
	}
	near, far := n.pair(s, l.stack, there, back)
	if near == nil {
		return nil, fmt.Errorf("dial %s: %w", address, errRefused)
	}
	select {
	case l.next <- far:
		return near, nil
	default:
	}
	_ = near.Close()
	_ = far.Close()
	return nil, fmt.Errorf("dial %s: %w", address, errRefused)
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// pair makes the two ends of a connection. It returns nil if one of the processes is dead.
func (n *network) pair(from, to *stack, there, back link) (near, far *conn) {
	near = &conn{stack: from, link: there, out: newStream(), read: newDeadline(), dialled: true}
	far = &conn{stack: to, link: back, out: newStream(), read: newDeadline()}
	near.peer, far.peer = far, near
	near.in, far.in = far.out, near.out
	if !from.track(near) {
		return nil, nil
	}
	if !to.track(far) {
		from.untrack(near)
		return nil, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns.Add(near)
	n.conns.Add(far)
	return near, far
}

// track adds a connection. It returns false if the process is dead.
func (s *stack) track(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return false
	}
	s.conns.Add(c)
	return true
}

func (s *stack) untrack(c *conn) {
	s.mu.Lock()
	s.conns.Delete(c)
	s.mu.Unlock()
	s.network.mu.Lock()
	s.network.conns.Delete(c)
	s.network.mu.Unlock()
}

// die ends all listeners and connections of the process. Unless silently is set, the other ends get
// a reset, as when a kernel cleans up after a process. With silently, as at a loss of power, they
// get nothing.
func (s *stack) die(silently bool) {
	s.mu.Lock()
	s.dead = true
	conns, listeners := s.conns, s.listeners
	s.conns = ordered.Set[*conn]{}
	s.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close()
	}
	for c := range conns.All() {
		c.abort(errReset)
		if !silently {
			c.out.end(errReset, c.arrival())
		}
	}
}

// listener is a port that is listened on.
type listener struct {
	stack   *stack
	address string
	next    chan *conn
	done    chan struct{}
	once    sync.Once
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.next:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.stack.network.mu.Lock()
		defer l.stack.network.mu.Unlock()
		delete(l.stack.network.listeners, l.address)
	})
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return address(l.address) }

type address string

func (address) Network() string  { return "sim" }
func (a address) String() string { return string(a) }
