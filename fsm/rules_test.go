package fsm

import (
	"bytes"
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
func TestRepliesCarryVersions(t *testing.T) {
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
		{
			"SET NX not applied", l.do(l.set("k", "w", when(IfAbsent))), CodeNotApplied,
			version(first),
		},
		{
			"SET NEX not applied", l.do(l.set("k", "w", expecting("x"))), CodeNotApplied,
			version(first),
		},
		{"VDEL not applied", l.do(vdel("k", "x")), CodeNotApplied, version(first)},
		{"GET hit", l.get("k"), CodeValue, version(first)},
		{"GET miss", l.get("none"), CodeNull, ""},
		{"DEL miss", l.do(del("none")), CodeMissing, ""},
		{"VDEL miss", l.do(vdel("none", "x")), CodeMissing, ""},
		{"KEYNOTIFY", l.do(watching("w", "k")), CodeOK, ""},
		{
			"error", l.do(l.set("k", "v",
				func(c *Command) { c.Timestamp = stamp(l.wall + 60_001) })),
			CodeError, "",
		},
		{
			"rejected requests leave the clock alone: SET", l.do(l.set("k2", "v")), CodeOK,
			"1696374425000:2:StateStore",
		},
		{"VDEL", l.do(vdel("k", "v")), CodeDeleted, version(first)},
		{"DEL", l.do(del("k2")), CodeDeleted, "1696374425000:2:StateStore"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.got.Code != test.code || version(test.got) != test.want {
				t.Errorf("%s: code %d, version %q; want %d, %q", test.name, test.got.Code,
					version(test.got), test.code, test.want)
			}
		})
	}
}

// A timestamp (__ts) at or below the last version that the store gave is never refused for skew,
// however far the cluster clock is behind.
func TestTimestampOfTheStoreIsNeverSkewed(t *testing.T) {
	l := newLeader(t)
	l.do(l.set("k", "v", func(c *Command) { c.Timestamp = stamp(l.wall + 60_000) }))
	l.do(Command{
		Kind:  KindAdvance,
		Floor: Floor{Clock: hlc.Clock{Wall: startWall + 1_000_000, Counter: 3}},
	})
	l.want("at the store's clock",
		l.do(l.set("k", "v", func(c *Command) {
			c.Timestamp = hlc.Timestamp{Wall: startWall +
				1_000_000, Counter: 3, NodeID: "c"}
		})), CodeOK, NoError)
	l.want("above it", l.do(l.set("k", "v",
		func(c *Command) {
			c.Timestamp = hlc.Timestamp{
				Wall: startWall + 1_000_000, Counter: 30,
				NodeID: "c",
			}
		})), CodeError, ErrorTimestampSkew)
}

// The first failed check, in the order of the protocol, decides the answer. The rows change the
// same command: each one breaks another rule, which is checked before those of the rows above. So
// no row runs alone.
func TestFirstFailedCheckDecides(t *testing.T) {
	l := newLeader(t)
	deny, _ := policy.Compile(
		[]policy.Rule{{
			ClientIDs: []string{"c"},
			Resources: []policy.Resource{{Access: policy.ReadWrite, Keys: []string{"*"}}},
		}})
	l.configure(func(s *Settings) {
		s.Policy, s.Limits.TotalBytes, s.Limits.ValueBytes = deny, 10,
			100
	})
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
		{
			"token skew", func() {
				command.Token = hlc.Timestamp{
					Wall:   l.wall + 60_001,
					NodeID: "x",
				}
			},
			CodeError, ErrorTokenSkew,
		},
		{
			"timestamp skew", func() { command.Timestamp.Wall = l.wall + 60_001 }, CodeError,
			ErrorTimestampSkew,
		},
		{
			"not authorized", func() { command.Principal = client("d") }, CodeError,
			ErrorNotAuthorized,
		},
		{
			"late error", func() { command.LateError = ErrorMissingTimestamp }, CodeError,
			ErrorMissingTimestamp,
		},
		{"size", func() { command.Value = make([]byte, 101) }, CodeError, ErrorQuota},
		{"error", func() { command.Error = ErrorEmptyKey }, CodeError, ErrorEmptyKey},
		{
			"case error", func() { command.CaseError = ErrorUnknownCommand }, CodeError,
			ErrorUnknownCommand,
		},
	} {
		t.Run(step.name, func(t *testing.T) {
			l.in(t)
			step.change()
			l.want(step.name, l.do(command), step.code, step.err)
		})
	}
	l.configure(func(s *Settings) { s.CaseInsensitive = true })
	l.want("case insensitive", l.do(command), CodeError, ErrorEmptyKey)
}

// A condition on the version compares only the version. A key that is gone, or that was set to the
// same value again, does not meet it.
func TestIfVersionLooksAtTheVersionOnly(t *testing.T) {
	l := newLeader(t)
	first := l.do(l.set("k", "v"))
	ifVersion := func(r Result) func(*Command) {
		return func(c *Command) {
			c.Condition, c.ExpectedVersion = IfVersion,
				r.version.Timestamp(hlc.StoreNodeID)
		}
	}
	again := l.do(l.set("k", "v"))
	stale := l.do(l.set("k", "w", ifVersion(first)))
	l.want("an earlier version of the same value", stale, CodeNotApplied, NoError)
	if stale.version != again.version || !stale.hasVersion {
		t.Errorf("the reply has the version %v, want %v", stale.version, again.version)
	}
	l.want("this version", l.do(l.set("k", "w", ifVersion(again))), CodeOK, NoError)
	del := Command{Kind: KindDel, Key: []byte("k")}
	ifVersion(again)(&del)
	l.want("DEL of an earlier version", l.do(del), CodeNotApplied, NoError)
	current := l.m.Read(&Command{Kind: KindGet, Key: []byte("k")})
	ifVersion(current)(&del)
	l.want("DEL of this version", l.do(del), CodeDeleted, NoError)
	gone := l.do(del)
	l.want("DEL of nothing", gone, CodeNotApplied, NoError)
	if gone.hasVersion {
		t.Error("a key that is gone has a version")
	}
	l.want("SET of nothing", l.do(l.set("k", "w", ifVersion(current))), CodeNotApplied, NoError)
}

// A key refuses fencing tokens that are smaller than its last one, until the key is gone. Each row
// builds on the rows before.
func TestFencingTokensOfAKeyOnlyGrow(t *testing.T) {
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
		{
			"fencing comes before the condition", l.set("k", "3", token(w-1), when(IfAbsent)),
			CodeError, ErrorTokenLower,
		},
		{
			"a condition not met", l.set("k", "3", token(w+5), when(IfAbsent)), CodeNotApplied,
			NoError,
		},
		{"does not raise the token", l.set("k", "3", token(w)), CodeOK, NoError},
		{
			"VDEL of another value stores no token", vdel("k", "x", token(w+5)), CodeNotApplied,
			NoError,
		},
		{"newer passes", l.set("k", "4", token(w+1)), CodeOK, NoError},
		{"and raises", l.set("k", "5", token(w)), CodeError, ErrorTokenLower},
		{"far ahead fails", l.set("k", "5", token(w+60_001)), CodeError, ErrorTokenSkew},
		{
			"far ahead fails on DEL of nothing", del("none", token(w+60_001)), CodeError,
			ErrorTokenSkew,
		},
		{"DEL with one passes", del("k", token(w+1)), CodeDeleted, NoError},
		{"and the token is gone", l.set("k", "6"), CodeOK, NoError},
		{"DEL with one on a key without passes", del("k", token(w)), CodeDeleted, NoError},
	} {
		t.Run(step.name, func(t *testing.T) {
			l.in(t)
			l.want(step.name, l.do(step.do), step.code, step.err)
		})
	}
	l.do(l.set("e", "v", token(w), ttl(10)))
	l.pass(11)
	l.want("an expired key has lost its token", l.do(l.set("e", "v")), CodeOK, NoError)
}

func TestKeyIsAbsentFromItsExpiryOn(t *testing.T) {
	l := newLeader(t)
	l.do(watching("w", "k"))
	set := l.do(l.set("k", "v", ttl(100)))
	l.do(l.set("removed", "v", ttl(100)))
	l.do(l.set("removed", "v"))
	if l.pass(100); l.get("k").Code != CodeValue {
		t.Error("expired early")
	}
	outcome := l.pass(1)
	if len(outcome.Events) != 1 || !outcome.Events[0].Deleted ||
		outcome.Events[0].Version.String() != version(set) || outcome.Events[0].Command != -1 {
		t.Errorf("events %+v", outcome.Events)
	}
	l.want("GET", l.get("k"), CodeNull, NoError)
	l.want("DEL", l.do(del("k")), CodeMissing, NoError)
	l.want("SET without PX removed the expiry", l.get("removed"), CodeValue, NoError)
	if events := l.pass(1000).Events; len(events) != 0 {
		t.Errorf("told again: %+v", events)
	}
}

// A key that is due is absent for every command, even before it is removed: one entry removes only
// a bounded number of keys.
func TestDueIsAbsentBeyondTheBoundOfOneEntry(t *testing.T) {
	l := newLeader(t)
	for i := range maxExpiredKeysOrWatches/1000 + 1 {
		commands := make([]Command, 1000)
		for j := range commands {
			commands[j] = l.set(fmt.Sprintf("k%08d", i*1000+j), "v", ttl(50))
		}
		l.apply(commands...)
	}
	last := fmt.Sprintf("k%08d", maxExpiredKeysOrWatches+999)
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

// † A new leader with a clock far ahead, a long election or a stalled disk under the LeaderStart
// expires no lock early: the LeaderStart adds nothing to cluster time, and cluster time reads no
// wall clock.
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

// † An entry of another term, or not the next of its leader, has no effect: n+1 cannot overtake a
// failed n, and a leader that flaps cannot slip in what it proposed before its own LeaderStart.
func TestEntriesOutOfTurnAreSkipped(t *testing.T) {
	l := newLeader(t)
	entry := func(term, number uint64) *Entry {
		return &Entry{
			Term: term, Number: number, Wall: l.wall,
			Commands: []Command{l.set("k", "v")},
		}
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
		t.Run(test.name, func(t *testing.T) {
			before := l.m.Status().Hash
			outcome := l.append(entry(test.term, test.number))
			if outcome.Skipped != test.skipped || (l.m.Status().Hash == before) != test.skipped {
				t.Errorf("%s: skipped %v", test.name, outcome.Skipped)
			}
		})
	}
	l.term = 2 // raft appended it in term 2, but its proposer thought that it was term 1
	if outcome := l.append(entry(1, 3)); !outcome.Skipped {
		t.Error("an entry of term 1 that raft appended in term 2 took effect")
	}
	if outcome := l.append(entry(2, 1)); !outcome.Skipped {
		t.Error("an entry took effect before the LeaderStart of its term")
	}
}

func TestQuotasAreEnforced(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) {
		s.Limits = Limits{
			KeyBytes: 4, ValueBytes: 8, Keys: 2, TotalBytes: 20, Watches: 1,
			WatchBytes: 100, DedupEntries: 10,
		}
	})
	l.want("key", l.do(l.set("12345", "")), CodeError, ErrorQuota)
	l.want("value", l.do(l.set("k", "123456789")), CodeError, ErrorQuota)
	l.want("expected", l.do(l.set("k", "1", expecting("123456789"))), CodeError, ErrorQuota)
	l.want("VDEL's value", l.do(vdel("k", "123456789")), CodeError, ErrorQuota)
	l.want("GET's key", l.get("12345"), CodeError, ErrorQuota)
	l.want("left out", l.do(l.set("k", "", func(c *Command) { c.Oversize = true })), CodeError,
		ErrorQuota)
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
	low := l.append(&Entry{
		Term: l.term, Number: l.number, Wall: l.wall, StorageLow: true,
		Commands: []Command{
			l.set("z", "1"), l.set("a", "87654321"), del("a"),
		},
	})
	l.want("low storage: growing", low.Results[0], CodeError, ErrorQuota)
	l.want("low storage: renewing", low.Results[1], CodeOK, NoError)
	l.want("low storage: deleting", low.Results[2], CodeDeleted, NoError)
}

// A client that has its share of the keys or bytes gets no more, and others do. A key counts for
// who wrote it last: the user, if the broker says who that is. A restored machine counts the same.
func TestClientWithItsShareOfTheStoreGetsNoMore(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.KeysPerClient, s.Limits.BytesPerClient = 2, 20 })
	set := func(client, user, key, value string) Command {
		c := l.set(key, value)
		c.Principal = policy.Principal{ClientID: client, Username: user}
		return c
	}
	l.want("first", l.do(set("greedy", "", "a", "1")), CodeOK, NoError)
	l.want("second", l.do(set("greedy", "", "b", "1")), CodeOK, NoError)
	l.want("third key", l.do(set("greedy", "", "c", "1")), CodeError, ErrorQuota)
	l.want("another's key", l.do(set("modest", "", "c", "1")), CodeOK, NoError)
	l.want("taking it over", l.do(set("greedy", "", "c", "1")), CodeError, ErrorQuota)
	l.want("too many bytes", l.do(set("greedy", "", "a", strings.Repeat("x", 18))),
		CodeError, ErrorQuota)
	l.want("as many as there may be", l.do(set("greedy", "", "a", strings.Repeat("x", 17))),
		CodeOK, NoError)
	l.want("a user of that name", l.do(set("x", "greedy", "d", "1")), CodeOK, NoError)
	l.want("and all ids of the user", l.do(set("y", "greedy", "e", "1")), CodeOK, NoError)
	l.want("count together", l.do(set("z", "greedy", "f", "1")), CodeError, ErrorQuota)
	l.want("handed over", l.do(set("modest", "", "a", "1")), CodeOK, NoError)
	l.want("room again", l.do(set("greedy", "", "f", "1")), CodeOK, NoError)
	transaction := func(operations ...Command) Command {
		c := Command{
			Kind: KindTxn, Principal: policy.Principal{ClientID: "greedy"},
			Operations: operations, Timestamp: stamp(l.wall),
		}
		c.inherit()
		return c
	}
	l.want("a transaction that trades", l.do(transaction(del("f"), l.set("g", "1"))),
		CodeReplies, NoError)
	l.want("one that adds", l.do(transaction(del("none"), l.set("h", "1"))), CodeError, ErrorQuota)
	want := []OwnerInfo{
		{Owner{"greedy", false}, 2, 4},
		{Owner{"greedy", true}, 2, 4},
		{Owner{"modest", false}, 2, 4},
	}
	restored := New()
	if err := restored.Restore(bytes.NewReader(l.snapshot())); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*Machine{"machine": l.m, "restored": restored} {
		if found := m.ListOwners(10); !slices.Equal(found, want) {
			t.Errorf("%s: %v, want %v", name, found, want)
		}
	}
	if first := l.m.ListOwners(1); len(first) != 1 || first[0] != want[0] {
		t.Errorf("the largest is %v", first)
	}
}

// † The name of an owner is bounded, because no quota counts it: a client that gives each key a new
// id of 60 KiB must not fill the memory of all members.
func TestNamesOfOwnersAreBounded(t *testing.T) {
	l := newLeader(t)
	for i, key := range []string{"a", "b"} {
		c := l.set(key, "1")
		c.Principal = policy.Principal{ClientID: fmt.Sprint(strings.Repeat("x", 60_000), i)}
		l.want(key, l.do(c), CodeOK, NoError)
	}
	if found := l.m.ListOwners(10); len(found) != 1 || len(found[0].Name) != maxOwnerName ||
		found[0].Keys != 2 {
		t.Errorf("%d owners", len(found))
	}
	if size := len(l.snapshot()); size > 10_000 {
		t.Errorf("a snapshot of %d bytes", size)
	}
}

// A client that has its share of the watches gets no more. A renewal is not one more, and an end
// makes room. A restored machine has the same count.
func TestClientWithItsShareOfWatchesGetsNoMore(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.WatchesPerClient = 2 })
	watch := func(client, key string) Result {
		return l.do(Command{
			Kind: KindKeyNotify, Key: []byte(key),
			Principal: policy.Principal{ClientID: client},
		})
	}
	l.want("first", watch("greedy", "a"), CodeOK, NoError)
	l.want("second", watch("greedy", "b"), CodeOK, NoError)
	l.want("third", watch("greedy", "c"), CodeError, ErrorQuota)
	l.want("renewed", watch("greedy", "b"), CodeOK, NoError)
	l.want("another client", watch("modest", "c"), CodeOK, NoError)
	restored := New()
	if err := restored.Restore(bytes.NewReader(l.snapshot())); err != nil {
		t.Fatal(err)
	}
	if share := restored.watches.perClient["greedy"]; share != 2 {
		t.Errorf("%d watches after a snapshot", share)
	}
	l.want("ended", l.do(Command{
		Kind: KindKeyNotifyStop, Key: []byte("a"),
		Principal: policy.Principal{ClientID: "greedy"},
	}), CodeOK, NoError)
	l.want("room again", watch("greedy", "c"), CodeOK, NoError)
}

func TestDialectFollowsSettingAndRequest(t *testing.T) {
	l := newLeader(t)
	for name, rule := range map[string]struct {
		rule            DialectRule
		documented, sdk Dialect
	}{
		"auto":       {DialectRuleAuto, Documented, SDK},
		"documented": {DialectRuleDocumented, Documented, Documented},
		"sdk":        {DialectRuleSDK, SDK, SDK},
	} {
		t.Run(name, func(t *testing.T) {
			l.in(t)
			l.configure(func(s *Settings) { s.Dialect = rule.rule })
			plain := l.do(l.set("k", "v"))
			library := l.do(l.set("k", "v", func(c *Command) { c.Dialect = SDK }))
			if plain.Dialect != rule.documented || library.Dialect != rule.sdk {
				t.Errorf("%d, %d", plain.Dialect, library.Dialect)
			}
		})
	}
}

func TestConfigureKeepsThePolicyWhenAsked(t *testing.T) {
	l := newLeader(t)
	deny, _ := policy.Compile(nil)
	l.configure(func(s *Settings) { s.Policy = deny })
	settings := DefaultSettings()
	l.do(Command{Kind: KindConfigure, Settings: &settings, KeepPolicy: true})
	l.want("kept", l.get("k"), CodeError, ErrorNotAuthorized)
	l.do(Command{Kind: KindConfigure, Settings: &settings})
	l.want("cleared", l.get("k"), CodeNull, NoError)
}

func TestHostileNumbersDoNotOverflow(t *testing.T) {
	l := newLeader(t)
	l.want("the longest PX", l.do(l.set("k", "v", ttl(1<<53))), CodeOK, NoError)
	l.want("it is there", l.get("k"), CodeValue, NoError)
	l.do(Command{Kind: KindAdvance, Floor: Floor{Now: math.MaxInt64 - 10}})
	l.want("PX at the end of time", l.do(l.set("k", "v", ttl(1<<53))), CodeOK, NoError)
	l.want("it is there at the end of time", l.get("k"), CodeValue, NoError)
	l.want("a timestamp at the end of time",
		l.do(l.set("k", "v", func(c *Command) { c.Timestamp.Wall = math.MaxInt64 })), CodeError,
		ErrorTimestampSkew)
	l.want("a counter at its end",
		l.do(l.set("k", "v", func(c *Command) {
			c.Timestamp.Wall, c.Timestamp.Counter = l.wall+1,
				math.MaxUint64
		})), CodeOK, NoError)
	if v, _ := l.m.Read(&Command{Kind: KindGet, Key: []byte("k")}).version,
		0; v.Counter >= hlc.CounterLimit {
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
	unknown := AppendEntry(nil,
		&Entry{Term: 1, Number: 1, Commands: []Command{{Kind: lastKind + 1}}})
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

// The quota holds for a SET whose condition on the version is met, and comes after that condition.
func TestQuotaComesAfterTheConditionOnTheVersion(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.TotalBytes = 10 })
	set := l.do(l.set("k", "v"))
	version, _ := set.Version()
	growing := func(expected hlc.Timestamp) Command {
		return l.set("k", strings.Repeat("x", 20),
			func(c *Command) { c.Condition, c.ExpectedVersion = IfVersion, expected })
	}
	l.want("met", l.do(growing(version)), CodeError, ErrorQuota)
	l.want("not met", l.do(growing(hlc.Timestamp{Wall: 1, NodeID: "StateStore"})), CodeNotApplied,
		NoError)
}

// † The horizon moves with the ages that entries carry, never back and never above now. A
// LeaderStart leaves it. A restore that moves cluster time moves it as it moves the outcomes: no
// time passes in that jump.
func TestHorizonNeverGoesBack(t *testing.T) {
	l := newLeader(t)
	carry := func(elapsed, age int64) int64 {
		l.number++
		l.append(&Entry{
			Term: l.term, Number: l.number, Elapsed: elapsed, Wall: l.wall,
			HorizonAge: age,
		})
		return l.m.Status().Horizon
	}
	for _, step := range []struct{ elapsed, age, want int64 }{
		{1000, 300, 700},
		{1100, 0, 700},
		{1200, 900, 700},
		{1300, 1, 1299},
	} {
		if got := carry(step.elapsed, step.age); got != step.want {
			t.Errorf("at %d with an age of %d: the horizon is %d, want %d", step.elapsed, step.age,
				got, step.want)
		}
	}
	l.start()
	if got := l.m.Status().Horizon; got != 1299 {
		t.Errorf("after a LeaderStart: %d", got)
	}
	ahead := newLeader(t)
	ahead.number++
	ahead.append(&Entry{Term: ahead.term, Number: ahead.number, Elapsed: 5000, Wall: ahead.wall})
	before := l.m.Status()
	data := ahead.snapshot()
	l.apply(Command{Kind: KindStage, Nonce: 1, Value: data})
	l.apply(Command{Kind: KindRestore, Nonce: 1, Offset: uint64(len(data))})
	after := l.m.Status()
	if after.Now <= before.Now || after.Now-after.Horizon != before.Now-before.Horizon {
		t.Errorf("a restore moved now from %d to %d, and the horizon from %d to %d", before.Now,
			after.Now, before.Horizon, after.Horizon)
	}
}
