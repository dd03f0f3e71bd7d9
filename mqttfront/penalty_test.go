package mqttfront

import (
	"io"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/wire"
)

// trustedDriver vouches for client ids.
type trustedDriver struct{ broker.NoDriver }

func (trustedDriver) TrustedIdentity() bool { return true }

func replyTo(client, topic string) *outgoing {
	r := &request{Request: wire.Request{ResponseTopic: topic}}
	r.Command.Principal.ClientID = client
	return &outgoing{request: r}
}

// sendUntilWait takes from the queue what may be in flight together.
func sendUntilWait(l *publishQueue) (sent []*outgoing) {
	for {
		o, wait := l.next()
		if wait {
			return sent
		}
		sent = append(sent, o)
	}
}

// lose ends the connection of a lane with everything in flight, and begins the next.
func lose(l *publishQueue, blamed bool) (abandoned bool) {
	for _, o := range l.flight {
		l.acked(o, 0, io.EOF)
	}
	return l.requeue(blamed)
}

// † An output on which the broker ends its connection goes alone after the first time, and is given up when it ends the next as well, with the
// other replies to the same client. Those of others are not.
func TestReplyThatEndsConnectionsIsGivenUpWithItsClients(t *testing.T) {
	f, _ := newTestFrontOf(t, trustedDriver{})
	l := newPublishQueue(f, "x")
	poison, another, innocent := replyTo("robot", "a"), replyTo("robot", "b"), replyTo("press", "c")
	for _, o := range []*outgoing{poison, innocent, another} {
		l.push(o)
	}
	if sent := sendUntilWait(l); len(sent) != 3 {
		t.Fatalf("%d in flight at first", len(sent))
	}
	if lose(l, true) {
		t.Error("given up after a loss that any of three may have caused")
	}
	if sent := sendUntilWait(l); len(sent) != 1 || sent[0] != poison {
		t.Fatalf("%d go together after a loss, want the first alone", len(sent))
	}
	if !lose(l, true) {
		t.Error("not given up, although it was alone")
	}
	if sent := sendUntilWait(l); len(sent) != 1 || sent[0] != innocent {
		t.Fatalf("%d are left", len(sent))
	}
	now := time.Now()
	if !f.penalties.has("client robot", now) || f.penalties.has("client press", now) || f.penalties.has("client robot", now.Add(penaltyTime)) {
		t.Errorf("penalties: %v", f.penalties.until)
	}
}

// A connection that ends with the broker, or by something in between, is no output's fault, however often it happens.
func TestOutputsSurviveLossesThatAreNotTheirFault(t *testing.T) {
	f, _ := newTestFront(t)
	l := newPublishQueue(f, "x")
	innocent := replyTo("press", "c")
	l.push(innocent)
	for range 10 {
		if sent := sendUntilWait(l); len(sent) != 1 {
			t.Fatal("it is gone")
		}
		if lose(l, false) {
			t.Fatal("given up")
		}
	}
}

// Without an identity that the broker vouches for, the penalty falls on the response topic alone: the client id may be another's.
func TestForgedNamePunishesNobody(t *testing.T) {
	f, _ := newTestFront(t)
	l := newPublishQueue(f, "x")
	poison, victims := replyTo("press", "poison"), replyTo("press", "clients/press/r")
	l.push(poison)
	l.push(victims)
	for range 2 {
		sendUntilWait(l)
		lose(l, true)
	}
	if sent := sendUntilWait(l); len(sent) != 1 || sent[0] != victims {
		t.Errorf("%d are left, want the reply on another topic", len(sent))
	}
}

// While a penalty lasts, replies to the culprit are not sent, and do not hold the watermark up.
func TestPenaltyKeepsRepliesFromTheBroker(t *testing.T) {
	f, s := newTestFront(t)
	serve(f)
	f.penalties.add("topic clients/c/r", time.Now())
	arrive(f, del, "0123456789abcdef", "__srcId", "c")
	f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
	queued := 0
	for _, l := range leading(f).queues {
		queued += len(l.queue)
	}
	if queued != 0 || f.busy != 0 || s.published != 5 {
		t.Errorf("%d queued, %d busy, watermark %d", queued, f.busy, s.published)
	}
}

func TestPenaltiesAreBounded(t *testing.T) {
	var p penalties
	now := time.Now()
	for i := range 2 * maxPenalties {
		p.add(string(rune(i)), now)
	}
	if len(p.until) != maxPenalties {
		t.Errorf("%d", len(p.until))
	}
	if p.add("later", now.Add(2*penaltyTime)); len(p.until) != 1 {
		t.Errorf("%d after all have ended", len(p.until))
	}
}

// Only a broker that is there itself ends a connection because of what came over it.
func TestWhoEndedAConnection(t *testing.T) {
	f, _ := newTestFront(t)
	f.setSession(true, "connected")
	later := time.Now().Add(time.Second)
	for name, test := range map[string]struct {
		began time.Time
		by    error
		want  bool
	}{
		"the broker":                             {later, io.EOF, true},
		"the broker, with a reason":              {later, &mqttconn.Refusal{Reason: 0x90}, true},
		"another client under the same id":       {later, &mqttconn.Refusal{Reason: mqttconn.ReasonSessionTakenOver}, false},
		"the network":                            {later, mqttconn.ErrSilent, false},
		"the broker's end, with the own session": {later.Add(-time.Hour), io.EOF, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := f.brokerEnded(test.began, test.by); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
	f.setSession(false, "lost")
	if f.brokerEnded(later, io.EOF) {
		t.Error("blamed while the own session is down")
	}
}
