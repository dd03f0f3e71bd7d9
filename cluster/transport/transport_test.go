package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"holdfast/cluster/peer"
	"holdfast/internal/testcert"
	"holdfast/internal/testwait"
	"holdfast/internal/tlsconfig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a Handler that answers most calls with the caller's id and the request, and knows the
// members of a test.
type echo struct {
	standing map[raft.ServerID]peer.Standing
	address  raft.ServerAddress
	hanging  chan struct{} // receives one for each call of MethodHash, which hangs
	hang     chan struct{} // ends those calls when it is closed
	calls    atomic.Int32
}

func (e *echo) Handle(ctx context.Context, caller peer.Caller, method peer.Method,
	request []byte,
) ([]byte, error) {
	e.calls.Add(1)
	switch {
	case method == peer.MethodHash:
		e.hanging <- struct{}{}
		select {
		case <-e.hang:
		case <-ctx.Done():
		}
		return nil, peer.ErrNotLeader
	case method == peer.MethodJoin:
		if !caller.Certified("n2") {
			return nil, peer.ErrRefused
		}
	case method == peer.MethodOffer:
		return nil, peer.ErrOutcomeUnknown
	}
	return append([]byte(caller.ID+":"), request...), nil
}

func (e *echo) Standing(id raft.ServerID) (peer.Standing, raft.ServerAddress) {
	return e.standing[id], e.address
}

func listen(t *testing.T, id raft.ServerID, secure *tlsconfig.Mutual, handler Handler) *Transport {
	t.Helper()
	network, err := Listen(Config{
		Cluster: "c", ID: id, Listen: "127.0.0.1:0", Advertise: "127.0.0.1:1", TLS: secure,
		Timeout: time.Second, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	network.Serve(handler)
	t.Cleanup(func() {
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	return network
}

// knowing returns a handler that gives all the ids one standing: whether they are members, as far
// as the node knows.
func knowing(standing peer.Standing, ids ...raft.ServerID) *echo {
	e := &echo{
		standing: map[raft.ServerID]peer.Standing{}, hanging: make(chan struct{}, 2),
		hang: make(chan struct{}),
	}
	for _, id := range ids {
		e.standing[id] = standing
	}
	return e
}

func (t *Transport) server() raft.Server {
	return raft.Server{ID: t.config.ID, Address: raft.ServerAddress(t.Address())}
}

func call(t *testing.T, from *Transport, to raft.Server, method peer.Method) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := from.Call(ctx, to, method, nil)
	return err
}

// † A node that lost its disk has a new id. At its old address it must not answer for the id that
// it had, neither calls nor raft's vote requests. Raft itself never checks for which id a message
// is meant.
func TestWipedNodeRefusesCallsToOldIncarnation(t *testing.T) {
	wiped := listen(t, "n2.new", nil, knowing(peer.Known, "n1.a"))
	first := listen(t, "n1.a", nil, knowing(peer.Known, "n2.new"))
	before := raft.Server{ID: "n2.old", Address: raft.ServerAddress(wiped.Address())}
	if err := call(t, first, before, peer.MethodTerm); !errors.Is(err, ErrOtherMember) {
		t.Errorf("call: %v", err)
	}
	if err := call(t, first, wiped.server(), peer.MethodTerm); err != nil {
		t.Errorf("call under its own id: %v", err)
	}
	votes := first.Raft()
	defer func() { _ = votes.(raft.WithClose).Close() }()
	voter := wiped.Raft()
	defer func() { _ = voter.(raft.WithClose).Close() }()
	go func() { // the voter grants its vote, as raft does
		for {
			select {
			case rpc := <-voter.Consumer():
				rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
			case <-wiped.ctx.Done():
				return
			}
		}
	}()
	var answer raft.RequestVoteResponse
	if err := votes.RequestVote("n2.old", before.Address, &raft.RequestVoteRequest{Term: 7},
		&answer); err == nil || answer.Granted {
		t.Errorf("a wiped node voted for its dead id: %v", err)
	}
	if err := votes.RequestVote("n2.new", before.Address, &raft.RequestVoteRequest{Term: 7},
		&answer); err != nil || !answer.Granted {
		t.Errorf("under its own id: %v", err)
	}
}

// A caller that is no member, or that names another cluster or protocol, gets the reason of the
// refusal.
func TestStrangersAreRefusedWithTheReason(t *testing.T) {
	handler := knowing(peer.Known, "n1.a")
	handler.standing["n3.c"] = peer.Possible
	listener := listen(t, "n2.b", nil, handler)
	for _, test := range []struct {
		name  string
		hello hello
		want  refusal
	}{
		{"a member", hello{1, "c", kindRaft, "n2.b", "n1.a", "h:1"}, ""},
		{"a stranger", hello{1, "c", kindRaft, "n2.b", "n9.x", "h:1"}, refuseNotAMember},
		{"one that may be a member", hello{1, "c", kindRaft, "n2.b", "n3.c", "h:1"}, ""},
		{
			"one that may be a member, for HTTP",
			hello{1, "c", kindHTTP, "n2.b", "n3.c", "h:1"},
			refuseNotAMember,
		},
		{"another cluster", hello{1, "d", kindCall, "n2.b", "n1.a", "h:1"}, refuseCluster},
		{"another protocol", hello{2, "c", kindCall, "n2.b", "n1.a", "h:1"}, refuseProtocol},
		{"nobody is meant, for a call", hello{1, "c", kindCall, "", "n9.x", "h:1"}, ""},
		{
			"nobody is meant, for raft",
			hello{1, "c", kindRaft, "", "n1.a", "h:1"},
			refuseWrongTarget,
		},
		{
			"nobody is meant, for HTTP",
			hello{1, "c", kindHTTP, "", "n1.a", "h:1"},
			refuseWrongTarget,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", listener.Address())
			if err != nil {
				t.Fatal(err)
			}
			if err := writeMessage(conn, &test.hello); err != nil {
				t.Fatal(err)
			}
			var answer welcome
			if err := readMessage(conn, &answer); err != nil || answer.Refuse != test.want ||
				answer.ID != "n2.b" {
				t.Errorf("%s: %+v, %v; want %q", test.name, answer, err, test.want)
			}
			_ = conn.Close()
		})
	}
	conn, err := net.Dial("tcp", listener.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	valid := `{"protocol":1,"cluster":"c","kind":"raft","to":"n2.b","from":"n1.a","address":"h:1"}`
	body := valid + strings.Repeat(" ", maxHello+1-len(valid))
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))),
		body...)); err != nil {
		t.Fatal(err)
	}
	if n, _ := io.Copy(io.Discard, conn); n != 0 {
		// the listener may reset the connection, because it does not read the body
		t.Errorf("a hello of %d bytes was answered with %d bytes", len(body), n)
	}
}

// Many calls share a connection. One that hangs delays no other, and an error of the other side
// keeps its sentinel.
func TestHangingCallDelaysNoOther(t *testing.T) {
	handler := knowing(peer.Known, "n1.a")
	listener := listen(t, "n2.b", nil, handler)
	caller := listen(t, "n1.a", nil, knowing(peer.Known))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hanging := make(chan error, 1)
	go func() {
		_, err := caller.Call(ctx, listener.server(), peer.MethodHash, nil)
		hanging <- err
	}()
	<-handler.hanging
	var calling sync.WaitGroup
	for range 50 {
		calling.Go(func() {
			body, err := caller.Call(t.Context(), listener.server(), peer.MethodPeerStatus,
				[]byte("x"))
			if string(body) != "n1.a:x" || err != nil {
				t.Errorf("%q, %v", body, err)
			}
		})
	}
	calling.Wait()
	if err := call(t, caller, listener.server(), peer.MethodOffer); !errors.Is(err,
		peer.ErrOutcomeUnknown) {
		t.Errorf("%v", err)
	}
	close(handler.hang)
	if err := <-hanging; !errors.Is(err, peer.ErrNotLeader) {
		t.Errorf("%v", err)
	}
	if _, err := caller.Call(t.Context(), listener.server(), peer.MethodPeerStatus,
		make([]byte, maxFrame)); !errors.Is(err, errTooLarge) {
		t.Errorf("%v", err)
	}
	body, err := caller.Call(t.Context(), listener.server(), peer.MethodPeerStatus,
		make([]byte, 20<<20))
	if len(body) != 5+20<<20 || err != nil {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

// Calls to a member that is down share the attempts to connect, which get rarer. The member is
// called again when it is back.
func TestCallsToAMemberThatComesBack(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	var attempts atomic.Int32
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			attempts.Add(1)
			_ = conn.Close()
		}
	})
	caller := listen(t, "n1.a", nil, knowing(peer.Known))
	for range 1000 {
		if err := call(t, caller, raft.Server{ID: "n2.b", Address: raft.ServerAddress(address)},
			peer.MethodTerm); !errors.Is(err, peer.ErrUnreachable) {
			t.Fatal(err)
		}
	}
	if n := attempts.Load(); n > 100 {
		t.Errorf("1000 calls made %d attempts to connect", n)
	}
	_ = listener.Close()
	accepting.Wait()
	back, err := Listen(Config{
		Cluster: "c", ID: "n2.b", Listen: address, Advertise: address,
		Timeout: time.Second, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = back.Close() }()
	back.Serve(knowing(peer.Known, "n1.a"))
	testwait.Within(t, 5*time.Second, "the member is called again",
		func() bool { return call(t, caller, back.server(), peer.MethodTerm) == nil })
}

func mutual(t *testing.T, ca *testcert.Authority, name string) *tlsconfig.Mutual {
	t.Helper()
	files := tlsconfig.Files{
		CA: ca.File("ca.crt"), Certificate: ca.File(name + ".crt"),
		Key: ca.File(name + ".key"),
	}
	m, err := tlsconfig.NewMutual(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A caller's certificate must have the name of the member as which it calls. A certificate of the
// same authority with another name is not enough.
func TestCertificatesNameMembers(t *testing.T) {
	ca := testcert.NewAuthority(t)
	for name, hosts := range map[string][]string{
		"n1": {"n1", "127.0.0.1"},
		"n2": {"n2", "127.0.0.1"}, "printer": {"printer", "127.0.0.1"},
	} {
		ca.Issue(name, hosts...)
	}
	handler := knowing(peer.Known, "n1.a")
	handler.address = "n1:7400"
	listener := listen(t, "n2.b", mutual(t, ca, "n2"), handler)
	if err := call(t, listen(t, "n1.a", mutual(t, ca, "n1"), knowing(peer.Known)),
		listener.server(), peer.MethodTerm); err != nil {
		t.Errorf("a member: %v", err)
	}
	impostor := listen(t, "n1.a", mutual(t, ca, "printer"), knowing(peer.Known))
	if err := call(t, impostor, listener.server(), peer.MethodTerm); !errors.Is(err,
		ErrCertificate) {
		t.Errorf("another's certificate: %v", err)
	}
	if _, err := impostor.DialHTTP(t.Context(), listener.server()); !errors.Is(err,
		ErrCertificate) {
		t.Errorf("another's certificate, for HTTP: %v", err)
	}
	if err := call(t, impostor, raft.Server{Address: listener.server().Address},
		peer.MethodJoin); !errors.Is(err, peer.ErrRefused) {
		t.Errorf("join under another's name: %v", err)
	}
	if err := call(t, listen(t, "n2.c", mutual(t, ca, "n2"), knowing(peer.Known)),
		raft.Server{Address: listener.server().Address}, peer.MethodJoin); err != nil {
		t.Errorf("join under its own name: %v", err)
	}
	plain := listen(t, "n1.a", nil, knowing(peer.Known))
	if err := call(t, plain, listener.server(), peer.MethodTerm); !errors.Is(err,
		peer.ErrUnreachable) {
		t.Errorf("in the clear: %v", err)
	}
	foreign := testcert.NewAuthority(t)
	foreign.Issue("n1", "n1", "127.0.0.1")
	if err := call(t, listen(t, "n1.a", mutual(t, foreign, "n1"), knowing(peer.Known)),
		listener.server(), peer.MethodTerm); !errors.Is(err, peer.ErrUnreachable) {
		t.Errorf("of another authority: %v", err)
	}
	if handler.calls.Load() != 3 {
		t.Errorf("%d calls came through", handler.calls.Load())
	}
}

// Both sides say when a connection fails because of a certificate, and only then.
func TestRefusedCertificateIsTold(t *testing.T) {
	ca, foreign := testcert.NewAuthority(t), testcert.NewAuthority(t)
	ca.Issue("n2", "n2", "127.0.0.1")
	ca.Issue("good", "n1", "127.0.0.1")
	ca.Issue("printer", "printer", "127.0.0.1")
	ca.IssueAt(time.Now().Add(-48*time.Hour), "old", "n1", "127.0.0.1")
	foreign.Issue("foreign", "n1", "127.0.0.1")
	ca.Issue("unnamed", "somebody")
	mine := func(a *testcert.Authority, name string) *tlsconfig.Mutual {
		files := tlsconfig.Files{
			CA: ca.File("ca.crt"), Certificate: a.File(name + ".crt"), Key: a.File(name + ".key"),
		}
		m, err := tlsconfig.NewMutual(files, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for name, test := range map[string]struct {
		caller, listener *tlsconfig.Mutual
		want             string // what the caller says
		logged           bool   // by the listener
	}{
		"good": {mine(ca, "good"), mine(ca, "n2"), "", false},
		"another": {
			mine(ca, "printer"), mine(ca, "n2"),
			"n2 refuses the certificate of this node: it has to name", true,
		},
		"old": {
			mine(ca, "old"), mine(ca, "n2"),
			"n2 refuses the certificate of this node: tls: expired certificate", true,
		},
		"foreign": {
			mine(foreign, "foreign"), mine(ca, "n2"),
			"n2 refuses the certificate of this node: tls: unknown certificate authority", true,
		},
		"its": {
			mine(ca, "good"), mine(ca, "unnamed"),
			"this node refuses the certificate of n2", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			handler := knowing(peer.Known, "n1.a")
			handler.address = "n1:7400"
			listener := listen(t, "n2.b", test.listener, handler)
			var logged lockedBuffer
			listener.faults.log = slog.New(slog.NewTextHandler(&logged, nil))
			caller := listen(t, "n1.a", test.caller, knowing(peer.Known))
			for range 2 {
				err := call(t, caller, listener.server(), peer.MethodTerm)
				if (err == nil) != (test.want == "") {
					t.Fatal(err)
				}
			}
			notes := caller.Notes()
			if test.want == "" && len(notes) > 0 || test.want != "" &&
				(len(notes) != 1 || !strings.HasPrefix(notes[0], test.want)) {
				t.Errorf("%q", notes)
			}
			testwait.Until(t, "the listener logs it once", func() bool {
				return strings.Count(logged.String(), "because of its certificate") == 1 ||
					!test.logged
			})
		})
	}
}

// lockedBuffer is a buffer that may be read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A renewed certificate is used for the next connection. While the file is damaged, the old
// certificate stays in use.
func TestCertificatesAreReloaded(t *testing.T) {
	ca := testcert.NewAuthority(t)
	ca.Issue("n1", "n1", "127.0.0.1")
	ca.Issue("n2", "wrong")
	handler := knowing(peer.Known, "n1.a")
	listener := listen(t, "n2.b", mutual(t, ca, "n2"), handler)
	caller := listen(t, "n1.a", mutual(t, ca, "n1"), knowing(peer.Known))
	if err := call(t, caller, listener.server(), peer.MethodTerm); err == nil {
		t.Fatal("a certificate without the listener's name was accepted")
	}
	if err := os.WriteFile(ca.File("n2.crt"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	// it has no failed attempt after which it must wait
	fresh := listen(t, "n1.a", mutual(t, ca, "n1"), knowing(peer.Known))
	if err := call(t, fresh, listener.server(), peer.MethodTerm); err == nil ||
		!strings.Contains(err.Error(), "wrong") {
		t.Fatalf("with a damaged file, the old certificate, which has another name, is used: %v",
			err)
	}
	ca.Issue("n2", "n2", "127.0.0.1")
	testwait.Within(t, 10*time.Second, "the new certificate is used",
		func() bool { return call(t, caller, listener.server(), peer.MethodTerm) == nil })
}

// The listener that HTTP returns accepts the connections that DialHTTP opens.
func TestForwardedHTTPReachesTheListener(t *testing.T) {
	listener := listen(t, "n2.b", nil, knowing(peer.Known, "n1.a"))
	caller := listen(t, "n1.a", nil, knowing(peer.Known))
	near, err := caller.DialHTTP(t.Context(), listener.server())
	if err != nil {
		t.Fatal(err)
	}
	far, err := listener.HTTP().Accept()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = near.Write([]byte("GET"))
		_ = near.Close()
	}()
	var got bytes.Buffer
	if _, err := got.ReadFrom(far); got.String() != "GET" || err != nil {
		t.Errorf("%q, %v", got.String(), err)
	}
	_ = far.Close()
}

// The handler is replaced when a node has joined. A handshake that began before that, but whose
// hello comes after it, is judged by the new handler.
func TestHandshakeIsJudgedByThePresentHandler(t *testing.T) {
	listener := listen(t, "n2.b", nil, knowing(peer.Stranger))
	conn, err := net.Dial("tcp", listener.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for len(listener.admitting) == 0 { // until the listener waits for the hello
		runtime.Gosched()
	}
	listener.Serve(knowing(peer.Known, "n1.a"))
	hello := hello{
		Protocol: protocolVersion, Cluster: "c", Kind: kindCall, To: "n2.b",
		From: "n1.a", Address: "127.0.0.1:1",
	}
	if err := writeMessage(conn, &hello); err != nil {
		t.Fatal(err)
	}
	var answer welcome
	if err := readMessage(conn, &answer); err != nil || answer.Refuse != "" {
		t.Errorf("%+v, %v", answer, err)
	}
}
