package exclusive

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mqttconn"

	"holdfast/mqttfront/wire"
)

// broker carries questions between the checkers of clusters. A cluster that serves answers those of
// the others.
type broker struct {
	mu       sync.Mutex
	clusters map[string]*cluster
	away     map[string]bool // clusters that the broker does not reach
	foreign  bool            // another implementation answers everything
	fault    error           // of Publish
}

type cluster struct {
	*Checker
	serving bool
	served  []time.Duration // since the beginning: from, to, from, …
}

func newBroker() *broker {
	return &broker{
		clusters: map[string]*cluster{},
		away:     map[string]bool{},
	}
}

// start starts a node that leads its cluster, and serves while it may.
func (b *broker) start(t *testing.T, name string, random func() uint64) *cluster {
	began := time.Now()
	c := &cluster{}
	c.Checker = New(Config{Cluster: name, Node: "n1", ClientID: name + "-n1-in"}, Environment{
		Leads: func() bool { return true }, Wall: func() int64 { return time.Now().UnixMilli() },
		Random:  random,
		Observe: func(bool) {}, Log: slog.New(slog.DiscardHandler),
	})
	b.mu.Lock()
	b.clusters[name] = c
	b.mu.Unlock()
	go c.Run(t.Context(), func(_ context.Context,
		message *mqttconn.Publish,
	) error {
		return b.publish(name, message)
	})
	go func() {
		for t.Context().Err() == nil {
			c.AwaitAlone(t.Context())
			c.serve(b, true, time.Since(began))
			_ = c.AwaitOther(t.Context())
			c.serve(b, false, time.Since(began))
		}
	}()
	return c
}

func (c *cluster) serve(b *broker, serves bool, at time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.serving, c.served = serves, append(c.served, at)
}

func (b *broker) serving(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clusters[name].serving
}

func (b *broker) cut(name string, away bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away[name] = away
}

func (b *broker) publish(from string, message *mqttconn.Publish) error {
	b.mu.Lock()
	fault, foreign, asker := b.fault, b.foreign, b.clusters[from]
	var others []*cluster
	for name, c := range b.clusters {
		if !b.away[name] && !b.away[from] {
			others = append(others, c)
		}
	}
	b.mu.Unlock()
	if fault != nil {
		return fault
	}
	answer := &mqttconn.Publish{Properties: &mqttconn.Properties{CorrelationData: message.Properties.CorrelationData}}
	if foreign {
		asker.Answered(answer)
	}
	for _, c := range others {
		own := c.IsQuestion(message)
		b.mu.Lock()
		serving := c.serving
		b.mu.Unlock()
		if !own && serving {
			asker.Answered(answer)
		}
	}
	return nil
}

// counter returns a source of numbers that differ.
func counter(step uint64) func() uint64 {
	var mu sync.Mutex
	var last uint64
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		last += step
		return last * 2654435761 * step
	}
}

// † A cluster that is started at the broker of another one serves nobody, and says whose broker it
// is. It serves when the other is gone.
func TestSecondClusterAtABrokerDoesNotServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker()
		first := b.start(t, "plant", counter(3))
		time.Sleep(10 * time.Second)
		second := b.start(t, "test", counter(5))
		time.Sleep(time.Minute)
		if !b.serving("plant") || b.serving("test") || len(second.served) != 0 {
			t.Fatalf("the first serves %t, the second %t: %v", b.serving("plant"),
				b.serving("test"), second.served)
		}
		if err := second.Err(); !errors.Is(err, ErrOtherStore) ||
			!strings.Contains(err.Error(), `"plant/n1"`) {
			t.Errorf("the second: %v", err)
		}
		if notes := first.Notes(); len(notes) != 1 || !strings.Contains(notes[0], `"test/n1"`) ||
			first.Err() != nil {
			t.Errorf("the first: %v, %q", first.Err(), notes)
		}
		b.cut("plant", true) // a failover takes less than standBack: the second waits for longer
		time.Sleep(standBack - 5*time.Second)
		if b.serving("test") {
			t.Error("the second takes the broker while the first may only change its leader")
		}
		time.Sleep(30 * time.Second)
		if !b.serving("test") || second.Err() != nil {
			t.Error("the second does not serve after the first is gone")
		}
	})
}

// Of two clusters that have served apart, one goes on, soon after they are together.
func TestClustersThatMeetAgainDoNotBothServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker()
		b.cut("b", true)
		b.start(t, "a", counter(3))
		b.start(t, "b", counter(5))
		time.Sleep(time.Minute)
		if !b.serving("a") || !b.serving("b") {
			t.Fatal("they do not serve apart")
		}
		b.cut("b", false)
		time.Sleep(2 * leaderInterval)
		for range 100 {
			time.Sleep(time.Second)
			if b.serving("a") && b.serving("b") {
				t.Fatal("both serve")
			}
		}
		if b.serving("a") == b.serving("b") {
			t.Error("nobody serves")
		}
	})
}

// A store that does not know the question answers it as any request: nobody serves beside it.
func TestOtherImplementationIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker()
		c := b.start(t, "a", counter(3))
		time.Sleep(time.Second)
		if !b.serving("a") {
			t.Fatal("it does not serve alone")
		}
		b.mu.Lock()
		b.foreign = true
		b.mu.Unlock()
		time.Sleep(leaderInterval + time.Second)
		if err := c.Err(); b.serving("a") || !errors.Is(err, ErrOtherStore) ||
			!strings.Contains(err.Error(), "another implementation") {
			t.Errorf("it serves: %t, %v", b.serving("a"), err)
		}
	})
}

type denial struct{ error }

func (denial) Denied() bool { return true }

// A broker that denies the question delays nobody, and is asked seldom: it may end the session each
// time.
func TestDeniedQuestionDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		c := New(Config{Cluster: "a", Node: "n1", ClientID: "a-n1-in"}, Environment{
			Leads: func() bool { return true }, Wall: func() int64 { return 0 }, Random: counter(3),
			Observe: func(bool) {}, Log: slog.New(slog.DiscardHandler),
		})
		go c.Run(t.Context(), func(context.Context, *mqttconn.Publish) error {
			asked++
			return denial{errors.New("not authorized")}
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		if asked > 100 {
			t.Errorf("asked %d times", asked)
		}
		began := time.Now()
		c.AwaitAlone(t.Context())
		if took := time.Since(began); took > retry {
			t.Errorf("a node that begins to lead waits %v", took)
		}
	})
}

// Two clusters that begin to serve at once know of each other soon: each answers only from then on.
func TestClustersThatBeginAtOnceDoNotBothServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker()
		a, c := b.start(t, "a", counter(3)), b.start(t, "b", counter(5))
		time.Sleep(patience + 100*time.Millisecond)
		a.Serving()
		c.Serving()
		time.Sleep(4 * time.Second)
		if b.serving("a") && b.serving("b") {
			t.Error("both serve")
		}
	})
}

// A broker that denies the question keeps no node from serving. An operator is told.
func TestDeniedQuestionIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker()
		b.fault = errors.New("not authorized")
		c := b.start(t, "a", counter(3))
		time.Sleep(maxUnasked + time.Second)
		if notes := c.Notes(); !b.serving("a") || len(notes) != 1 ||
			!strings.Contains(notes[0], "not authorized") {
			t.Errorf("it serves: %t, %q", b.serving("a"), notes)
		}
	})
}

// What a client publishes on the response topic, or asks in the name of a cluster, stops nobody.
func TestForgedAnswersDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker()
		c := b.start(t, "a", counter(3))
		time.Sleep(time.Second)
		c.Answered(&mqttconn.Publish{})
		c.Answered(&mqttconn.Publish{Properties: &mqttconn.Properties{CorrelationData: []byte(
			"guessed")}})
		c.IsQuestion(&mqttconn.Publish{Properties: &mqttconn.Properties{User: mqttconn.UserProperties{{Key: wire.StoreProperty, Value: strings.Repeat("x\n", 1000)}}}})
		if notes := c.Notes(); c.Err() != nil || len(notes) != 1 || len(notes[0]) > 400 ||
			strings.Contains(notes[0], "\n") {
			t.Errorf("%v, %q", c.Err(), notes)
		}
		if !c.IsQuestion(&mqttconn.Publish{Properties: &mqttconn.Properties{User: mqttconn.UserProperties{{Key: wire.StoreProperty, Value: "a/n2"}}}}) {
			t.Error("a question of its own cluster is not known")
		}
	})
}
