package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/policy"
)

func TestWatchesNotifyOfEachChange(t *testing.T) {
	l := newLeader(t)
	sdk := watching("b", "k")
	sdk.Dialect = SDK
	l.do(watching("a", "k"))
	l.do(watching("a", "k"))
	l.do(sdk)
	outcome := l.apply(l.set("k", "1", from("a")), del("none"), vdel("k", "x"),
		l.set("k", "2", when(IfAbsent)), del("k"), del("k"))
	var got []string
	for _, e := range outcome.Events {
		for _, r := range e.Receivers {
			got = append(got, fmt.Sprintf("%d %s %d %v %q", e.Command, r.ClientID, r.Dialect,
				e.Deleted, e.Value))
		}
	}
	want := `[0 a 0 false "1" 0 b 1 false "1" 4 a 0 true "" 4 b 1 true ""]`
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	stop := watching("a", "k")
	stop.Kind = KindKeyNotifyStop
	l.want("STOP", l.do(stop), CodeOK, NoError)
	l.want("STOP again", l.do(stop), CodeMissing, NoError)
	if events := l.apply(l.set("k", "3")).Events; len(events) != 1 ||
		len(events[0].Receivers) != 1 {
		t.Errorf("after STOP: %+v", events)
	}
	l.want("unknown client", l.do(watching("", "k")), CodeError, ErrorNotAuthorized)
	l.want("topic too long", l.do(watching("c", strings.Repeat("k", 32_730))), CodeError,
		ErrorQuota)
	l.want("topic just not too long", l.do(watching("c", strings.Repeat("k", 32_720))), CodeOK,
		NoError)
	l.configure(func(s *Settings) { s.Limits.Watches = 2 })
	l.want("one more", l.do(watching("d", "k")), CodeError, ErrorQuota)
	l.want("a renewal is not one more", l.do(watching("b", "k")), CodeOK, NoError)
}

// A late disconnect event must never end a watch that was made after the client came back; in doubt
// a watch stays.
func TestLateDisconnectEndsNoNewerWatch(t *testing.T) {
	l := newLeader(t)
	watch := func(clientID, key string, brokerTime int64) {
		c := watching(clientID, key)
		c.BrokerTime = brokerTime
		l.do(c)
	}
	watch("a", "old", 10)
	watch("a", "new", 30)
	watch("a", "unknown", 0)
	watch("ab", "old", 10)
	l.do(Command{Kind: KindClientGone, Principal: client("a"), BrokerTime: 20})
	if n := l.m.Status().Watches; n != 3 {
		t.Errorf("%d watches left, want 3", n)
	}
	l.do(Command{Kind: KindClientGone, Everyone: true, BrokerTime: 20})
	if n := l.m.Status().Watches; n != 2 {
		t.Errorf("%d watches left, want 2", n)
	}
}

// A notification without a subscriber ends a watch only when the watch is older than that change
// and at least 5 s old.
func TestOnlyAnOldWatchWithoutSubscriberEnds(t *testing.T) {
	l := newLeader(t)
	l.do(watching("a", "k"))
	changed := l.apply(l.set("k", "1")).Index
	end := Command{
		Kind: KindWatchEnd, Principal: client("a"), Key: []byte("k"),
		NotificationIndex: changed, ChangedAt: 4_999,
	}
	if l.do(end); l.m.Status().Watches != 1 {
		t.Fatal("ended within its grace")
	}
	l.pass(6_000)
	l.do(watching("a", "k"))
	end.ChangedAt = 60_000
	if l.do(end); l.m.Status().Watches != 1 {
		t.Fatal("a watch that was renewed after the change ended")
	}
	end.NotificationIndex = l.apply(l.set("k", "2")).Index
	if l.do(end); l.m.Status().Watches != 0 {
		t.Fatal("did not end")
	}
}

func TestWatchEndsAtItsTTL(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.WatchTTL = 1000 })
	l.do(watching("a", "k"))
	l.pass(600)
	l.do(watching("b", "k"))
	l.pass(400)
	if receivers := l.apply(l.set("k", "1")).Events[0].Receivers; len(receivers) != 1 ||
		receivers[0].ClientID != "b" {
		t.Errorf("%v", receivers)
	}
}

// The list of unpublished notifications stays within its limit, whatever one entry does to a key
// with many watchers. The oldest events are dropped.
func TestManyReceiversAreBounded(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.UnpublishedNotifications = 500 })
	for i := range 100 {
		l.do(watching(fmt.Sprint("client", i), "k"))
	}
	var commands []Command
	for i := range 50 {
		commands = append(commands, l.set("k", fmt.Sprint(i)))
	}
	outcome := l.apply(commands...)
	if len(outcome.Events) != 5 || outcome.Dropped != 4500 || outcome.Events[4].Value != "49" ||
		len(l.m.Unpublished()) != 5 {
		t.Errorf("%d events, %d dropped", len(outcome.Events), outcome.Dropped)
	}
	l.configure(func(s *Settings) { s.Limits.WatchBytes = l.m.watches.bytes + 5 })
	l.want("watches are bounded by bytes, too", l.do(watching("another", "k")), CodeError,
		ErrorQuota)
}

func TestUnpublishedEventsAreKeptUntilPublished(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.UnpublishedNotifications = 4 })
	l.do(watching("a", "k"))
	l.do(watching("b", "k"))
	first := l.apply(l.set("k", "1"))
	l.apply(l.set("k", "2"))
	if n := len(l.m.Unpublished()); n != 2 {
		t.Fatalf("%d", n)
	}
	if dropped := l.apply(l.set("k", "3")).Dropped; dropped != 2 ||
		l.m.Unpublished()[0].Value != "2" {
		t.Errorf("dropped %d, first %q", dropped, l.m.Unpublished()[0].Value)
	}
	l.number++
	l.append(&Entry{Term: l.term, Number: l.number, Published: first.Index + 1})
	if events := l.m.Unpublished(); len(events) != 1 || events[0].Value != "3" {
		t.Errorf("%+v", events)
	}
}

// A watch that was made at the very time of its client's disconnect ends with it.
func TestWatchMadeAtTheTimeOfTheDisconnectEnds(t *testing.T) {
	l := newLeader(t)
	made := watching("w", "k")
	made.BrokerTime = 1000
	l.do(made)
	for _, disconnect := range []struct {
		at   int64
		left int
	}{{999, 1}, {1000, 0}} {
		l.do(Command{Kind: KindClientGone, Principal: client("w"), BrokerTime: disconnect.at})
		if got := len(l.m.ListWatches("k", "w", WatchInfo{}, 10)); got != disconnect.left {
			t.Errorf("after a disconnect at %d: %d watches, want %d", disconnect.at, got,
				disconnect.left)
		}
	}
}

// A repeated notification tells what a key has now, to one client, and only if a change would be
// told to it, too.
func TestRepeatedNotificationTellsWhatIsThere(t *testing.T) {
	l := newLeader(t)
	l.do(l.set("line/1", "on"))
	for _, w := range []Command{
		watching("a", "line/1"), watching("b", "line/2"),
		watchingPattern("c", "line/*"), watchingPattern("d", "none/*"),
	} {
		l.want("watch", l.do(w), CodeOK, NoError)
	}
	repeated := func() (all []string) {
		for _, w := range l.m.ListWatches("", "", WatchInfo{}, 10) {
			event, ok := l.m.Repeat(&w)
			if !ok {
				all = append(all, w.ClientID+": nothing")
				continue
			}
			all = append(all, notified(&EntryOutcome{Events: []Event{event}})...)
			if !event.Version.IsZero() || len(event.Receivers) != 1 {
				t.Errorf("%+v", event)
			}
			end := Command{
				Kind: KindWatchEnd, Key: []byte(event.Key),
				NotificationIndex: event.Index, ChangedAt: event.At,
			}
			end.Principal.ClientID = w.ClientID
			l.do(end)
		}
		return all
	}
	want := []string{"c: line/1 SET on", "a: line/1 SET on", "b: line/2 DEL", "d: nothing"}
	if got := repeated(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := l.m.Status().Watches; got != 4 {
		t.Fatalf("%d watches are left that were made just now", got)
	}
	compiled, err := policy.Compile(
		[]policy.Rule{{
			ClientIDs: []string{"a"},
			Resources: []policy.Resource{{Access: policy.ReadWrite, Keys: []string{"*"}}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	l.configure(func(s *Settings) { s.Policy = compiled })
	l.pass(watchGrace)
	want[0] = "c: nothing" // it may not read the key any more
	if got := repeated(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := l.m.Status().Watches; got != 2 { // of c and d
		t.Errorf("%d watches are left without a subscriber", got)
	}
}
