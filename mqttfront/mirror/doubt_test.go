package mirror

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
)

// strict is a broker that refuses some topics, and may end the connection instead, or after that.
type strict struct {
	refuses func(topic) bool
	ends    bool // the connection ends with each refusal
	answers bool // it says that it refuses
	shown   map[topic]int
	lost    int // connections
}

// run has the broker take what a backlog gives it, for a time. again is called for each further connection.
func (s *strict) run(b *backlog, d time.Duration, again func()) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		var flight []*entry
		for e := b.take(time.Now()); e != nil; e = b.take(time.Now()) {
			flight = append(flight, e)
		}
		time.Sleep(step)
		for _, e := range flight {
			refused := s.refuses(e.topic)
			if refused && s.answers {
				b.done(e, false)
			}
			if refused && s.ends {
				s.lost++
				b.end(true)
				time.Sleep(time.Second)
				b.begin([]string{"t/", "u/"})
				again()
				break
			}
			if !refused {
				s.shown[e.topic]++
				b.done(e, true)
			}
		}
	}
}

// Whatever the broker refuses, and however: all else is shown soon, and connections end seldom. When the broker takes the topics, they are shown.
func TestRefusedTopicsKeepNothingElseFromBeingShown(t *testing.T) {
	const topics = 500
	mirrorOf := func(prefix string) func(topic) bool { return func(t topic) bool { return t.prefix == prefix } }
	oneOf := func(t topic) bool { return t.prefix == "t/" && t.key == "7" }
	for name, test := range map[string]struct {
		broker strict
		losses int // at most, in ten minutes
	}{
		"a mirror, and says so":                          {strict{refuses: mirrorOf("t/"), answers: true}, 0},
		"a mirror, and ends the connection, too":         {strict{refuses: mirrorOf("t/"), answers: true, ends: true}, 12},
		"a mirror, by the end of the connection":         {strict{refuses: mirrorOf("t/"), ends: true}, 12},
		"a topic, and says so":                           {strict{refuses: oneOf, answers: true}, 0},
		"a topic, by the end of the connection":          {strict{refuses: oneOf, ends: true}, 12},
		"each tenth topic, and ends the connection, too": {strict{refuses: func(t topic) bool { return t.prefix == "t/" && t.key[len(t.key)-1] == '1' }, answers: true, ends: true}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker := test.broker
				broker.shown = make(map[topic]int)
				b := newTestBacklog()
				missing := func() { // as a comparison finds them
					for i := range topics {
						for _, prefix := range []string{"t/", "u/"} {
							if one := (topic{prefix, fmt.Sprint(i)}); broker.shown[one] == 0 {
								b.push(one)
							}
						}
					}
				}
				missing()
				broker.run(b, 20*time.Second, missing)
				for i := range topics {
					if broker.shown[topic{"u/", fmt.Sprint(i)}] == 0 {
						t.Fatalf("u/%d is not shown", i)
					}
				}
				broker.run(b, 10*time.Minute, missing)
				if broker.lost > test.losses {
					t.Errorf("%d connections were lost", broker.lost)
				}
				if b.refusedTopics() == 0 {
					t.Error("nothing counts as refused")
				}
				broker.refuses = func(topic) bool { return false }
				broker.run(b, 15*time.Minute, missing)
				if len(broker.shown) != 2*topics || b.refusedTopics() != 0 {
					t.Errorf("%d topics are shown at the end, %d refused", len(broker.shown), b.refusedTopics())
				}
			})
		})
	}
}

// A broker that restarts now and then does not keep mirrors doubted.
func TestMirrorIsTrustedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		for i := range 100 {
			b.push(topic{"t/", fmt.Sprint(i)})
		}
		for range 50 {
			b.take(time.Now())
		}
		b.end(true)
		b.begin([]string{"t/"})
		broker := strict{refuses: func(topic) bool { return false }, shown: make(map[topic]int)}
		for i := range 100 {
			b.push(topic{"t/", fmt.Sprint(i)})
		}
		broker.run(b, 50*step+time.Second, func() {})
		if len(b.doubts) != 0 || len(broker.shown) != 100 {
			t.Errorf("%d topics are shown, %d mirrors are doubted", len(broker.shown), len(b.doubts))
		}
	})
}

// A topic that is not answered is the fault if others are answered, or if it was sent alone; otherwise all in flight are suspect, and each is found out.
func TestOverdueTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		overdue := func() (overdue, suspect bool) { return b.overdue(time.Now()) }
		b.push(topic{"t/", "lost"})
		b.take(time.Now())
		time.Sleep(answerTime + time.Second)
		if is, _ := overdue(); is {
			t.Error("too soon, while nothing is answered")
		}
		b.push(topic{"t/", "later"})
		b.done(b.take(time.Now()), true)
		if is, suspect := overdue(); !is || suspect || b.refusedTopics() != 1 {
			t.Errorf("a topic that is left out: %v, %v; %d are refused", is, suspect, b.refusedTopics())
		}
		b.end(false)
		b.begin([]string{"t/", "u/"})
		b.push(topic{"u/", "a"})
		b.push(topic{"u/", "b"})
		b.take(time.Now())
		b.take(time.Now())
		time.Sleep(unansweredTime + time.Second)
		if is, suspect := overdue(); !is || !suspect {
			t.Errorf("nothing is answered: %v, %v", is, suspect)
		}
		b.end(true)
		b.begin([]string{"t/", "u/"})
		if e := b.take(time.Now()); e == nil || !e.alone {
			t.Fatalf("%+v is not sent alone", e)
		}
		time.Sleep(answerTime + time.Second)
		if is, suspect := overdue(); !is || suspect || b.refusedTopics() != 2 {
			t.Errorf("a topic alone: %v, %v; %d are refused", is, suspect, b.refusedTopics())
		}
	})
}

// A topic that the broker refuses, and whose key has gone, is in line when the broker retains nothing there.
func TestRefusedTopicOfADeletedKeyIsInLine(t *testing.T) {
	m := newTestMirror()
	s := m.connected()
	m.env.View = func(f func(*fsm.Machine)) { f(stateWith(t)) }
	gone := topic{"t/", "gone"}
	s.backlog.push(gone)
	s.backlog.done(s.backlog.take(time.Now()), false)
	(&pass{s: s, sent: map[topic]struct{}{gone: {}}}).dropCleared()
	s.backlog.forgetInLine()
	if s.backlog.refusedTopics() != 1 {
		t.Error("it is forgotten although the broker has sent it")
	}
	(&pass{s: s}).dropCleared()
	s.backlog.forgetInLine()
	if s.backlog.refusedTopics() != 0 {
		t.Error("it is not forgotten")
	}
}

// What the broker sends of a key that changes meanwhile may be older: it is no fault of the broker.
func TestChangesDuringAComparisonAreNoCorrections(t *testing.T) {
	state := stateWith(t, "hot")
	m := newTestMirror()
	m.env.View = func(f func(*fsm.Machine)) { f(state) }
	s := m.connected()
	s.backlog.noteChanges(true)
	hot := topic{"t/", "hot"}
	s.backlog.change(hot)
	s.backlog.done(s.backlog.take(time.Now()), true)
	p := &pass{s: s, began: time.Now(), corrected: make(map[topic]string), sent: make(map[topic]struct{})}
	p.received(mqttconn.Message{Publish: &paho.Publish{Topic: "t/hot", Retain: true, Payload: []byte("older")}})
	if p.stale != 0 || len(p.corrected) != 0 {
		t.Errorf("%d are stale, %d corrected", p.stale, len(p.corrected))
	}
	if e := s.backlog.take(time.Now()); e == nil || e.topic != hot {
		t.Errorf("%+v is published again", e)
	}
}
