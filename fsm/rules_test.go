package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"holdfast/hlc"
	"holdfast/internal/policy"
)

func version(r Result) string {
	v, ok := r.Version()
	if !ok {
		return ""
	}
	return v.String()
}

// The worked example of the protocol page, and the versions that each reply carries.
func TestVersions(t *testing.T) {
	l := newLeader(t)
	first := l.do(l.set("k", "v"))
	if got := version(first); got != "1696374425000:1:StateStore" {
		t.Fatalf("got %s", got)
	}
	for _, test := range []struct {
		name string
		got  Result
		code Code
		want string
	}{
		{"SET NX not applied", l.do(l.set("k", "w", when(IfAbsent))), CodeNotApplied, version(first)},
		{"SET NEX not applied", l.do(l.set("k", "w", expecting("x"))), CodeNotApplied, version(first)},
		{"VDEL not applied", l.do(vdel("k", "x")), CodeNotApplied, version(first)},
		{"GET hit", l.get("k"), CodeValue, version(first)},
		{"GET miss", l.get("none"), CodeNull, ""},
		{"DEL miss", l.do(del("none")), CodeMissing, ""},
		{"VDEL miss", l.do(vdel("none", "x")), CodeMissing, ""},
		{"KEYNOTIFY", l.do(watching("w", "k")), CodeOK, ""},
		{"error", l.do(l.set("k", "v", func(c *Command) { c.Timestamp = stamp(l.wall + 60_001) })), CodeError, ""},
		{"rejected requests leave the clock alone: SET", l.do(l.set("k2", "v")), CodeOK, "1696374425000:2:StateStore"},
		{"VDEL", l.do(vdel("k", "v")), CodeDeleted, version(first)},
		{"DEL", l.do(del("k2")), CodeDeleted, "1696374425000:2:StateStore"},
	} {
		if test.got.Code != test.code || version(test.got) != test.want {
			t.Errorf("%s: code %d, version %q; want %d, %q", test.name, test.got.Code, version(test.got), test.code, test.want)
		}
	}
}

// A __ts at or below what the store itself gave is never refused for skew, however far the cluster clock is behind.
func TestTimestampOfTheStoreIsNeverSkewed(t *testing.T) {
	l := newLeader(t)
	l.do(l.set("k", "v", func(c *Command) { c.Timestamp = stamp(l.wall + 60_000) }))
	l.do(Command{Kind: KindAdvance, Floor: Floor{Clock: hlc.Clock{Wall: startWall + 1_000_000, Counter: 3}}})
	l.want("at the store's clock", l.do(l.set("k", "v", func(c *Command) { c.Timestamp = hlc.Timestamp{Wall: startWall + 1_000_000, Counter: 3, NodeID: "c"} })), CodeOK, NoError)
	l.want("above it", l.do(l.set("k", "v", func(c *Command) { c.Timestamp = hlc.Timestamp{Wall: startWall + 1_000_000, Counter: 30, NodeID: "c"} })), CodeError, ErrorTimestampSkew)
}

// The checks answer in the order of the protocol. Each row breaks one more rule than the row before, an earlier one.
func TestOrderOfChecks(t *testing.T) {
	l := newLeader(t)
	deny, _ := policy.Compile([]policy.Rule{{ClientIDs: []string{"c"}, Resources: []policy.Resource{{Access: policy.ReadWrite, Keys: []string{"*"}}}}})
	l.configure(func(s *Settings) { s.Policy, s.Limits.TotalBytes, s.Limits.ValueBytes = deny, 10, 100 })
	l.want("setup", l.do(l.set("k", "v", token(l.wall))), CodeOK, NoError)
	command := l.set("k", strings.Repeat("x", 20), token(l.wall))
	for _, step := range []struct {
		name   string
		change func()
		code   Code
		err    ErrorCode
	}{
		{"quota", func() {}, CodeError, ErrorQuota},
		{"condition", func() { command.Condition = IfAbsent }, CodeNotApplied, NoError},
		{"lower token", func() { command.Token.Wall-- }, CodeError, ErrorTokenLower},
		{"no token", func() { command.Token = hlc.Timestamp{} }, CodeError, ErrorTokenRequired},
		{"token skew", func() { command.Token = hlc.Timestamp{Wall: l.wall + 60_001, NodeID: "x"} }, CodeError, ErrorTokenSkew},
		{"timestamp skew", func() { command.Timestamp.Wall = l.wall + 60_001 }, CodeError, ErrorTimestampSkew},
		{"not authorized", func() { command.Principal = client("d") }, CodeError, ErrorNotAuthorized},
		{"late error", func() { command.LateError = ErrorMissingTimestamp }, CodeError, ErrorMissingTimestamp},
		{"size", func() { command.Value = make([]byte, 101) }, CodeError, ErrorQuota},
		{"error", func() { command.Error = ErrorEmptyKey }, CodeError, ErrorEmptyKey},
		{"case error", func() { command.CaseError = ErrorUnknownCommand }, CodeError, ErrorUnknownCommand},
	} {
		step.change()
		l.want(step.name, l.do(command), step.code, step.err)
	}
	l.configure(func(s *Settings) { s.CaseInsensitive = true })
	l.want("case insensitive", l.do(command), CodeError, ErrorEmptyKey)
}

func TestFencing(t *testing.T) {
	l := newLeader(t)
	w := l.wall
	for _, step := range []struct {
		name string
		do   Command
		code Code
		err  ErrorCode
	}{
		{"a key without token takes one", l.set("k", "1", token(w)), CodeOK, NoError},
		{"an equal one passes", l.set("k", "2", token(w)), CodeOK, NoError},
		{"none fails", l.set("k", "3"), CodeError, ErrorTokenRequired},
		{"DEL without fails", del("k"), CodeError, ErrorTokenRequired},
		{"VDEL without fails", vdel("k", "2"), CodeError, ErrorTokenRequired},
		{"older fails", l.set("k", "3", token(w-1)), CodeError, ErrorTokenLower},
		{"DEL with an older fails", del("k", token(w-1)), CodeError, ErrorTokenLower},
		{"fencing comes before the condition", l.set("k", "3", token(w-1), when(IfAbsent)), CodeError, ErrorTokenLower},
		{"a condition not met", l.set("k", "3", token(w+5), when(IfAbsent)), CodeNotApplied, NoError},
		{"does not raise the token", l.set("k", "3", token(w)), CodeOK, NoError},
		{"VDEL of another value stores no token", vdel("k", "x", token(w+5)), CodeNotApplied, NoError},
		{"newer passes", l.set("k", "4", token(w+1)), CodeOK, NoError},
		{"and raises", l.set("k", "5", token(w)), CodeError, ErrorTokenLower},
		{"far ahead fails", l.set("k", "5", token(w+60_001)), CodeError, ErrorTokenSkew},
		{"far ahead fails on DEL of nothing", del("none", token(w+60_001)), CodeError, ErrorTokenSkew},
		{"DEL with one passes", del("k", token(w+1)), CodeDeleted, NoError},
		{"and the token is gone", l.set("k", "6"), CodeOK, NoError},
		{"DEL with one on a key without passes", del("k", token(w)), CodeDeleted, NoError},
	} {
		l.want(step.name, l.do(step.do), step.code, step.err)
	}
	l.do(l.set("e", "v", token(w), ttl(10)))
	l.pass(11)
	l.want("an expired key has lost its token", l.do(l.set("e", "v")), CodeOK, NoError)
}

func TestExpiry(t *testing.T) {
	l := newLeader(t)
	l.do(watching("w", "k"))
	set := l.do(l.set("k", "v", ttl(100)))
	l.do(l.set("removed", "v", ttl(100)))
	l.do(l.set("removed", "v"))
	if l.pass(100); l.get("k").Code != CodeValue {
		t.Error("expired early")
	}
	outcome := l.pass(1)
	if len(outcome.Events) != 1 || !outcome.Events[0].Deleted || outcome.Events[0].Version.String() != version(set) || outcome.Events[0].Command != -1 {
		t.Errorf("events %+v", outcome.Events)
	}
	l.want("GET", l.get("k"), CodeNull, NoError)
	l.want("DEL", l.do(del("k")), CodeMissing, NoError)
	l.want("SET without PX removed the expiry", l.get("removed"), CodeValue, NoError)
	if events := l.pass(1000).Events; len(events) != 0 {
		t.Errorf("told again: %+v", events)
	}
}

// What is due is absent for every command, even before its turn to be removed: an entry removes only so many.
func TestDueIsAbsentBeyondTheBoundOfOneEntry(t *testing.T) {
	l := newLeader(t)
	for i := range maxExpired/1000 + 1 {
		commands := make([]Command, 1000)
		for j := range commands {
			commands[j] = l.set(fmt.Sprintf("k%08d", i*1000+j), "v", ttl(50))
		}
		l.apply(commands...)
	}
	last := fmt.Sprintf("k%08d", maxExpired+999)
	l.do(watching("w", last))
	l.elapsed += 51
	outcome := l.apply(l.set(last, "new", when(IfAbsent)))
	l.want("NX on a key that is due", outcome.Results[0], CodeOK, NoError)
	if len(outcome.Events) != 2 || !outcome.Events[0].Deleted || outcome.Events[1].Value != "new" {
		t.Errorf("events %+v", outcome.Events)
	}
	if keys := l.m.Status().Keys; keys != 1000 {
		t.Errorf("%d keys left, want those beyond the bound", keys)
	}
	l.want("GET of a key that is due", l.get("k00010500"), CodeNull, NoError)
	if l.apply(); l.m.Status().Keys != 1 {
		t.Errorf("%d keys left", l.m.Status().Keys)
	}
}

// † A new leader with a clock far ahead, a long election or a stalled disk under the LeaderStart expires no lock early: the
// LeaderStart adds nothing to cluster time, and cluster time reads no wall clock.
func TestClusterTimeReadsNoWallClock(t *testing.T) {
	l := newLeader(t)
	l.do(l.set("lock", "me", ttl(10_000)))
	l.elapsed += 9_000
	l.apply()
	l.wall += 120_000
	l.start() // elapsed begins at 0 again
	l.apply()
	l.want("after a leader change with a fast clock", l.get("lock"), CodeValue, NoError)
	l.elapsed = 1_000
	l.apply()
	l.want("1 ms before its time", l.get("lock"), CodeValue, NoError)
	l.elapsed = 500
	l.apply()
	if now := l.m.Status().Now; now != 10_000 {
		t.Errorf("cluster time went back to %d", now)
	}
	l.elapsed = 1_001
	l.apply()
	l.want("at its time", l.get("lock"), CodeNull, NoError)
}

// † An entry of another term, or not the next of its leader, has no effect: n+1 cannot overtake a failed n, and a leader that
// flaps cannot slip in what it proposed before its own LeaderStart.
func TestEntriesOutOfTurnAreSkipped(t *testing.T) {
	l := newLeader(t)
	entry := func(term, number uint64) *Entry {
		return &Entry{Term: term, Number: number, Wall: l.wall, Commands: []Command{l.set("k", "v")}}
	}
	for _, test := range []struct {
		name         string
		term, number uint64
		skipped      bool
	}{
		{"number 2 before 1", 1, 2, true},
		{"number 0", 1, 0, true},
		{"of a later term", 2, 1, true},
		{"of no term", 0, 1, true},
		{"the next", 1, 1, false},
		{"the same again", 1, 1, true},
		{"3 before 2", 1, 3, true},
		{"2", 1, 2, false},
	} {
		before := l.m.Status().Hash
		outcome := l.append(entry(test.term, test.number))
		if outcome.Skipped != test.skipped || (l.m.Status().Hash == before) != test.skipped {
			t.Errorf("%s: skipped %v", test.name, outcome.Skipped)
		}
	}
	l.term = 2 // raft appended it in term 2, but its proposer thought that it was term 1
	if outcome := l.append(entry(1, 3)); !outcome.Skipped {
		t.Error("an entry of term 1 that raft appended in term 2 took effect")
	}
	if outcome := l.append(entry(2, 1)); !outcome.Skipped {
		t.Error("an entry took effect before the LeaderStart of its term")
	}
}

func TestCopiesTakeEffectOnce(t *testing.T) {
	l := newLeader(t)
	set := l.set("k", "1", id(l.newID()))
	first := l.do(set)
	l.do(l.set("k", "2"))
	again := l.do(set)
	if !again.Repeat || again.Code != CodeOK || version(again) != version(first) || l.get("k").Value != "2" {
		t.Errorf("copy: %+v, value %q", again, l.get("k").Value)
	}
	failing := l.set("f", "1", id(l.newID()), token(l.wall+60_001))
	l.want("error", l.do(failing), CodeError, ErrorTokenSkew)
	l.pass(10)
	l.want("the copy gets the same error although it would pass now", l.do(failing), CodeError, ErrorTokenSkew)
	withoutID := l.set("n", "1")
	if a, b := l.do(withoutID), l.do(withoutID); version(a) == version(b) {
		t.Error("a request without id takes effect as often as it arrives")
	}
	l.pass(180_000 + 1<<expiryShift)
	if again := l.do(set); again.Repeat {
		t.Error("remembered beyond its lifetime")
	}
	if remembered := l.m.Status().Remembered; remembered != 1 {
		t.Errorf("%d outcomes remembered", remembered)
	}
}

// † An outcome leaves the table by its lifetime only. When the table is full, further writes are refused, the refusal is an
// outcome like others, and no client may fill more than half.
func TestDedupIsNotEvictedByCrowding(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.DedupEntries = 20 })
	early := l.set("k", "early", id(l.newID()))
	l.do(early)
	results := map[Code]int{}
	var refused Command
	for range 20 {
		c := l.set("k", "flood", id(l.newID()))
		r := l.do(c)
		if r.Code == CodeError && r.Error == ErrorOverloaded {
			refused = c
		}
		results[r.Code]++
	}
	// Half of 20 for one client, one refusal of them; nothing for the rest.
	if results[CodeOK] != 8 || results[CodeError] != 1 || results[CodeDropped] != 11 {
		t.Errorf("results %v", results)
	}
	if r := l.do(early); !r.Repeat {
		t.Error("an early outcome was crowded out")
	}
	l.want("another client still has room", l.do(l.set("k", "other", id(l.newID()), from("other"))), CodeOK, NoError)
	l.want("a refusal stays a refusal", l.do(refused), CodeError, ErrorOverloaded)
	l.pass(200_000)
	l.want("after the lifetime there is room again", l.do(l.set("k", "later", id(l.newID()))), CodeOK, NoError)
}

// Which outcomes are forgotten when there are too many for one entry does not depend on whether a replica has come by them one
// by one or from a snapshot.
func TestForgettingDoesNotDependOnOrder(t *testing.T) {
	live := newDedup()
	for i := range uint32(maxForgotten + 1000) {
		var m memory
		binary.LittleEndian.PutUint32(m.id[:], i*2654435761) // not in the order of the ids
		live.put(m)
	}
	restored := newDedup()
	live.byID.Scan(func(m memory) bool {
		restored.put(m)
		return true
	})
	live.forget(0)
	restored.forget(0)
	if live.byID.Len() != 1000 || !slices.Equal(live.byID.Items(), restored.byID.Items()) {
		t.Errorf("%d and %d outcomes are left, and not the same", live.byID.Len(), restored.byID.Len())
	}
}

// Many watchers of a key cost a bounded list, whatever one entry does.
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
	if len(outcome.Events) != 5 || outcome.Dropped != 4500 || outcome.Events[4].Value != "49" || len(l.m.Unpublished()) != 5 {
		t.Errorf("%d events, %d dropped", len(outcome.Events), outcome.Dropped)
	}
	l.configure(func(s *Settings) { s.Limits.WatchBytes = l.m.watches.bytes + 5 })
	l.want("watches are bounded by bytes, too", l.do(watching("another", "k")), CodeError, ErrorQuota)
}

func TestReject(t *testing.T) {
	l := newLeader(t)
	done, refused := l.set("k", "1", id(l.newID())), l.set("k", "2", id(l.newID()))
	l.do(done)
	l.do(Command{Kind: KindReject, Rejected: []Rejection{
		{ID: done.ID, ClientID: "c", Lifetime: 1000},
		{ID: refused.ID, ClientID: "c", Lifetime: 1000, Dialect: SDK},
	}})
	l.want("a request that is done stays done", l.do(done), CodeOK, NoError)
	l.want("a rejected one has no effect", l.do(refused), CodeError, ErrorOverloaded)
	if result, index, ok := l.m.Remembered(refused.ID); !ok || index != 3 || result.Dialect != SDK {
		t.Errorf("%+v, %d, %v", result, index, ok)
	}
	if l.get("k").Value != "1" {
		t.Error("a rejected SET took effect")
	}
}

func TestWatches(t *testing.T) {
	l := newLeader(t)
	sdk := watching("b", "k")
	sdk.Dialect = SDK
	l.do(watching("a", "k"))
	l.do(watching("a", "k"))
	l.do(sdk)
	outcome := l.apply(l.set("k", "1", from("a")), del("none"), vdel("k", "x"), l.set("k", "2", when(IfAbsent)), del("k"), del("k"))
	var got []string
	for _, e := range outcome.Events {
		for _, r := range e.Receivers {
			got = append(got, fmt.Sprintf("%d %s %d %v %q", e.Command, r.ClientID, r.Dialect, e.Deleted, e.Value))
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
	if events := l.apply(l.set("k", "3")).Events; len(events) != 1 || len(events[0].Receivers) != 1 {
		t.Errorf("after STOP: %+v", events)
	}
	l.want("unknown client", l.do(watching("", "k")), CodeError, ErrorNotAuthorized)
	l.want("topic too long", l.do(watching("c", strings.Repeat("k", 32_730))), CodeError, ErrorQuota)
	l.want("topic just not too long", l.do(watching("c", strings.Repeat("k", 32_720))), CodeOK, NoError)
	l.configure(func(s *Settings) { s.Limits.Watches = 2 })
	l.want("one more", l.do(watching("d", "k")), CodeError, ErrorQuota)
	l.want("a renewal is not one more", l.do(watching("b", "k")), CodeOK, NoError)
}

// A late disconnect event must never end a watch that was made after the client came back; in doubt a watch stays.
func TestClientGone(t *testing.T) {
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

// A notification without a subscriber ends a watch only when the watch is older than that change and at least 5 s old.
func TestWatchEnd(t *testing.T) {
	l := newLeader(t)
	l.do(watching("a", "k"))
	changed := l.apply(l.set("k", "1")).Index
	end := Command{Kind: KindWatchEnd, Principal: client("a"), Key: []byte("k"), NotificationIndex: changed, PublishedAt: 4_999}
	if l.do(end); l.m.Status().Watches != 1 {
		t.Fatal("ended within its grace")
	}
	l.pass(6_000)
	l.do(watching("a", "k"))
	end.PublishedAt = 60_000
	if l.do(end); l.m.Status().Watches != 1 {
		t.Fatal("a watch that was renewed after the change ended")
	}
	end.NotificationIndex = l.apply(l.set("k", "2")).Index
	if l.do(end); l.m.Status().Watches != 0 {
		t.Fatal("did not end")
	}
}

func TestWatchTTL(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.WatchTTL = 1000 })
	l.do(watching("a", "k"))
	l.pass(600)
	l.do(watching("b", "k"))
	l.pass(400)
	if receivers := l.apply(l.set("k", "1")).Events[0].Receivers; len(receivers) != 1 || receivers[0].ClientID != "b" {
		t.Errorf("%v", receivers)
	}
}

func TestQuota(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) {
		s.Limits = Limits{KeyBytes: 4, ValueBytes: 8, Keys: 2, TotalBytes: 20, Watches: 1, WatchBytes: 100, DedupEntries: 10}
	})
	l.want("key", l.do(l.set("12345", "")), CodeError, ErrorQuota)
	l.want("value", l.do(l.set("k", "123456789")), CodeError, ErrorQuota)
	l.want("expected", l.do(l.set("k", "1", expecting("123456789"))), CodeError, ErrorQuota)
	l.want("VDEL's value", l.do(vdel("k", "123456789")), CodeError, ErrorQuota)
	l.want("GET's key", l.get("12345"), CodeError, ErrorQuota)
	l.want("left out", l.do(l.set("k", "", func(c *Command) { c.Oversize = true })), CodeError, ErrorQuota)
	l.want("9 bytes", l.do(l.set("a", "12345678")), CodeOK, NoError)
	l.want("18 bytes", l.do(l.set("b", "12345678")), CodeOK, NoError)
	l.want("a third key", l.do(l.set("c", "")), CodeError, ErrorQuota)
	l.configure(func(s *Settings) { s.Limits.Keys = 0 })
	l.want("21 bytes", l.do(l.set("c", "12")), CodeError, ErrorQuota)
	l.want("20 bytes", l.do(l.set("c", "1")), CodeOK, NoError)
	l.want("renewal in a full store", l.do(l.set("a", "87654321")), CodeOK, NoError)
	l.want("shrinking", l.do(l.set("a", "1")), CodeOK, NoError)
	l.want("growing to the limit", l.do(l.set("a", "12345678")), CodeOK, NoError)
	l.want("growing beyond", l.do(l.set("c", "123")), CodeError, ErrorQuota)
	l.want("deleting", l.do(del("b")), CodeDeleted, NoError)
	l.number++
	low := l.append(&Entry{Term: l.term, Number: l.number, Wall: l.wall, StorageLow: true, Commands: []Command{
		l.set("z", "1"), l.set("a", "87654321"), del("a"),
	}})
	l.want("low storage: growing", low.Results[0], CodeError, ErrorQuota)
	l.want("low storage: renewing", low.Results[1], CodeOK, NoError)
	l.want("low storage: deleting", low.Results[2], CodeDeleted, NoError)
}

func TestUnpublished(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.UnpublishedNotifications = 4 })
	l.do(watching("a", "k"))
	l.do(watching("b", "k"))
	first := l.apply(l.set("k", "1"))
	l.apply(l.set("k", "2"))
	if n := len(l.m.Unpublished()); n != 2 {
		t.Fatalf("%d", n)
	}
	if dropped := l.apply(l.set("k", "3")).Dropped; dropped != 2 || l.m.Unpublished()[0].Value != "2" {
		t.Errorf("dropped %d, first %q", dropped, l.m.Unpublished()[0].Value)
	}
	l.number++
	l.append(&Entry{Term: l.term, Number: l.number, Published: first.Index + 1})
	if events := l.m.Unpublished(); len(events) != 1 || events[0].Value != "3" {
		t.Errorf("%+v", events)
	}
}

func TestDialects(t *testing.T) {
	l := newLeader(t)
	for _, rule := range []struct {
		rule            DialectRule
		documented, sdk Dialect
	}{{DialectAuto, Documented, SDK}, {DialectDocumented, Documented, Documented}, {DialectSDK, SDK, SDK}} {
		l.configure(func(s *Settings) { s.Dialect = rule.rule })
		plain := l.do(l.set("k", "v"))
		library := l.do(l.set("k", "v", func(c *Command) { c.Dialect = SDK }))
		if plain.Dialect != rule.documented || library.Dialect != rule.sdk {
			t.Errorf("rule %d: %d, %d", rule.rule, plain.Dialect, library.Dialect)
		}
	}
}

func TestConfigureKeepsPolicyWhenToldTo(t *testing.T) {
	l := newLeader(t)
	deny, _ := policy.Compile(nil)
	l.configure(func(s *Settings) { s.Policy = deny })
	settings := DefaultSettings()
	l.do(Command{Kind: KindConfigure, Settings: &settings, KeepPolicy: true})
	l.want("kept", l.get("k"), CodeError, ErrorNotAuthorized)
	l.do(Command{Kind: KindConfigure, Settings: &settings})
	l.want("cleared", l.get("k"), CodeNull, NoError)
}

func TestHostileNumbers(t *testing.T) {
	l := newLeader(t)
	l.want("the longest PX", l.do(l.set("k", "v", ttl(1<<53))), CodeOK, NoError)
	l.do(Command{Kind: KindAdvance, Floor: Floor{Now: math.MaxInt64 - 10}})
	l.want("PX at the end of time", l.do(l.set("k", "v", ttl(1<<53))), CodeOK, NoError)
	l.want("a timestamp at the end of time", l.do(l.set("k", "v", func(c *Command) { c.Timestamp.Wall = math.MaxInt64 })), CodeError, ErrorTimestampSkew)
	l.want("a counter at its end", l.do(l.set("k", "v", func(c *Command) { c.Timestamp.Wall, c.Timestamp.Counter = l.wall+1, math.MaxUint64 })), CodeOK, NoError)
	if v, _ := l.m.Read(&Command{Kind: KindGet, Key: []byte("k")}).version, 0; v.Counter >= hlc.CounterLimit {
		t.Errorf("counter %d", v.Counter)
	}
}

func TestApplyStopsAtWhatItCannotRead(t *testing.T) {
	l := newLeader(t)
	data := AppendEntry(nil, &Entry{Term: 1, Number: 1, Commands: []Command{l.set("k", "v")}})
	before := l.m.Status()
	for i := range data {
		flipped := append([]byte(nil), data...)
		flipped[i] ^= 1 << (i % 8)
		if _, err := l.m.Apply(9, 1, flipped); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
	}
	unknown := AppendEntry(nil, &Entry{Term: 1, Number: 1, Commands: []Command{{Kind: KindAdvance + 1}}})
	if _, err := l.m.Apply(9, 1, unknown); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown kind: %v", err)
	}
	mixed := AppendEntry(nil, &Entry{Commands: []Command{{Kind: KindLeaderStart}, l.set("k", "v")}})
	if _, err := l.m.Apply(9, 1, mixed); !errors.Is(err, ErrDamaged) {
		t.Errorf("LeaderStart among others: %v", err)
	}
	if _, err := l.m.Apply(1, 1, data); !errors.Is(err, ErrDamaged) {
		t.Errorf("an index again: %v", err)
	}
	if l.m.Status() != before {
		t.Error("something was applied")
	}
}
