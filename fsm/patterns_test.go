package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"holdfast/internal/glob"
	"holdfast/internal/policy"
)

// notified returns who was notified of what, in order.
func notified(outcome *EntryOutcome) (all []string) {
	for _, e := range outcome.Events {
		for _, r := range e.Receivers {
			what := "SET " + e.Value
			if e.Deleted {
				what = "DEL"
			}
			all = append(all, fmt.Sprintf("%s: %s %s", r.ClientID, e.Key, what))
		}
	}
	return all
}

func (l *testLeader) wantNotified(name string, outcome *EntryOutcome, want ...string) {
	l.t.Helper()
	if got := notified(outcome); !slices.Equal(got, want) {
		l.t.Errorf("%s: notified %q, want %q", name, got, want)
	}
}

func TestPatternWatchNotifiesOfEachMatchingKey(t *testing.T) {
	l := newLeader(t)
	l.want("watch", l.do(watchingPattern("a", "line/*/temp")), CodeOK, NoError)
	l.want("another client", l.do(watchingPattern("b", "*")), CodeOK, NoError)
	l.wantNotified("changes", l.apply(
		l.set("line/1/temp", "20"), l.set("line/1/speed", "7"),
		l.set("line/2/temp", "21", ttl(100)), del("line/1/temp"), l.set("\xff", "no text"),
	), "a: line/1/temp SET 20", "b: line/1/temp SET 20", "b: line/1/speed SET 7",
		"a: line/2/temp SET 21", "b: line/2/temp SET 21",
		"a: line/1/temp DEL", "b: line/1/temp DEL")
	l.wantNotified("expiry", l.pass(101), "a: line/2/temp DEL", "b: line/2/temp DEL")

	stop := watchingPattern("b", "*")
	stop.Kind = KindKeyNotifyStop
	key := stop
	key.Pattern = false
	l.want("STOP of the key of this name", l.do(key), CodeMissing, NoError)
	l.want("STOP", l.do(stop), CodeOK, NoError)
	l.want("STOP again", l.do(stop), CodeMissing, NoError)
	l.wantNotified("after STOP", l.apply(l.set("line/3/temp", "1"), l.set("x", "1")),
		"a: line/3/temp SET 1")
}

func TestClientIsNotifiedOnceOfAChange(t *testing.T) {
	l := newLeader(t)
	latest := watchingPattern("a", "k*")
	latest.Dialect = SDK
	l.apply(watchingPattern("a", "*"), watching("a", "key"), watching("b", "key"),
		watching("b", "*"))
	l.do(latest)
	outcome := l.apply(l.set("key", "1"), l.set("*", "2"))
	l.wantNotified("a key that several patterns match", outcome, "a: key SET 1", "b: key SET 1",
		"a: * SET 2", "b: * SET 2")
	if dialect := outcome.Events[0].Receivers[0].Dialect; dialect != SDK {
		t.Errorf("it is notified in dialect %d, which is not that of its latest KEYNOTIFY", dialect)
	}
}

func TestPatternWatchIsRefusedOrMatchesNothing(t *testing.T) {
	l := newLeader(t)
	for name, test := range map[string]struct {
		client, pattern string
		want            ErrorCode
	}{
		"an unclosed class": {"a", "[x", ErrorSyntax},
		"nothing":           {"a", "", ErrorSyntax},
		"a long pattern":    {"a", strings.Repeat("x", glob.MaxSize+1), ErrorQuota},
		"no client":         {"", "*", ErrorNotAuthorized},
		// never notified: its topic has no room for a key
		"a long client id":      {strings.Repeat("c", 32_800), "*", NoError},
		"the longest pattern":   {"a", strings.Repeat("x", glob.MaxSize), NoError},
		"not UTF-8, as in SCAN": {"a", "\xff*", NoError},
	} {
		t.Run(name, func(t *testing.T) {
			l.in(t)
			code := CodeOK
			if test.want != NoError {
				code = CodeError
			}
			l.want(name, l.do(watchingPattern(test.client, test.pattern)), code, test.want)
		})
	}
	l.wantNotified("none of them can be notified", l.apply(l.set("k", "v")))
}

// The bounds count what a change may cost: each character beyond ASCII beside a '?' between two
// stars weighs as much as 8 patterns of stars and literals.
func TestPatternWatchesAreBounded(t *testing.T) {
	l := newLeader(t)
	fill := func(client string, count int) {
		var commands []Command
		for i := range count {
			commands = append(commands, watchingPattern(client, fmt.Sprintf("%d/*", i)))
		}
		l.apply(commands...)
	}
	fill("a", maxPatternWeightPerClient-16) // leaves room for two of them
	l.want("a heavy one", l.do(watchingPattern("a", "*?ééé*")), CodeError, ErrorQuota)
	l.want("as heavy as there is room", l.do(watchingPattern("a", "*?éé*")), CodeOK, NoError)
	l.want("one more", l.do(watchingPattern("a", "x")), CodeError, ErrorQuota)
	l.want("a renewal is not one more", l.do(watchingPattern("a", "0/*")), CodeOK, NoError)
	l.want("a watch of a key does not count", l.do(watching("a", "x")), CodeOK, NoError)
	for i := range maxPatternWeight/maxPatternWeightPerClient - 1 {
		fill(fmt.Sprint("b", i), maxPatternWeightPerClient)
	}
	l.want("one more of another client", l.do(watchingPattern("c", "x")), CodeError, ErrorQuota)
	stop := watchingPattern("a", "0/*")
	stop.Kind = KindKeyNotifyStop
	l.want("STOP", l.do(stop), CodeOK, NoError)
	l.want("in its place", l.do(watchingPattern("c", "x")), CodeOK, NoError)
	l.configure(func(s *Settings) { s.Limits.WatchBytes = l.m.watches.bytes })
	renewal := watchingPattern("c", "x")
	renewal.Principal.Username = "u"
	l.want("a renewal by a longer principal", l.do(renewal), CodeError, ErrorQuota)
}

// A restore brings no more patterns than the bounds allow.
func TestRestoreKeepsTheBoundsOfPatterns(t *testing.T) {
	full := func(client string) *testLeader {
		l := newLeader(t)
		var commands []Command
		for i := range maxPatternWeightPerClient {
			commands = append(commands, watchingPattern(client, fmt.Sprintf("%s-%d/*", client, i)))
		}
		l.apply(commands...)
		return l
	}
	l := full("a")
	for i := range 20 {
		data := full(fmt.Sprint("b", i)).snapshot()
		l.stageAll(data, uint64(i+1), MaxStageBytes)
		l.want("restore", l.do(Command{
			Kind: KindRestore, Nonce: uint64(i + 1),
			Offset: uint64(len(data)),
		}), CodeOK, NoError)
	}
	if x := &l.m.watches.patterns; x.weight != maxPatternWeight ||
		x.perClient["a"] != maxPatternWeightPerClient {
		t.Errorf("weight %d, of the client that was there before %d", x.weight, x.perClient["a"])
	}
}

// In a pattern with a wildcard each character takes memory of its own. That memory counts towards
// Limits.WatchBytes.
func TestMemoryOfPatternsIsBounded(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.WatchBytes = 32 << 10 })
	l.want("a literal", l.do(watchingPattern("a", strings.Repeat("k", 1000))), CodeOK, NoError)
	l.want("the same with a wildcard", l.do(watchingPattern("b", "?"+strings.Repeat("k", 999))),
		CodeError, ErrorQuota)
}

// A pattern by itself needs no right. Whether its client may read a key is decided when the key
// changes, by the policy of that moment.
func TestPatternWatchShowsOnlyWhatItsClientMayRead(t *testing.T) {
	l := newLeader(t)
	allow := func(keys ...string) {
		rules, err := policy.Compile([]policy.Rule{
			{
				ClientIDs: []string{"writer"},
				Resources: []policy.Resource{{Access: policy.Write, Keys: []string{"*"}}},
			},
			{
				Usernames:  []string{"reader"},
				Attributes: [][]policy.Attribute{{{Name: "site", Value: "a"}}},
				Resources:  []policy.Resource{{Access: policy.Read, Keys: keys}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		l.configure(func(s *Settings) { s.Policy = rules })
	}
	change := func() *EntryOutcome {
		return l.apply(l.set("open/1", "1", from("writer")), l.set("secret/1", "1", from("writer")))
	}
	allow("open/*")
	byName, byAttribute := watchingPattern("n", "*"), watchingPattern("p", "*")
	byName.Principal.Username = "reader"
	byAttribute.Principal.Attributes = []policy.Attribute{{Name: "site", Value: "a"}}
	l.apply(byName, byAttribute, watchingPattern("stranger", "*"))
	open := []string{"n: open/1 SET 1", "p: open/1 SET 1"}
	l.wantNotified("what the policy allows", change(), open...)

	restored := New()
	if err := restored.Restore(strings.NewReader(string(l.snapshot()))); err != nil {
		t.Fatal(err)
	}
	l.m = restored
	l.wantNotified("after a restore", change(), open...)
	allow("secret/*")
	l.wantNotified("another policy", change(), "n: secret/1 SET 1", "p: secret/1 SET 1")
	l.configure(func(s *Settings) { s.Policy = nil })
	if n := len(notified(change())); n != 6 {
		t.Errorf("without a policy %d notifications, want 6", n)
	}
}

func TestWatchesOfAPatternEndWithTheirClient(t *testing.T) {
	l := newLeader(t)
	watch := watchingPattern("a", "*")
	watch.BrokerTime = 10
	l.do(watch)
	if !l.m.HasWatches("a") {
		t.Error("the client watches nothing")
	}
	l.do(Command{Kind: KindClientGone, Principal: client("a"), BrokerTime: 11})
	l.wantNotified("after the client is gone", l.apply(l.set("k", "1")))
	if l.m.HasWatches("a") || l.m.watches.patterns.weight != 0 ||
		len(l.m.watches.patterns.perClient) != 0 {
		t.Errorf("left: %+v", l.m.watches.patterns)
	}
}

// A notification without a subscriber ends those watches of its client that the key matches and
// that were made or renewed at least watchGrace before the change.
func TestNotificationWithoutSubscriberEndsPatternWatches(t *testing.T) {
	l := newLeader(t)
	l.apply(watchingPattern("a", "k*"), watchingPattern("a", "other"), watching("a", "key"),
		watchingPattern("b", "*"))
	l.pass(watchGrace + 1)
	event := l.apply(l.set("key", "1")).Events[0]
	l.do(watchingPattern("a", "*"))
	l.do(Command{
		Kind: KindWatchEnd, Principal: client("a"), Key: []byte("key"),
		NotificationIndex: event.Index, ChangedAt: event.At,
	})
	var left []string
	for _, w := range l.m.ListWatches("", "", WatchInfo{}, 10) {
		left = append(left, fmt.Sprint(w.ClientID, " ", w.Key, " ", w.Pattern))
	}
	if want := []string{"a * true", "b * true", "a other true"}; !slices.Equal(left, want) {
		t.Errorf("left: %q, want %q", left, want)
	}
}

// An operator ends one watch, and none of the patterns that its key matches.
func TestOperatorEndsOneWatch(t *testing.T) {
	l := newLeader(t)
	l.apply(watchingPattern("a", "k*"), watching("a", "k*"), watching("a", "key"))
	for _, one := range []struct {
		ended WatchInfo
		left  string
	}{
		{WatchInfo{Key: "key", ClientID: "a"}, "k* false, k* true, "},
		{WatchInfo{Key: "k*", ClientID: "a", Pattern: true}, "k* false, "},
	} {
		l.do(one.ended.EndCommand())
		left := ""
		for _, w := range l.m.ListWatches("", "", WatchInfo{}, 10) {
			left += fmt.Sprintf("%s %v, ", w.Key, w.Pattern)
		}
		if left != one.left {
			t.Errorf("after the end of %+v: left %q, want %q", one.ended, left, one.left)
		}
	}
}

// FindKey shows operators the clients that a change of the key would notify. ListWatches shows the
// watches page by page. A key and a pattern may have the same text.
func TestListOfWatchesHasKeysAndPatterns(t *testing.T) {
	l := newLeader(t)
	l.apply(l.set("*", "v"), watching("a", "*"), watchingPattern("a", "*"),
		watchingPattern("b", "*"), watching("c", "*"), watching("a", "x"))
	info, _ := l.m.FindKey("*")
	if got := fmt.Sprint(info.Watchers); got != "[{a 0} {b 0} {c 0}]" {
		t.Errorf("watchers %s", got)
	}
	var pages []string
	for after := (WatchInfo{}); ; {
		page := l.m.ListWatches("", "", after, 1)
		if len(page) == 0 {
			break
		}
		after = page[0]
		pages = append(pages, fmt.Sprint(after.Key, after.Pattern, after.ClientID))
	}
	if want := []string{"*falsea", "*falsec", "*truea", "*trueb", "xfalsea"}; !slices.Equal(pages,
		want) {
		t.Errorf("%q, want %q", pages, want)
	}
	listed := l.m.ListWatches("*", "a", WatchInfo{}, 10)
	l.do(listed[1].EndCommand())
	if left := l.m.ListWatches("*", "a", WatchInfo{}, 10); len(left) != 1 || left[0].Pattern {
		t.Errorf("left %+v", left)
	}
}

// The keys that one entry removes by expiry are bounded by the cost to compare them with patterns.
// Keys that are due read as absent at once. The next entries remove those beyond the bound.
func TestExpiryOfWatchedKeysIsBounded(t *testing.T) {
	for name, patterns := range map[string][]string{
		"many patterns":  nil, // light ones, as many as there may be
		"heavy patterns": {"*" + strings.Repeat("?", maxPatternWeightPerClient/8-1) + "b*"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			for i := range maxPatternWeight / maxPatternWeightPerClient {
				own := patterns
				for n := range maxPatternWeightPerClient {
					if patterns == nil {
						own = append(own, fmt.Sprintf("*%d-", n)) // no key ends like this
					}
				}
				var commands []Command
				for _, pattern := range own {
					commands = append(commands, watchingPattern(fmt.Sprint(i), pattern))
				}
				l.apply(commands...)
			}
			key := func(i int) string { return strings.Repeat("k", 296) + fmt.Sprintf("%03d", i) }
			l.do(watching("w", key(0)))
			const keys = 30
			var commands []Command
			for i := range keys {
				commands = append(commands, l.set(key(i), "v", ttl(100)))
			}
			l.apply(commands...)
			l.wantNotified("the first to expire", l.pass(200), "w: "+key(0)+" DEL")
			const cost = maxPatternWeight * 300 // that of one key, which has 299 bytes
			if left, want := l.m.Status().Keys, keys-(maxExpiryCost+cost-1)/cost; left != want {
				t.Errorf("%d keys are left, want %d", left, want)
			}
			if result := l.get(key(keys - 1)); result.Code != CodeNull {
				t.Errorf("a key that is due: %+v", result)
			}
			for range keys {
				l.apply()
			}
			if n := l.m.Status().Keys; n != 0 {
				t.Errorf("%d keys never expire", n)
			}
		})
	}
}

// The index finds what a look at all watches finds. It looks only at patterns whose literal prefix
// the key begins with.
func TestPatternIndexAgreesWithALookAtAll(t *testing.T) {
	text := func(letters string) *rapid.Generator[string] {
		return rapid.StringOfN(rapid.SampledFrom([]rune(letters)), 1, 5, -1)
	}
	rapid.Check(t, func(t *rapid.T) {
		x := newPatternIndex()
		all := map[string]*watch{}
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			pattern := text("aabb/*?").Draw(t, "pattern")
			if old := all[pattern]; old != nil {
				x.delete(old)
				delete(all, pattern)
			}
			if rapid.IntRange(0, 3).Draw(t, "0 deletes only") > 0 {
				compiled, err := glob.Compile(pattern)
				if err != nil {
					t.Fatal(err)
				}
				all[pattern] = &watch{
					watchID: watchID{pattern, true, "c"},
					pattern: &watchedPattern{Pattern: compiled},
				}
				x.put(all[pattern])
			}
			key := text("ab/").Draw(t, "key")
			var got, want []string
			weight, wantCost := 0, 0
			sizes := map[int]bool{}
			for _, w := range all {
				weight += w.pattern.Weight()
				if size := len(w.pattern.Prefix()); size <= len(key) && !sizes[size] {
					sizes[size] = true
					wantCost += 1 + size
				}
				if strings.HasPrefix(key, w.pattern.Prefix()) {
					wantCost += w.pattern.Weight() * (len(key) + 1)
				}
				if w.pattern.Match(key) {
					want = append(want, w.key)
				}
			}
			found, cost := x.appendMatching(nil, key)
			for _, w := range found {
				got = append(got, w.key)
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) || cost != wantCost || x.count != len(all) ||
				x.weight != weight || x.perClient["c"] != weight {
				t.Fatalf("%q: found %q, want %q; the cost is %d, want %d; %d watches, weight %d and %v, want %d", key, got, want, cost, wantCost, x.count, x.weight, x.perClient, weight)
			}
		}
	})
}

// The cost of a SET grows with the number of patterns whose literal prefix its key begins with.
// 10,000 others make it hardly slower.
func BenchmarkSetBesidePatternWatches(b *testing.B) {
	for _, patterns := range []int{0, 10, 10_000} {
		b.Run(fmt.Sprint(patterns, " patterns"), func(b *testing.B) {
			l := newLeader(b)
			for i := range patterns {
				l.do(watchingPattern(fmt.Sprint("c", i%100), fmt.Sprintf("site-%d/*/state", i)))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				key := fmt.Sprintf("site-%d/machine-%d/state", 10_000+i%10_000, i%10)
				l.number++
				data := AppendEntry(nil,
					&Entry{
						Term: l.term, Number: l.number, Wall: l.wall,
						Commands: []Command{l.set(key, "running")},
					})
				l.index++
				if _, err := l.m.Apply(l.index, l.term, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
