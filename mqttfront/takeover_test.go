package mqttfront

import (
	"bufio"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/pending"
)

// fakeBroker accepts connections and counts what is published on them.
type fakeBroker struct {
	mu        sync.Mutex
	connects  int
	publishes int
	open      int
}

func (b *fakeBroker) dial(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	go b.serve(far)
	return near, nil
}

func (b *fakeBroker) count(add func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	add()
}

func (b *fakeBroker) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		b.count(func() { b.open-- })
	}()
	b.count(func() { b.open++ })
	reader := bufio.NewReader(conn)
	for {
		packet, err := mqttconn.ReadPacket(reader, 1<<20)
		if err != nil {
			return
		}
		switch content := packet.Content.(type) {
		case *packets.Connect:
			b.count(func() { b.connects++ })
			_, err = (&packets.Connack{Properties: &packets.Properties{}}).WriteTo(conn)
		case *packets.Publish:
			b.count(func() { b.publishes++ })
			_, err = (&packets.Puback{PacketID: content.PacketID, Properties: &packets.Properties{}}).WriteTo(conn)
		}
		if err != nil {
			return
		}
	}
}

// confirmations answers Confirm as a test wants.
type confirmations struct {
	*fakeStore
	mu      sync.Mutex
	answers []error // the last one stays
	asked   int
}

func (c *confirmations) Confirm(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	answer := c.answers[0]
	if len(c.answers) > 1 {
		c.answers = c.answers[1:]
	}
	return answer
}

// † Leadership is confirmed before CONNECT and again after CONNACK, and only then is anything published: a leader that slept
// in between would throw the true one out, and repeat old news.
func TestTakeOverIsConfirmedTwice(t *testing.T) {
	lost := errors.New("no leader any more")
	for name, test := range map[string]struct {
		answers  []error
		connects bool
	}{
		"lost before CONNECT": {[]error{lost}, false},
		"lost after CONNACK":  {[]error{nil, lost}, true},
	} {
		f, s := newTestFront(t)
		broker := &fakeBroker{}
		s.dialer.Network = broker.dial
		store := &confirmations{fakeStore: s, answers: test.answers}
		f.store = store
		arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Serve(ctx, 1) }()
		for deadline := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) {
			store.mu.Lock()
			asked := store.asked
			store.mu.Unlock()
			if asked > 3 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: asked %d times", name, asked)
			}
		}
		cancel()
		<-ended
		broker.mu.Lock()
		if (broker.connects > 0) != test.connects || broker.publishes > 0 {
			t.Errorf("%s: %d connections, %d messages", name, broker.connects, broker.publishes)
		}
		broker.mu.Unlock()
		if len(s.proposed) != 0 {
			t.Errorf("%s: something was proposed", name)
		}
	}
}

// † A leader that is confirmed answers what it held, and what only another node held, over the connections that it took over.
func TestTakeOverAnswers(t *testing.T) {
	f, s := newTestFront(t)
	broker := &fakeBroker{}
	s.dialer.Network = broker.dial
	arrive(f, "*1\r\n$4\r\nNOPE\r\n", strings.Repeat("a", 16), "__srcId", "c")
	other, _ := newTestFront(t)
	arrive(other, "*1\r\n$4\r\nNOPE\r\n", strings.Repeat("b", 16), "__srcId", "c")
	s.held = map[string][][]byte{"n2": pages(other)}
	f.barrier.Pass(time.Now().Add(time.Hour)) // nothing is on its way any more
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- f.Serve(ctx, 1) }()
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) {
		broker.mu.Lock()
		publishes := broker.publishes
		broker.mu.Unlock()
		if publishes == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("not answered")
		}
	}
	cancel()
	<-ended
	if len(s.proposed) != 0 {
		t.Error("what needs no log went into it")
	}
}

// † A write that a busy leader will not take is refused through the log: another node holds a copy, and would execute it when
// it leads next. A GET changes nothing, so it may be refused at once.
func TestOverloadIsRefusedThroughTheLog(t *testing.T) {
	f, s := newTestFront(t, func(c *Config) { c.OverloadAge = time.Nanosecond })
	serve(f)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	if len(s.proposed) != 1 || s.proposed[0].Kind != fsm.KindReject || len(s.proposed[0].Rejected) != 1 {
		t.Fatalf("%+v", s.proposed)
	}
	if r := f.last(); r.State() != pending.StateRefusing {
		t.Error("answered before the refusal is in the log")
	}
	arrive(f, get, strings.Repeat("b", 16), "__srcId", "d")
	if r := f.last(); len(s.proposed) != 1 || r.State() != pending.StateDelivering {
		t.Error("a GET is refused through the log")
	}
}

// † No refusal without the log can be kept: another node may get the request later and execute it, or the only one again. A write without an
// identity that a busy leader will not take stays unanswered.
func TestOverloadWithoutIdentityIsUnanswered(t *testing.T) {
	for _, alone := range []bool{false, true} {
		f, s := newTestFront(t, func(c *Config) { c.OverloadAge = time.Nanosecond })
		s.alone = alone
		serve(f)
		arrive(f, del, "short", "__srcId", "c")
		if len(s.proposed) != 0 {
			t.Errorf("alone %v: %+v is proposed", alone, s.proposed)
		}
		if f.pending.Len() != 0 || f.busy != 0 {
			t.Errorf("alone %v: %d held, %d busy", alone, f.pending.Len(), f.busy)
		}
	}
}

// What the store refused because it had waited there for too long may have had its effect, and been forgotten: it stays unanswered, unless the
// outcome is known.
func TestRefusalOfTheStoreIsNoAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		result   fsm.Result
		answered bool
	}{
		"refused":                             {fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded}, false},
		"refused before":                      {fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded, Repeat: true}, true},
		"refused before, and nobody was told": {fsm.Result{Code: fsm.CodeDropped, Repeat: true}, false},
		"dropped":                             {fsm.Result{Code: fsm.CodeDropped}, false},
		"known":                               {fsm.Result{Code: fsm.CodeDeleted, Repeat: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newTestFront(t)
			serve(f)
			arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
			refusal := s.proposed[0].Refusal(true)
			f.Applied(&fsm.Outcome{Index: 5, Commands: []fsm.Command{refusal}, Results: []fsm.Result{test.result}}, s.tags)
			if answered := f.pending.Len() == 1; answered != test.answered || (f.busy == 1) != answered || f.pending.Writes("c") != 0 {
				t.Errorf("answered %v, %d busy, %d writing", answered, f.busy, f.pending.Writes("c"))
			}
		})
	}
}
