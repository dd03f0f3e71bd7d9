package mirror

import (
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

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
		{Term: 1, Number: 1, Wall: 1000, Commands: []fsm.Command{{Kind: fsm.KindConfigure, Settings: &settings}}},
	}
	set := fsm.Entry{Term: 1, Number: 2, Wall: 1000}
	for i, key := range keys {
		set.Commands = append(set.Commands, fsm.Command{
			Kind: fsm.KindSet, ID: fsm.RequestID{byte(i + 1)}, Key: []byte(key), Value: []byte("v"), Timestamp: hlc.Timestamp{Wall: 1000, NodeID: "c"},
			Lifetime: 180_000, Principal: policy.Principal{ClientID: "c"},
		})
	}
	for i, entry := range append(entries, set) {
		if _, err := m.Apply(uint64(i+1), 1, fsm.AppendEntry(nil, &entry)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// If the broker acknowledges corrections and does not retain them, the second pass of the comparison counts their topics as unretained. They are not
// published again.
func TestUnretainedTopicsAreFoundByTheSecondPass(t *testing.T) {
	state := stateWith(t, "absent", "old", "good", "hot")
	m := newTestMirror()
	m.env.View = func(f func(*fsm.Machine)) { f(state) }
	s := m.connected()
	corrected := make(map[topic]string)
	look := func() *pass {
		p := &pass{s: s, began: time.Now(), queuedVersions: corrected, unlike: make(map[topic]struct{})}
		s.scan(func(t topic, _ *wanted) { s.backlog.expect(t) })
		message := mqttconn.Message{Publish: &paho.Publish{Topic: "t/old", Retain: true, Payload: []byte("of yesterday")}}
		p.received(message)
		w, _ := s.lookup(topic{"t/", "good"})
		message.Publish = &paho.Publish{Topic: "t/good", Retain: true, Payload: []byte(w.value), Properties: &paho.PublishProperties{User: paho.UserProperties{{Key: versionProperty, Value: w.version}}}}
		p.received(message)
		_, _, missing := p.queueMissing()
		t.Logf("%d missing, %d stale, %d unretained", missing, p.stale, p.unretained)
		return p
	}
	if p := look(); p.stale != 1 || p.unretained != 0 || len(corrected) != 3 {
		t.Errorf("at first %d are stale, %d unretained, %d corrected", p.stale, p.unretained, len(corrected))
	}
	for e := s.backlog.take(time.Now()); e != nil; e = s.backlog.take(time.Now()) {
		s.backlog.done(e, true)
	}
	corrected[topic{"t/", "hot"}] = "1:0:StateStore" // it has changed since
	if p := look(); p.stale != 0 || p.unretained != 2 {
		t.Errorf("at the second look %d are stale, %d unretained", p.stale, p.unretained)
	}
	if e := s.backlog.take(time.Now()); e == nil || e.topic.key != "hot" || s.backlog.take(time.Now()) != nil {
		t.Errorf("%+v is published again", e)
	}
}

// A pass may begin while a correction is not acknowledged. The broker may then still send the old retained message. That does not show that it fails to
// retain the correction.
func TestCorrectionUnderWayIsNotUnretained(t *testing.T) {
	m := newTestMirror()
	m.env.View = func(f func(*fsm.Machine)) { f(stateWith(t, "old")) }
	s := m.connected()
	queued := make(map[topic]string)
	old := mqttconn.Message{Publish: &paho.Publish{Topic: "t/old", Retain: true, Payload: []byte("of yesterday")}}
	first := &pass{s: s, began: time.Now(), queuedVersions: queued, unlike: make(map[topic]struct{})}
	first.received(old)
	if first.stale != 1 || len(queued) != 1 {
		t.Fatalf("%d are stale, %d queued", first.stale, len(queued))
	}
	second := &pass{s: s, began: time.Now(), queuedVersions: queued, unlike: make(map[topic]struct{})}
	second.forgetPending()
	s.backlog.done(s.backlog.take(time.Now()), true)
	if second.received(old); second.unretained != 0 {
		t.Error("it counts as acknowledged and not retained")
	}
	if e := s.backlog.take(time.Now()); e == nil || e.topic.key != "old" {
		t.Errorf("%+v is published again", e)
	}
}

// A topic that the broker refuses, and whose key was deleted, is in sync if the broker retains nothing on it. It then does not count as refused any more.
func TestRefusedTopicOfADeletedKeyIsInSync(t *testing.T) {
	m := newTestMirror()
	s := m.connected()
	m.env.View = func(f func(*fsm.Machine)) { f(stateWith(t)) }
	gone := topic{"t/", "gone"}
	s.backlog.push(gone)
	s.backlog.done(s.backlog.take(time.Now()), false)
	(&pass{s: s, unlike: map[topic]struct{}{gone: {}}}).dropCleared()
	s.backlog.dropSynced()
	if s.backlog.refusedCount() != 1 {
		t.Error("it is forgotten although the broker has sent it")
	}
	(&pass{s: s}).dropCleared()
	s.backlog.dropSynced()
	if s.backlog.refusedCount() != 0 {
		t.Error("it is not forgotten")
	}
}

// A retained message of a key that does not exist is to be cleared. If the broker refuses that, the topic counts as refused and is retried, even if the
// broker refused it during the comparison or on an earlier connection.
func TestRefusedClearingIsNotForgotten(t *testing.T) {
	gone := topic{"t/", "gone"}
	for name, before := range map[string]func(m *Mirror, s *session) *session{
		"refused now": func(_ *Mirror, s *session) *session { return s },
		"refused on an earlier connection": func(m *Mirror, s *session) *session {
			s.backlog.change(gone)
			s.backlog.done(s.backlog.take(time.Now()), false)
			m.detach(false)
			return m.connected()
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestMirror()
			m.env.View = func(f func(*fsm.Machine)) { f(stateWith(t)) }
			s := before(m, m.connected())
			corrected := make(map[topic]string)
			for range 2 { // a second pass verifies the first one
				p := &pass{s: s, began: time.Now(), queuedVersions: corrected, unlike: make(map[topic]struct{})}
				p.received(mqttconn.Message{Publish: &paho.Publish{Topic: gone.String(), Retain: true, Payload: []byte("v")}})
				if e := s.backlog.take(time.Now()); e != nil {
					s.backlog.done(e, false)
				}
				p.queueMissing()
				p.dropCleared()
				if p.unretained != 0 {
					t.Error("it counts as acknowledged and not retained")
				}
			}
			s.backlog.dropSynced()
			s.backlog.resetBackoff()
			if e := s.backlog.take(time.Now()); e == nil || e.topic != gone {
				t.Errorf("%+v is tried again, want %v", e, gone)
			}
		})
	}
}

// A refused topic whose key changes during a comparison is still to be published, whatever the comparison found before the change.
func TestChangeOfARefusedTopicIsNotForgotten(t *testing.T) {
	hot := topic{"t/", "hot"}
	for name, compare := range map[string]func(p *pass, w *wanted, change func()){
		"the broker sends what the key was": func(p *pass, w *wanted, change func()) {
			p.s.env.View = afterEach(p.s.env.View, change)
			p.received(mqttconn.Message{Publish: &paho.Publish{
				Topic: "t/hot", Retain: true, Payload: []byte(w.value), Properties: &paho.PublishProperties{User: paho.UserProperties{{Key: versionProperty, Value: w.version}}},
			}})
		},
		"the key is set again": func(p *pass, _ *wanted, change func()) {
			p.s.env.View = afterEach(func(f func(*fsm.Machine)) { f(stateWith(t)) }, change)
			p.dropCleared()
		},
		"the broker took the value and refused its deletion": func(p *pass, _ *wanted, change func()) {
			p.s.env.View = func(f func(*fsm.Machine)) { f(stateWith(t)) }
			change()
			p.dropCleared()
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestMirror()
			m.env.View = func(f func(*fsm.Machine)) { f(stateWith(t, "hot")) }
			s := m.connected()
			s.backlog.push(hot)
			s.backlog.done(s.backlog.take(time.Now()), false)
			w, _ := s.lookup(hot)
			s.backlog.setComparing(true)
			compare(&pass{s: s, began: time.Now(), queuedVersions: make(map[topic]string), unlike: make(map[topic]struct{})}, &w, func() {
				m.Applied(&fsm.EntryOutcome{Mirrored: []fsm.MirroredKey{{Topic: "t/", Key: "hot"}}})
			})
			s.backlog.dropSynced()
			if s.backlog.refusedCount() != 1 {
				t.Error("it is forgotten")
			}
			s.backlog.resetBackoff()
			if e := s.backlog.take(time.Now()); e == nil || e.topic != hot {
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

// If a key changes during a comparison, an older retained message of it does not count as stale. The topic is published again all the same.
func TestChangesDuringAComparisonAreNoCorrections(t *testing.T) {
	state := stateWith(t, "hot")
	m := newTestMirror()
	m.env.View = func(f func(*fsm.Machine)) { f(state) }
	s := m.connected()
	s.backlog.setComparing(true)
	hot := topic{"t/", "hot"}
	s.backlog.change(hot)
	s.backlog.done(s.backlog.take(time.Now()), true)
	p := &pass{s: s, began: time.Now(), queuedVersions: make(map[topic]string), unlike: make(map[topic]struct{})}
	p.received(mqttconn.Message{Publish: &paho.Publish{Topic: "t/hot", Retain: true, Payload: []byte("older")}})
	if p.stale != 0 || len(p.queuedVersions) != 0 {
		t.Errorf("%d are stale, %d corrected", p.stale, len(p.queuedVersions))
	}
	if e := s.backlog.take(time.Now()); e == nil || e.topic != hot {
		t.Errorf("%+v is published again", e)
	}
}
