package mirror

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// strict is a broker that does not accept some topics: it refuses them, ends the connection, or does both.
type strict struct {
	refuses func(topic) bool
	ends    bool          // it ends the connection
	answers bool          // it sends a PUBACK with an error
	shown   map[topic]int // how often it accepted each topic
	lost    int           // number of connections that it has ended
}

// run sends the topics of a backlog to the broker for the time d. It calls again for each further connection.
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

// Whichever topics the broker refuses, and however it does, the topics of the other mirror are published soon, and few connections are lost. The
// refused topics are published when the broker accepts them again.
func TestRefusedTopicsKeepNothingElseFromBeingShown(t *testing.T) {
	const topics = 500
	mirrorOf := func(prefix string) func(topic) bool { return func(t topic) bool { return t.prefix == prefix } }
	oneOf := func(t topic) bool { return t.prefix == "t/" && t.key == "7" }
	for name, test := range map[string]struct {
		broker strict
		losses int // at most, in the first 620 s: the backoff after new faults and the retry intervals bound them
	}{
		"a mirror, and says so":                          {strict{refuses: mirrorOf("t/"), answers: true}, 0},
		"a mirror, and ends the connection, too":         {strict{refuses: mirrorOf("t/"), answers: true, ends: true}, 16},
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
				missing := func() { // queues the topics that the broker lacks, as a comparison does
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
				if b.refusedCount() == 0 {
					t.Error("nothing counts as refused")
				}
				broker.refuses = func(topic) bool { return false }
				broker.run(b, 15*time.Minute, missing)
				if len(broker.shown) != 2*topics || b.refusedCount() != 0 {
					t.Errorf("%d topics are shown at the end, %d refused", len(broker.shown), b.refusedCount())
				}
			})
		})
	}
}

// A quarantine ends when the broker accepts the topics that were in flight when the connection ended. So a restart of the broker has no lasting effect.
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
		if len(b.quarantines) != 0 || len(broker.shown) != 100 {
			t.Errorf("%d topics are shown, %d mirrors are quarantined", len(broker.shown), len(b.quarantines))
		}
	})
}

// However many topics the broker refuses, one that was in flight when the connection ended is tried first, and within maxBackoff. Each of the others is
// tried at least twice in three times maxBackoff.
func TestRefusedTopicsAreTriedInRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const denied = 1000
		b := newTestBacklog()
		tried := make(map[topic]int)
		good, first := topic{"t/", "good"}, topic{}
		run := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(step) {
				for e := b.take(time.Now()); e != nil; e = b.take(time.Now()) {
					if len(tried) == 0 {
						first = e.topic
					}
					tried[e.topic]++
					b.done(e, e.topic == good)
				}
			}
		}
		pushAll := func() {
			for i := range denied {
				b.push(topic{"t/", fmt.Sprint(i)})
			}
		}
		pushAll()
		for b.refusedCount() < denied {
			run(step)
			b.resetBackoff()
		}
		b.push(good)
		for e := b.take(time.Now()); e == nil || e.topic != good; e = b.take(time.Now()) { // then the network fails
			if e != nil {
				b.done(e, false)
			}
			time.Sleep(step)
		}
		b.end(true)
		b.begin([]string{"t/"})
		pushAll()
		b.push(good)
		clear(tried)
		run(maxBackoff + time.Second)
		if tried[good] != 1 || first != good {
			t.Errorf("the topic that was in flight is tried %d times within %v, and %v first", tried[good], maxBackoff, first)
		}
		run(2 * maxBackoff)
		for i := range denied {
			if n := tried[topic{"t/", fmt.Sprint(i)}]; n < 2 || n > 20 {
				t.Fatalf("topic %d is tried %d times", i, n)
			}
		}
	})
}

// If a topic is forgotten in the middle of a round of retries, the number of topics still to be tried stays right: none is tried twice in the round.
func TestForgottenTopicIsNotTriedInItsRound(t *testing.T) {
	a, b, c := topic{"t/", "a"}, topic{"t/", "b"}, topic{"t/", "c"}
	for name, test := range map[string]struct {
		forgotten topic
		untried   int
	}{
		"still to be tried": {a, 1},
		"tried":             {c, 2},
	} {
		t.Run(name, func(t *testing.T) {
			q := &quarantine{refused: map[topic]struct{}{a: {}, b: {}, c: {}}, order: []topic{a, b, c}, untried: 2}
			if !q.forget(test.forgotten) || q.forget(test.forgotten) || len(q.order) != 2 || len(q.refused) != 2 || q.untried != test.untried {
				t.Errorf("%+v", q)
			}
		})
	}
}

// A refused topic for which there is no room in the list of refused topics is published when its key changes again.
func TestRefusedTopicWithoutRoomIsPublishedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		q := &quarantine{refused: make(map[topic]struct{}), untried: maxRefused, retryAt: time.Now().Add(time.Hour)}
		for i := range maxRefused {
			q.order = append(q.order, topic{"t/", fmt.Sprint(i)})
			q.refused[q.order[i]] = struct{}{}
		}
		b.quarantines["t/"] = q
		last := topic{"t/", "last"}
		for range 2 {
			b.push(last)
			e := b.take(time.Now())
			if e == nil || e.topic != last {
				t.Fatalf("%+v is published", e)
			}
			b.done(e, false)
		}
		if !q.forgotten || len(q.order) != maxRefused {
			t.Errorf("forgotten: %v, %d refused", q.forgotten, len(q.order))
		}
	})
}

// A topic of another mirror waits for at most one topic of a quarantined mirror, however many of these are queued. They still make progress.
func TestQuarantinedMirrorDelaysOthersByOneTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		for i := range window {
			b.push(topic{"t/", fmt.Sprint(i)})
			b.take(time.Now())
		}
		b.end(true)
		b.begin([]string{"t/", "u/"})
		for i := range 1000 {
			b.push(topic{"t/", fmt.Sprint(i)})
		}
		const roundTrip = 100 * time.Millisecond
		alone := 0
		for round := range 200 {
			b.push(topic{"u/", fmt.Sprint(round)})
			for ahead := 0; ; {
				e := b.take(time.Now())
				time.Sleep(roundTrip)
				if e == nil {
					continue
				}
				b.done(e, true)
				if e.topic.prefix == "u/" {
					break
				}
				alone++
				if ahead++; ahead > 1 {
					t.Fatalf("round %d: a topic of the other mirror waits for %d topics", round, ahead)
				}
			}
		}
		if alone < 50 {
			t.Errorf("%d topics of the quarantined mirror are sent", alone)
		}
	})
}

// Quarantined mirrors take turns: one whose topics the broker refuses does not delay another one by more than a topic.
func TestQuarantinedMirrorsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		for _, prefix := range []string{"t/", "u/"} {
			b.push(topic{prefix, "in flight"})
			b.take(time.Now())
		}
		b.end(true) // both are suspect
		b.begin([]string{"t/", "u/"})
		for i := range 200 {
			b.push(topic{"t/", fmt.Sprint(i)})
		}
		b.push(topic{"u/", "last"})
		refused := 0
		for {
			b.push(topic{"w/", "busy"}) // of a third mirror
			time.Sleep(5 * time.Millisecond)
			e := b.take(time.Now())
			if e == nil {
				continue
			}
			if b.done(e, e.topic.prefix != "t/"); e.topic.prefix == "t/" {
				refused++
			}
			if e.topic == (topic{"u/", "last"}) {
				break
			}
		}
		if refused > 3 {
			t.Errorf("it waited for %d topics of the other mirror", refused)
		}
	})
}

// After a reconnection, a refused topic is not to be published until the comparison has found it. A round of retries before that finds nothing, and the
// next round begins after minRetry, not after the last retry interval.
func TestRetryIsNotLostByAReconnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		denied := topic{"t/", "denied"}
		b.push(denied)
		for range 8 { // until the retry interval has reached maxBackoff
			for e := b.take(time.Now()); ; e = b.take(time.Now()) {
				if e != nil {
					b.done(e, false)
					break
				}
				time.Sleep(step)
			}
		}
		time.Sleep(maxBackoff)
		b.end(true)
		b.begin([]string{"t/"})
		if e := b.take(time.Now()); e != nil {
			t.Fatalf("%+v is published before the comparison", e)
		}
		time.Sleep(time.Second)
		b.push(denied)
		began := time.Now()
		for b.take(time.Now()) == nil {
			time.Sleep(step)
		}
		if waited := time.Since(began); waited > 2*minRetry {
			t.Errorf("it is tried after %v", waited)
		}
	})
}
