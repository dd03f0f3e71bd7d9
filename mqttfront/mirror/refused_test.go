package mirror

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// strict is a broker that does not accept some topics: it refuses them, ends the connection, or
// does both.
type strict struct {
	refuses func(topic) bool
	ends    bool          // it ends the connection
	answers bool          // it sends a PUBACK with an error
	shown   map[topic]int // how often it accepted each topic
	lost    int           // number of connections that it has ended
}

// run sends the topics of a backlog to the broker for the time d. It calls again for each further
// connection.
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

// Whichever topics the broker refuses, and however it does, the topics of the other mirror are
// published soon, and few connections are lost. The refused topics are published when the broker
// accepts them again.
func TestRefusedTopicsKeepNothingElseFromBeingShown(t *testing.T) {
	const topics = 500
	mirrorOf := func(prefix string) func(
		topic) bool {
		return func(t topic) bool { return t.prefix == prefix }
	}
	oneOf := func(t topic) bool { return t.prefix == "t/" && t.key == "7" }
	for name, test := range map[string]struct {
		broker strict
		losses int // at most, in the first 15 minutes
	}{
		"a mirror, and says so": {strict{
			refuses: mirrorOf("t/"),
			answers: true,
		}, 0},
		"a mirror, and ends the connection, too": {strict{
			refuses: mirrorOf("t/"),
			answers: true, ends: true,
		}, 8},
		"a mirror, by the end of the connection": {strict{
			refuses: mirrorOf("t/"),
			ends:    true,
		}, 8},
		"a topic, and says so": {
			strict{refuses: oneOf, answers: true},
			0,
		},
		"a topic, by the end of the connection": {strict{refuses: oneOf, ends: true}, 5},
		"each tenth topic, and ends the connection, too": {strict{
			refuses: func(
				t topic,
			) bool {
				return t.prefix == "t/" && t.key[len(t.key)-1] == '1'
			}, answers: true,
			ends: true,
		}, 55},
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
				broker.run(b, 5*time.Minute, missing)
				for i := range topics {
					for _, prefix := range []string{"t/", "u/"} {
						if one := (topic{prefix, fmt.Sprint(i)}); broker.shown[one] == 0 &&
							!broker.refuses(one) {
							t.Fatalf("%s is not shown", one)
						}
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
				broker.run(b, 2*retryInterval, missing)
				if len(broker.shown) != 2*topics || b.refusedCount() != 0 {
					t.Errorf("%d topics are shown at the end, %d refused", len(broker.shown),
						b.refusedCount())
				}
			})
		})
	}
}

// One topic is sent at a time until what was in flight when the connection ended is answered. A
// restart of the broker has no lasting effect.
func TestSuspectsAreSentAlone(t *testing.T) {
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
		for i := range 100 {
			b.push(topic{"t/", fmt.Sprint(i)})
		}
		for i := range 50 {
			e := b.take(time.Now())
			if e == nil || !e.alone || b.take(time.Now()) != nil {
				t.Fatalf("topic %d: %+v is not sent alone", i, e)
			}
			b.done(e, true)
		}
		for i := range 50 {
			if e := b.take(time.Now()); e == nil || e.alone {
				t.Fatalf("topic %d of the others: %+v", i, e)
			}
		}
	})
}

// Of the topics on which connections ended, one is tried every retryInterval, in turn. So is one of
// a mirror of which nothing is sent.
func TestTopicsThatEndConnectionsAreTriedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		bad := []topic{{"t/", "a"}, {"t/", "b"}, {"u/", "c"}}
		connect := func() {
			b.begin([]string{"t/", "u/"})
			for _, one := range bad {
				b.push(one)
			}
		}
		connect()
		for range bad {
			b.take(time.Now())
		}
		tried := make(map[topic]int)
		for range len(bad) + 9 {
			// each ends the connection: the suspects at once, then one per interval
			b.end(true)
			connect()
			e := b.take(time.Now())
			for e == nil {
				time.Sleep(time.Second)
				e = b.take(time.Now())
			}
			tried[e.topic]++
			if b.take(time.Now()) != nil {
				t.Fatalf("%v is not tried alone", e.topic)
			}
		}
		for _, one := range bad {
			if tried[one] < 2 {
				t.Errorf("%v: tried %d times", one, tried[one])
			}
		}
	})
}

// A topic that ends each connection keeps no topic from being tried again that was only refused.
func TestRefusedTopicIsTriedBesideOneThatEndsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		ends, good := topic{"t/", "ends"}, topic{"u/", "good"}
		b.push(good)
		b.done(b.take(time.Now()), false)
		tried := 0
		for range 10 {
			b.push(ends)
			b.push(good)
			e := b.take(time.Now())
			for ; e == nil; e = b.take(time.Now()) {
				time.Sleep(time.Second)
			}
			for ; e != nil; e = b.take(time.Now()) {
				if e.topic == ends {
					break
				}
				tried++
				b.done(e, false)
			}
			b.end(true)
			b.begin([]string{"t/", "u/"})
		}
		if tried < 3 {
			t.Errorf("tried %d times", tried)
		}
	})
}

// With a full list of refused topics, one on which connections end is still remembered, and its
// mirror is not denied for it alone.
func TestTopicThatEndsConnectionsIsRememberedInAFullList(t *testing.T) {
	b := newTestBacklog()
	for i := range maxRefused {
		b.refused.add(topic{"t/", fmt.Sprint(i)}, time.Now())
	}
	ends := topic{"u/", "ends"}
	b.push(ends)
	b.take(time.Now())
	b.end(true) // a suspect
	b.begin([]string{"t/", "u/"})
	b.take(time.Now())
	b.end(true)
	if !b.refused.has(ends) || len(b.refused.topics) != maxRefused || !b.refused.lost ||
		b.refused.isDenied(ends) {
		t.Errorf("remembered: %v of %d, denied: %v", b.refused.has(ends), len(b.refused.topics),
			b.refused.isDenied(ends))
	}
}

// A mirror of which nothing is sent is sent again when the broker refuses its topics by PUBACKs,
// and does not end the connection any more.
func TestDeniedMirrorIsLiftedByARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		connect := func() {
			b.begin([]string{"t/"})
			for i := range 100 {
				b.push(topic{"t/", fmt.Sprint(i)})
			}
		}
		connect()
		for !b.refused.isDenied(topic{prefix: "t/"}) {
			b.take(time.Now())
			b.end(true)
			connect()
		}
		if e := b.take(time.Now()); e != nil {
			t.Fatalf("%v is sent", e.topic)
		}
		time.Sleep(retryInterval)
		b.done(b.take(time.Now()), false)
		time.Sleep(time.Minute)
		sent := 0
		for e := b.take(time.Now()); e != nil; e = b.take(time.Now()) {
			sent++
			b.done(e, true)
		}
		if sent < 90 {
			t.Errorf("%d topics are sent", sent)
		}
	})
}

// A refused topic for which there is no room in the list of refused topics is published when its
// key changes again.
func TestRefusedTopicWithoutRoomIsPublishedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		for i := range maxRefused {
			b.refused.add(topic{"t/", fmt.Sprint(i)}, time.Now())
		}
		last := topic{"t/", "last"}
		for range 2 {
			b.push(last)
			e := b.take(time.Now())
			if e == nil || e.topic != last {
				t.Fatalf("%+v is published", e)
			}
			b.done(e, false)
		}
		if !b.refused.lost || len(b.refused.topics) != maxRefused {
			t.Errorf("lost: %v, %d refused", b.refused.lost, len(b.refused.topics))
		}
	})
}

// After a reconnection, a refused topic is not to be published until the comparison has found it. A
// retry that is due before that is made then.
func TestRetryIsNotLostByAReconnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBacklog()
		denied := topic{"t/", "denied"}
		b.push(denied)
		b.done(b.take(time.Now()), false)
		time.Sleep(retryInterval)
		b.end(true)
		b.begin([]string{"t/"})
		if e := b.take(time.Now()); e != nil {
			t.Fatalf("%+v is published before the comparison", e)
		}
		time.Sleep(time.Second)
		b.push(denied)
		if e := b.take(time.Now()); e == nil || e.topic != denied {
			t.Errorf("%+v is tried", e)
		}
	})
}
