package mirror

import (
	"maps"
	"math"
	"strconv"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/hlc"
	"holdfast/internal/mqttconn"
	"holdfast/internal/policy"
)

// stateWith returns a state with mirrors of all keys, and keys with a value.
func stateWith(t *testing.T, keys ...string) *fsm.Machine {
	t.Helper()
	m := fsm.New()
	settings := fsm.DefaultSettings()
	settings.Mirrors = []fsm.Mirror{{Keys: "*", Topic: "t/"}}
	entries := []fsm.Entry{
		{Commands: []fsm.Command{{Kind: fsm.KindLeaderStart, Nonce: 1, Version: fsm.Version}}},
		{
			Term: 1, Number: 1, Wall: 1000,
			Commands: []fsm.Command{{Kind: fsm.KindConfigure, Settings: &settings}},
		},
	}
	set := fsm.Entry{Term: 1, Number: 2, Wall: 1000}
	for i, key := range keys {
		set.Commands = append(set.Commands, fsm.Command{
			Kind: fsm.KindSet, ID: fsm.RequestID{byte(i + 1)}, Key: []byte(key), Value: []byte("v"),
			Timestamp: hlc.Timestamp{Wall: 1000, NodeID: "c"},
			Lifetime:  180_000, Principal: policy.Principal{ClientID: "c"},
		})
	}
	for i, entry := range append(entries, set) {
		if _, err := m.Apply(uint64(i+1), 1, fsm.AppendEntry(nil, &entry)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// comparing is one comparison without a network: its passes receive the messages that the test
// gives.
type comparing struct {
	state   *fsm.Machine
	backlog *backlog
	desired *desired
	queued  map[topic]string
}

// newComparing begins a comparison of a state.
func newComparing(state *fsm.Machine) *comparing {
	c := &comparing{state: state, backlog: newTestBacklog(), queued: make(map[topic]string)}
	c.desired = newDesired(func(f func(*fsm.Machine)) { f(c.state) }, math.MaxInt)
	c.backlog.setComparing(true)
	return c
}

// begin begins a pass on which the broker sends the marker that comes first.
func (c *comparing) begin() *pass {
	p := newPass("m/", []string{"t/"}, c.backlog, c.desired, c.queued)
	p.begin()
	p.received(retained("m/"+firstMarker, "", ""))
	return p
}

// end ends a pass on which the broker has sent everything.
func (c *comparing) end(p *pass) comparison {
	p.received(retained("m/"+lastMarker, "", ""))
	return p.finish(true, false)
}

// run makes a pass on which the broker sends retained messages.
func (c *comparing) run(messages ...mqttconn.Message) comparison {
	p := c.begin()
	for _, message := range messages {
		p.received(message)
	}
	return c.end(p)
}

// current returns the retained message of a topic that is as in the state.
func (c *comparing) current(t topic) mqttconn.Message {
	w, _ := c.desired.lookup(t)
	return retained(t.String(), w.value, w.version)
}

// answer has the broker answer all topics that are to be published, and returns them.
func (c *comparing) answer(accepted bool) map[topic]bool {
	published := make(map[topic]bool)
	for e := c.backlog.take(time.Now()); e != nil; e = c.backlog.take(time.Now()) {
		published[e.topic] = true
		c.backlog.done(e, accepted)
	}
	return published
}

// retained returns a retained message. An empty version is none.
func retained(topic, value, version string) mqttconn.Message {
	message := mqttconn.Message{Publish: &mqttconn.Publish{
		Topic: topic, Retain: true,
		Payload: []byte(value),
	}}
	if version != "" {
		message.Properties = &mqttconn.Properties{User: mqttconn.UserProperties{{Key: versionProperty, Value: version}}}
	}
	return message
}

// set sets a key of a state that has the keys of stateWith.
func set(t *testing.T, m *fsm.Machine, key, value string) {
	t.Helper()
	entry := fsm.Entry{Term: 1, Number: 3, Wall: 2000, Commands: []fsm.Command{{
		Kind: fsm.KindSet, ID: fsm.RequestID{99}, Key: []byte(key), Value: []byte(value),
		Timestamp: hlc.Timestamp{Wall: 2000, NodeID: "c"},
		Lifetime:  180_000, Principal: policy.Principal{ClientID: "c"},
	}}}
	if _, err := m.Apply(m.Status().Index+1, 1, fsm.AppendEntry(nil, &entry)); err != nil {
		t.Fatal(err)
	}
}

// If the broker acknowledges corrections and does not retain them, the second pass of the
// comparison counts their topics as unretained. They are not published again.
func TestUnretainedTopicsAreFoundByTheSecondPass(t *testing.T) {
	c := newComparing(stateWith(t, "absent", "old", "good", "hot"))
	messages := []mqttconn.Message{
		retained("t/old", "of yesterday", ""),
		c.current(topic{"t/", "good"}),
	}
	if found := c.run(messages...); found != (comparison{keys: 4, missing: 2, stale: 1}) {
		t.Errorf("the first pass finds %+v", found)
	}
	if published := c.answer(true); !maps.Equal(published,
		map[topic]bool{{"t/", "absent"}: true, {"t/", "old"}: true, {"t/", "hot"}: true}) {
		t.Errorf("the first pass corrects %v", published)
	}
	set(t, c.state, "hot", "v")
	if found := c.run(messages...); found != (comparison{keys: 4, missing: 1, unretained: 2}) {
		t.Errorf("the second pass finds %+v", found)
	}
	if published := c.answer(true); !maps.Equal(published, map[topic]bool{{"t/", "hot"}: true}) {
		t.Errorf("the second pass corrects %v", published)
	}
}

// A pass may begin while a correction is not acknowledged. The broker may then still send the old
// retained message. That does not show that it fails to retain the correction.
func TestCorrectionUnderWayIsNotUnretained(t *testing.T) {
	c := newComparing(stateWith(t, "old"))
	old := retained("t/old", "of yesterday", "")
	if found := c.run(old); found.stale != 1 {
		t.Fatalf("the first pass finds %+v", found)
	}
	second := c.begin()
	c.answer(true)
	second.received(old)
	if found := c.end(second); found.unretained != 0 {
		t.Errorf("the second pass finds %+v", found)
	}
	if published := c.answer(true); !published[topic{"t/", "old"}] {
		t.Errorf("%v are published again", published)
	}
}

// A topic that the broker refuses, and whose key was deleted, is in sync if the broker retains
// nothing on it. It then does not count as refused any more.
func TestRefusedTopicOfADeletedKeyIsInSync(t *testing.T) {
	c := newComparing(stateWith(t))
	gone := topic{"t/", "gone"}
	c.backlog.push(gone)
	c.answer(false)
	c.run(retained(gone.String(), "v", ""))
	c.backlog.dropSynced()
	if c.backlog.refusedCount() != 1 {
		t.Error("it is forgotten although the broker has sent it")
	}
	c.run()
	c.backlog.dropSynced()
	if c.backlog.refusedCount() != 0 {
		t.Error("it is not forgotten")
	}
}

// A retained message of a key that does not exist is to be cleared. If the broker refuses that, the
// topic counts as refused and is retried, even if the broker refused it during the comparison or on
// an earlier connection.
func TestRefusedClearingIsNotForgotten(t *testing.T) {
	gone := topic{"t/", "gone"}
	for name, before := range map[string]func(c *comparing){
		"refused now": func(*comparing) {},
		"refused on an earlier connection": func(c *comparing) {
			c.backlog.change(gone)
			c.answer(false)
			c.backlog.end(false)
			c.backlog.begin([]string{"t/"})
			c.backlog.setComparing(true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newComparing(stateWith(t))
			before(c)
			for range 2 { // a second pass verifies the first one
				p := c.begin()
				p.received(retained(gone.String(), "v", ""))
				c.answer(false)
				if found := c.end(p); found.unretained != 0 {
					t.Error("it counts as acknowledged and not retained")
				}
			}
			c.backlog.setComparing(false)
			c.backlog.dropSynced()
			c.backlog.retryNow()
			if e := c.backlog.take(time.Now()); e == nil || e.topic != gone {
				t.Errorf("%+v is tried again, want %v", e, gone)
			}
		})
	}
}

// A refused topic whose key changes during a comparison is still to be published, whatever the
// comparison found before the change.
func TestChangeOfARefusedTopicIsNotForgotten(t *testing.T) {
	hot := topic{"t/", "hot"}
	for name, compare := range map[string]func(c *comparing, empty *fsm.Machine, change func()){
		"the broker sends what the key was": func(c *comparing, _ *fsm.Machine, change func()) {
			was, p := c.current(hot), c.begin()
			c.desired.view = afterEach(c.desired.view, change)
			p.received(was)
			c.end(p)
		},
		"the key is set again": func(c *comparing, empty *fsm.Machine, change func()) {
			c.state = empty
			p := c.begin()
			c.desired.view = afterEach(c.desired.view, change)
			c.end(p)
		},
		"the broker took the value and refused its deletion": func(c *comparing, empty *fsm.Machine,
			change func(),
		) {
			c.state = empty
			change()
			c.run()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newComparing(stateWith(t, "hot"))
			c.backlog.push(hot)
			c.answer(false)
			compare(c, stateWith(t), func() { c.backlog.change(hot) })
			c.backlog.setComparing(false)
			c.backlog.dropSynced()
			if c.backlog.refusedCount() != 1 {
				t.Error("it is forgotten")
			}
			c.backlog.retryNow()
			if e := c.backlog.take(time.Now()); e == nil || e.topic != hot {
				t.Errorf("%+v is published", e)
			}
		})
	}
}

// afterEach returns a function that calls view and then calls then.
func afterEach(view func(func(*fsm.Machine)), then func()) func(func(*fsm.Machine)) {
	return func(f func(*fsm.Machine)) {
		view(f)
		then()
	}
}

// If a key changes during a comparison, an older retained message of it does not count as stale.
// The topic is published again all the same.
func TestChangesDuringAComparisonAreNoCorrections(t *testing.T) {
	c := newComparing(stateWith(t, "hot"))
	hot := topic{"t/", "hot"}
	c.backlog.change(hot)
	c.answer(true)
	if found := c.run(retained("t/hot", "older", "")); found != (comparison{keys: 1}) {
		t.Errorf("the pass finds %+v", found)
	}
	if published := c.answer(true); !published[hot] {
		t.Errorf("%v are published again", published)
	}
}

// When too many keys change during a comparison, all topics count as touched. What the broker
// retains of a deleted key is cleared all the same.
func TestMessageOfADeletedKeyIsClearedAmongManyChanges(t *testing.T) {
	c := newComparing(stateWith(t))
	for i := range maxTouched {
		c.backlog.touched[topic{"t/", strconv.Itoa(i)}] = struct{}{}
	}
	c.run(retained("t/gone", "old", "1:0:StateStore"))
	if !c.backlog.isPending(topic{"t/", "gone"}) {
		t.Error("the message of a deleted key stays")
	}
}
