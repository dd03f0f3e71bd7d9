package mirror

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// world is a state, a broker, and a backlog between them. Its methods are the steps of a
// connection; a test runs them in random order.
type world struct {
	state, broker map[topic]int // version by topic; 0 means that there is no value
	listed        map[topic]int // what the broker retained at the subscription and has not sent yet
	backlog       *backlog
	// messages that were sent, and that the broker has not answered, in order
	flight []flight
}

type flight struct {
	entry   *entry
	version int
}

func (w *world) change(t topic, version int) {
	w.state[t] = version
	w.backlog.push(t)
}

// receive compares a retained message with the state.
func (w *world) receive(t topic, version int) {
	if w.state[t] == version {
		w.backlog.markInSync(t)
	} else {
		w.backlog.push(t)
	}
}

// arrive lets the broker take the first message in flight, or refuse it.
func (w *world) arrive(refused bool) {
	first := w.flight[0]
	w.flight = w.flight[1:]
	if !refused {
		w.broker[first.entry.topic] = first.version
	}
	w.backlog.done(first.entry, !refused)
}

// sendAll has everything sent and acknowledged, also what waits for a retry.
func (w *world) sendAll() {
	for {
		w.backlog.retryNow()
		e := w.backlog.take(time.Now())
		switch {
		case e != nil:
			w.flight = append(w.flight, flight{e, w.state[e.topic]})
		case len(w.flight) > 0:
			w.arrive(false)
		default:
			return
		}
	}
}

// Whatever the order of changes, retained messages, publications and refusals: when nothing is left
// to do, the broker has what the state has.
func TestBrokerConvergesToTheState(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := world{
			state: make(map[topic]int), broker: make(map[topic]int),
			listed: make(map[topic]int), backlog: newBacklog(),
		}
		all := make([]topic, 6)
		for i := range all {
			all[i] = topic{"t/", fmt.Sprint(i)}
			w.state[all[i]], w.broker[all[i]] = r.IntN(3), r.IntN(3)
		}
		w.backlog.begin([]string{"t/"})
		if r.IntN(3) == 0 {
			w.backlog.suspects[all[0]] = struct{}{} // so that one topic is sent at a time
		}
		for _, one := range all {
			if w.state[one] != 0 {
				w.backlog.expect(one)
			}
			if version := w.broker[one]; version != 0 {
				w.listed[one] = version
			}
		}
		version := 3
		for range 60 {
			one := all[r.IntN(len(all))]
			switch r.IntN(4) {
			case 0:
				version++
				w.change(one, version*r.IntN(2))
			case 1:
				if listed, ok := w.listed[one]; ok {
					delete(w.listed, one)
					w.receive(one, listed)
				}
			case 2:
				if e := w.backlog.take(time.Now()); e != nil {
					w.flight = append(w.flight, flight{e, w.state[e.topic]})
				}
			default:
				if len(w.flight) > 0 {
					w.arrive(r.IntN(8) == 0)
				}
			}
		}
		for one, listed := range w.listed {
			w.receive(one, listed)
		}
		for _, one := range all {
			if w.state[one] != 0 {
				w.backlog.resolveExpected(one, true)
			}
		}
		w.sendAll()
		for _, one := range all {
			if w.broker[one] != w.state[one] {
				t.Fatalf("seed %d: the broker has %d of %s, the state %d", seed, w.broker[one], one,
					w.state[one])
			}
		}
		if left, lag := w.backlog.lag(); left != 0 || lag != 0 {
			t.Fatalf("seed %d: %d topics are left, since %v", seed, left, lag)
		}
	}
}

// newTestBacklog returns a backlog with a connection, and the mirrors t/ and u/.
func newTestBacklog() *backlog {
	b := newBacklog()
	b.begin([]string{"t/", "u/"})
	return b
}

// The size of a backlog is bounded by the number of topics that changed, not by the number of their
// changes.
func TestBacklogHoldsEachTopicOnce(t *testing.T) {
	b := newTestBacklog()
	for i := range 1000 {
		b.push(topic{"t/", fmt.Sprint(i % 10)})
	}
	published := 0
	for b.take(time.Now()) != nil {
		published++
	}
	if topics, _ := b.lag(); topics != 10 || published != 10 {
		t.Errorf("%d topics, %d published", topics, published)
	}
}

func TestLagIsThatOfTheOldestThatIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		want := func(when string, topics int, lag time.Duration) {
			t.Helper()
			if got, oldest := b.lag(); got != topics || oldest != lag {
				t.Errorf("%s: %d topics since %v, want %d since %v", when, got, oldest, topics, lag)
			}
		}
		want("nothing", 0, 0)
		b.push(topic{"t/", "a"})
		time.Sleep(time.Second)
		b.push(topic{"t/", "b"})
		time.Sleep(time.Second)
		want("both queued", 2, 2*time.Second)
		first, second := b.take(time.Now()), b.take(time.Now())
		b.done(second, true)
		want("the older one is being sent", 1, 2*time.Second)
		b.push(first.topic)
		b.done(first, true)
		time.Sleep(time.Second)
		want("it has changed meanwhile", 1, time.Second)
		b.done(b.take(time.Now()), true)
		want("all sent", 0, 0)
	})
}

func TestTopicsThatBrokersMayRefuseAreNotPublished(t *testing.T) {
	for name, test := range map[string]struct {
		key   string
		valid bool
	}{
		"plain": {"lines/7", true}, "a slash first": {"/x", true},
		"other letters":    {"straße", true},
		"127 levels below": {strings.Repeat("a/", 126), true},
		"plus":             {"a+b", false}, "number sign": {"#", false}, "NUL": {"a\x00", false},
		"control": {"a\nb", false}, "delete": {"\x7f", false},
		"no text": {"\xff", false}, "no character": {"\uFFFE", false},
		"no character of another plane":  {"\U0001FFFF", false},
		"no character among Arabic ones": {"\uFDD0", false},
		"too many levels":                {strings.Repeat("a/", 127), false},
		"too long":                       {strings.Repeat("a", 65_534), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (topic{"t/", test.key}).isValid(); got != test.valid {
				t.Errorf("valid is %v", got)
			}
		})
	}
}

func TestTopicsAreFoundByWhatTheyBeginWith(t *testing.T) {
	prefixes := []string{"plant/lines/", "dashboard/"}
	if got, ok := topicOf("dashboard/a/b", prefixes); !ok || got != (topic{"dashboard/", "a/b"}) {
		t.Errorf("%+v, %v", got, ok)
	}
	if got, ok := topicOf("dashboard/", prefixes); !ok || got != (topic{"dashboard/", ""}) {
		t.Errorf("%+v, %v", got, ok)
	}
	if got, ok := topicOf("plant/x", prefixes); ok {
		t.Errorf("%+v", got)
	}
}

// A topic that the broker leaves unanswered counts as refused if a later one was answered, or if it
// was sent alone. Otherwise all topics in flight are suspect, and are sent alone on the next
// connection.
func TestOverdueTopicIsRefusedOrAllAreSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		overdue := func() (overdue, suspect bool) { return b.handleOverdue(time.Now()) }
		b.push(topic{"t/", "lost"})
		b.take(time.Now())
		time.Sleep(topicAnswerTimeout + time.Second)
		if is, _ := overdue(); is {
			t.Error("too soon, while nothing is answered")
		}
		b.push(topic{"t/", "later"})
		b.done(b.take(time.Now()), true)
		if is, suspect := overdue(); !is || suspect || b.refusedCount() != 1 {
			t.Errorf("a topic that is left out: %v, %v; %d are refused", is, suspect,
				b.refusedCount())
		}
		b.end(false)
		b.begin([]string{"t/", "u/"})
		b.push(topic{"u/", "a"})
		b.push(topic{"u/", "b"})
		b.take(time.Now())
		b.take(time.Now())
		time.Sleep(anyAnswerTimeout + time.Second)
		if is, suspect := overdue(); !is || !suspect {
			t.Errorf("nothing is answered: %v, %v", is, suspect)
		}
		b.end(true)
		b.begin([]string{"t/", "u/"})
		if e := b.take(time.Now()); e == nil || !e.alone {
			t.Fatalf("%+v is not sent alone", e)
		}
		time.Sleep(topicAnswerTimeout + time.Second)
		if is, suspect := overdue(); !is || suspect || b.refusedCount() != 2 {
			t.Errorf("a topic alone: %v, %v; %d are refused", is, suspect, b.refusedCount())
		}
	})
}

// While the broker answers topics in the order in which they were sent, none is overdue, even if
// answers are slow or pause for a while.
func TestSlowBrokerIsNoFault(t *testing.T) {
	for name, test := range map[string]struct{ answers, pause time.Duration }{
		"ten topics a second, with the window full": {2 * time.Minute, 100 * time.Millisecond},
		"silent for 14 s after an answer":           {time.Minute, 14 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestBacklog()
				var flight []*entry
				for began, n := time.Now(),
					0; time.Since(began) < test.answers; time.Sleep(test.pause) {
					if len(flight) > 0 {
						b.done(flight[0], true)
						flight = flight[1:]
					}
					for b.push(topic{"t/", fmt.Sprint(n)}); ; n++ {
						e := b.take(time.Now())
						if e == nil {
							break
						}
						flight = append(flight, e)
						b.push(topic{"t/", fmt.Sprint(n + 1)})
					}
					if is, suspect := b.handleOverdue(time.Now()); is {
						t.Fatalf("%v: overdue, suspect %v", time.Since(began), suspect)
					}
				}
			})
		})
	}
}

// A topic that is sent alone is not overdue while its value is transferred at minRate.
func TestLargeTopicAloneIsNotOverdueWhileItIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		b.push(topic{"t/", "large"})
		b.take(time.Now())
		b.end(true)
		b.begin([]string{"t/"})
		e := b.take(time.Now())
		if e == nil || !e.alone {
			t.Fatalf("%+v is not sent alone", e)
		}
		b.setSize(e, 4<<20)
		time.Sleep(4<<20/minRate*time.Second + topicAnswerTimeout - time.Second)
		if is, _ := b.handleOverdue(time.Now()); is {
			t.Error("overdue too soon")
		}
		time.Sleep(2 * time.Second)
		if is, suspect := b.handleOverdue(time.Now()); !is || suspect {
			t.Errorf("later: %v, suspect %v", is, suspect)
		}
	})
}

// A topic for which nothing was sent does not show that the connection works.
func TestSkippedTopicIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		b.push(topic{"t/", "in flight"})
		b.take(time.Now())
		time.Sleep(anyAnswerTimeout)
		b.push(topic{"t/", "skipped"})
		b.skip(b.take(time.Now()))
		time.Sleep(time.Millisecond)
		if overdue, _ := b.handleOverdue(time.Now()); !overdue {
			t.Error("the connection counts as answering")
		}
	})
}
