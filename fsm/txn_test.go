package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"holdfast/hlc"
	"holdfast/internal/policy"
)

// txn returns a transaction of client c.
func (l *testLeader) txn(operations ...Command) Command {
	return Command{
		Kind: KindTxn, Principal: client("c"), Timestamp: stamp(l.wall),
		Lifetime: 180_000, Operations: operations,
	}
}

func getting(key string) Command { return Command{Kind: KindGet, Key: []byte(key)} }

// repliesIn returns the results of a transaction's operations in the form of describe.
func repliesIn(r Result) (all []string) {
	for i := range r.Replies {
		all = append(all, describe(r.Replies[i]))
	}
	return all
}

// All operations take effect at one index, with growing versions. Their events are in the order of
// the operations.
func TestTransactionTakesEffectAsOne(t *testing.T) {
	l := newLeader(t)
	l.apply(l.set("a", "1"), l.set("b", "2"), l.set("c", "3"), watching("w", "a"),
		watching("w", "b"), watching("w", "new"))
	outcome := l.apply(l.txn(l.set("new", "4"), l.set("a", "5"), getting("c"), getting("none"),
		del("b"), vdel("missing", "x")))
	result := outcome.Results[0]
	l.want("the transaction", result, CodeReplies, NoError)
	last := version(result.Replies[1])
	want := []string{"ok " + version(result.Replies[0]), "ok " + last, "value 3 " +
		version(l.get("c")), "null", "deleted " + version(result.Replies[4]), "missing"}
	if got := repliesIn(result); !slices.Equal(got, want) || version(result) != last ||
		version(result.Replies[0]) >= last {
		t.Errorf("%q, version %s, want %q", got, version(result), want)
	}
	var told []string
	for _, e := range outcome.Events {
		told = append(told, fmt.Sprintf("%s %q %v at %d", e.Key, e.Value, e.Deleted,
			e.Index-l.index))
	}
	if want := []string{
		`new "4" false at 0`, `a "5" false at 0`,
		`b "" true at 0`,
	}; !slices.Equal(told, want) {
		t.Errorf("told %q", told)
	}
}

// A transaction changes nothing if an operation is refused or a condition is not met. A refused
// operation decides the result, even behind a condition that is not met. Among several refused
// operations the first decides.
func TestTransactionThatIsNotAppliedChangesNothing(t *testing.T) {
	l := newLeader(t)
	fenced := l.do(l.set("fenced", "1", token(l.wall)))
	there := l.do(l.set("there", "1"))
	for name, test := range map[string]struct {
		operations []Command
		code       Code
		err        ErrorCode
		version    string
		decides    uint8
	}{
		"condition of the second": {[]Command{
			l.set("x", "2"),
			l.set("there", "2", when(IfAbsent)),
		}, CodeNotApplied, NoError, version(there), 1},
		"condition on a key that is not there": {[]Command{
			l.set("x", "2"),
			l.set("y", "2", func(c *Command) {
				c.Condition, c.ExpectedVersion = IfVersion,
					stamp(1)
			}),
		}, CodeNotApplied, NoError, "", 1},
		"VDEL of another value": {
			[]Command{vdel("there", "2"), l.set("x", "2")},
			CodeNotApplied, NoError, version(there), 0,
		},
		"token required": {
			[]Command{l.set("x", "2"), l.set("fenced", "2")},
			CodeError, ErrorTokenRequired, "", 1,
		},
		"refused after a condition": {[]Command{
			l.set("there", "2", when(IfAbsent)),
			del("fenced"),
		}, CodeError, ErrorTokenRequired, "", 1},
		"the first of two that are refused": {[]Command{{
			Kind:  KindInvalid,
			Error: ErrorArguments,
		}, del("fenced")}, CodeError, ErrorArguments, "", 0},
		"the same key twice": {
			[]Command{l.set("x", "2"), del("x")},
			CodeError,
			ErrorSyntax, "", 0,
		},
		"a key is read and written": {
			[]Command{getting("x"), l.set("x", "2")},
			CodeError, ErrorSyntax, "", 0,
		},
		"no operation": {nil, CodeError, ErrorArguments, "", 0},
		"too many": {slices.Repeat([]Command{getting("x")},
			MaxOperations+1), CodeError, ErrorArguments, "", 0},
		"a value that was too long": {
			[]Command{
				l.set("x", "2"),
				{Kind: KindSet, Oversize: true},
				{Kind: KindSet, Oversize: true},
			},
			CodeError,
			ErrorQuota, "", 1,
		},
		"a lower-case operation": {
			[]Command{
				l.set("x", "2"),
				{Kind: KindSet, Key: []byte("x"), CaseError: ErrorUnknownCommand},
			},
			CodeError,
			ErrorUnknownCommand, "", 1,
		},
		"an operation that is nothing": {
			[]Command{l.set("x", "2"), {Kind: KindInvalid}},
			CodeError, ErrorSyntax, "", 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l.in(t)
			before := l.m.Status()
			result := l.do(l.txn(test.operations...))
			l.want("the transaction", result, test.code, test.err)
			after := l.m.Status()
			if version(result) != test.version || result.Operation != test.decides ||
				len(result.Replies) > 0 || after.Keys != before.Keys ||
				after.Bytes != before.Bytes || after.Clock != before.Clock {
				t.Errorf("%+v", result)
			}
		})
	}
	if version(l.get("fenced")) != version(fenced) || version(l.get("there")) != version(there) {
		t.Error("a key changed")
	}
}

// The fencing token and the timestamp of a transaction apply to each of its operations.
func TestTransactionHasOneToken(t *testing.T) {
	l := newLeader(t)
	l.do(l.set("fenced", "1", token(l.wall)))
	newer := l.txn(l.set("fenced", "2"), l.set("free", "2"))
	newer.Token = hlc.Timestamp{Wall: l.wall + 1, NodeID: hlc.StoreNodeID}
	l.want("a newer token", l.do(newer), CodeReplies, NoError)
	l.want("both have it now", l.do(l.set("free", "3")), CodeError, ErrorTokenRequired)
	ahead := l.txn(l.set("x", "1"))
	ahead.Timestamp.Wall += 70_000
	l.want("a timestamp from the future", l.do(ahead), CodeError, ErrorTimestampSkew)
}

// A quota holds for what all operations add together: what one deletes makes room for another.
func TestQuotaHoldsForATransactionAsAWhole(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.Keys, s.Limits.TotalBytes = 3, 100 })
	l.apply(l.set("a", "1"), l.set("b", "2"))
	l.want("two keys more", l.do(l.txn(l.set("c", "3"), l.set("d", "4"))), CodeError, ErrorQuota)
	l.want("two keys more and one less", l.do(l.txn(l.set("c", "3"), l.set("d", "4"), del("a"))),
		CodeReplies, NoError)
	l.want("too many bytes", l.do(l.txn(l.set("c", strings.Repeat("x", 60)),
		l.set("d", strings.Repeat("x", 60)))), CodeError, ErrorQuota)
	l.want("a condition is judged first",
		l.do(l.txn(l.set("c", strings.Repeat("x", 100)), l.set("d", "", when(IfAbsent)))),
		CodeNotApplied, NoError)
	l.number++
	low := Entry{
		Term: l.term, Number: l.number, Elapsed: l.elapsed, Wall: l.wall, StorageLow: true,
		Commands: []Command{
			l.txn(l.set("c", "33"), l.set("d", "")),
			l.txn(l.set("c", ""), l.set("d", "4444")),
		},
	}
	results := l.append(&low).Results
	l.want("no more bytes while disks are full", results[0], CodeReplies, NoError)
	l.want("more bytes while disks are full", results[1], CodeError, ErrorQuota)
}

// The policy decides about each operation.
func TestPolicyDecidesAboutEachOperation(t *testing.T) {
	l := newLeader(t)
	rules, err := policy.Compile(
		[]policy.Rule{{ClientIDs: []string{"c"}, Resources: []policy.Resource{
			{Access: policy.ReadWrite, Keys: []string{"mine"}},
			{Access: policy.Read, Keys: []string{"theirs"}},
		}}})
	if err != nil {
		t.Fatal(err)
	}
	l.configure(func(s *Settings) { s.Policy = rules })
	l.want("allowed", l.do(l.txn(l.set("mine", "1"), getting("theirs"))), CodeReplies, NoError)
	denied := l.do(l.txn(l.set("mine", "2"), l.set("theirs", "2")))
	l.want("a write of what may be read", denied, CodeError, ErrorNotAuthorized)
	l.want("a read of what may not", l.do(l.txn(l.set("mine", "2"), getting("secret"))), CodeError,
		ErrorNotAuthorized)
	if got := l.m.Read(&Command{
		Kind: KindGet, Principal: client("c"),
		Key: []byte("mine"),
	}); denied.Operation != 1 || got.Value != "1" {
		t.Errorf("operation %d, value %+v", denied.Operation, got)
	}
	unidentified := l.txn(l.set("mine", "2"))
	unidentified.Unidentified = true
	l.want("without an identity", l.do(unidentified), CodeError, ErrorNotAuthorized)
}

// † The outcome of a request is for those who may make it: somebody else who sends the same bytes,
// and for whom the broker vouches, learns nothing.
func TestOutcomeIsForThoseWhoMayMakeTheRequest(t *testing.T) {
	l := newLeader(t)
	rules, err := policy.Compile([]policy.Rule{
		{
			ClientIDs: []string{"c", "deputy"},
			Resources: []policy.Resource{{Access: policy.ReadWrite, Keys: []string{"mine"}}},
		},
		{
			ClientIDs: []string{"eve"},
			Resources: []policy.Resource{{Access: policy.ReadWrite, Keys: []string{"hers"}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.configure(func(s *Settings) { s.Policy = rules })
	for name, command := range map[string]Command{
		"SET": l.set("mine", "secret"), "DEL": del("mine"),
		"TXN": l.txn(l.set("mine", "secret"), getting("mine")),
	} {
		t.Run(name, func(t *testing.T) {
			command.ID, command.Principal = l.newID(), client("c")
			command.inherit()
			first := l.do(command)
			as := func(id string) (Result, Result) {
				copied := command
				copied.Operations = slices.Clone(command.Operations)
				copied.Principal = client(id)
				copied.inherit()
				told := l.m.toldOf(&copied)
				return l.do(copied), told
			}
			for _, allowed := range []string{"c", "deputy"} {
				for _, got := range resultsOf(as(allowed)) {
					if got.Code != first.Code || !got.Repeat {
						t.Errorf("%s: %+v", allowed, got)
					}
				}
			}
			for _, got := range resultsOf(as("eve")) {
				if got.Error != ErrorNotAuthorized || len(got.Replies) > 0 || version(got) != "" {
					t.Errorf("another client: %+v", got)
				}
			}
		})
	}
}

func resultsOf(results ...Result) []Result { return results }

// † A transaction whose keys would have to be compared with too many patterns is refused: 128 keys
// of 4 KB and 1,000 patterns took every member seconds.
func TestCostOfATransactionIsBounded(t *testing.T) {
	l := newLeader(t)
	for i := range maxPatternWeightPerClient {
		pattern := fmt.Sprintf("*%s%04d*", strings.Repeat("a", 50), i)
		l.want("a watch", l.do(Command{
			Kind: KindKeyNotify, Pattern: true, Principal: client("w"),
			Key: []byte(pattern),
		}), CodeOK, NoError)
	}
	large := func(keys int) Command {
		var operations []Command
		for i := range keys {
			operations = append(operations,
				l.set(strings.Repeat("a", 4000)+fmt.Sprintf("%04d", i), "v"))
		}
		return l.txn(operations...)
	}
	l.want("many long keys", l.do(large(MaxOperations)), CodeError, ErrorQuota)
	l.want("a few long keys", l.do(large(10)), CodeReplies, NoError)
	var short []Command
	for i := range MaxOperations {
		short = append(short, l.set(fmt.Sprint("line/7/", i), "v"))
	}
	l.want("many short keys", l.do(l.txn(short...)), CodeReplies, NoError)
}

// A transaction is refused if its reply would be larger than the broker accepts, or if it reads
// more than the greater of 256 KiB and Limits.ValueBytes.
func TestReplyOfATransactionIsBounded(t *testing.T) {
	l := newLeader(t)
	l.apply(l.set("a", strings.Repeat("x", 3000)), l.set("b", strings.Repeat("x", 200<<10)),
		l.set("c", strings.Repeat("x", 200<<10)))
	small := l.txn(getting("a"), l.set("n", "1"))
	small.MaxReply = 3000
	l.want("larger than the broker accepts", l.do(small), CodeError, ErrorReplyTooLarge)
	small.MaxReply = 3100
	l.want("as large as the broker accepts", l.do(small), CodeReplies, NoError)
	many := l.txn(slices.Repeat([]Command{getting("none")}, MaxOperations)...)
	many.MaxReply = int64(len("*128\r\n") + MaxOperations*len("$-1\r\n"))
	l.want("exactly as large", l.do(many), CodeReplies, NoError)
	many.MaxReply--
	l.want("a byte larger", l.do(many), CodeError, ErrorReplyTooLarge)
	l.want("below the longest value", l.do(l.txn(getting("b"), getting("c"))), CodeReplies, NoError)
	l.configure(func(s *Settings) { s.Limits.ValueBytes = 1000 })
	l.want("above 256 KiB", l.do(l.txn(getting("b"), getting("c"))), CodeError, ErrorQuota)
}

// A copy of a transaction gets the replies of the first, values included, whatever has changed
// since: from a replica that applied the log, from one that was restored from a snapshot, and after
// a backup was restored.
func TestCopyOfATransactionGetsTheSameReplies(t *testing.T) {
	l := newLeader(t)
	l.do(l.set("read", "before"))
	transaction := l.txn(getting("read"), getting("none"), l.set("written", "1"), del("none2"))
	transaction.ID = l.newID()
	first := l.do(transaction)
	l.apply(l.set("read", "after"), l.set("none", "x"), l.set("written", "2"))
	want := `["value before" "null" "ok" "missing"]`
	check := func(name string, m *Machine) {
		t.Helper()
		again, _, known := m.remembered(transaction.ID)
		if got := fmt.Sprintf("%q", repliesIn(again)); !known || !again.Repeat ||
			again.Code != CodeReplies || version(again) != version(first) || got != want {
			t.Errorf("%s: %v %+v", name, known, again)
		}
	}
	check("applied", l.m)
	taken := l.snapshot()
	if again := l.do(transaction); !again.Repeat || l.get("written").Value != "2" {
		t.Errorf("the copy took effect: %+v", again)
	}
	restored := New()
	if err := restored.Restore(bytes.NewReader(taken)); err != nil {
		t.Fatal(err)
	}
	check("restored", restored)
	other := newLeader(t)
	other.elapsed += 5000 // so that outcomes are postponed
	other.do(other.set("k", "v", id(RequestID{99})))
	other.do(Command{Kind: KindStage, Nonce: 9, Value: taken})
	other.want("restore of a backup",
		other.do(Command{Kind: KindRestore, Nonce: 9, Offset: uint64(len(taken))}), CodeOK, NoError)
	check("from a backup", other.m)
	l.pass(200_000)
	if _, _, known := l.m.remembered(transaction.ID); known || l.m.Status().ReplyBytes != 0 ||
		l.m.dedup.replies.byID.Len() != 0 || len(l.m.dedup.replies.others.perClient) != 0 ||
		len(l.m.dedup.replies.values.perClient) != 0 {
		t.Error("the replies are remembered beyond the outcome")
	}
}

// A remembered value is a copy. It does not keep the record of its key in memory.
func TestRememberedValuesAreCopies(t *testing.T) {
	l := newLeader(t)
	l.do(l.set("read", "value"))
	transaction := l.txn(getting("read"))
	transaction.ID = l.newID()
	l.do(transaction)
	again, _, _ := l.m.remembered(transaction.ID)
	if found := l.get("read").Value; again.Replies[0].Value != found ||
		unsafe.StringData(again.Replies[0].Value) == unsafe.StringData(found) {
		t.Error("the remembered value is a part of the record")
	}
}

// Values that are remembered have bounds, in all and for one client. Beyond them a transaction is
// refused, and the refusal is its outcome.
func TestRememberedRepliesAreBounded(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.ValueBytes = 8 << 20 })
	l.do(l.set("large", strings.Repeat("x", 8<<20)))
	read := func(name string) Command {
		c := l.txn(getting("large"), l.set("n", "1"))
		c.ID, c.Principal = l.newID(), client(name)
		return c
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		l.want("the first of "+name, l.do(read(name)), CodeReplies, NoError)
		l.want("the second of "+name, l.do(read(name)), CodeReplies, NoError)
		refused := read(name)
		l.want("one too many of "+name, l.do(refused), CodeError, ErrorOverloaded)
		l.want("a copy of it", l.do(refused), CodeError, ErrorOverloaded)
	}
	l.want("one too many in all", l.do(read("e")), CodeError, ErrorOverloaded)
	for _, name := range []string{"a", "e"} {
		write := l.txn(l.set("n", "1"), del("none"))
		write.ID, write.Principal = l.newID(), client(name)
		l.want("who reads does not keep others from writing", l.do(write), CodeReplies, NoError)
	}
	anonymous := read("e")
	anonymous.ID = RequestID{}
	l.want("nothing is remembered of one without an id", l.do(anonymous), CodeReplies, NoError)
	l.pass(200_000)
	l.want("when they are forgotten", l.do(read("a")), CodeReplies, NoError)
}

// The remembered replies of transactions have a bound without their values as well. One client's
// replies may take a quarter of it.
func TestRememberedWritesAreBounded(t *testing.T) {
	table := newReplyTable()
	results := slices.Repeat([]Result{{Code: CodeOK}}, MaxOperations)
	count := map[uint64]int{}
	for client := range uint64(5) {
		for ; table.hasRoom(client, nil); count[client]++ {
			id := RequestID{
				byte(client), byte(count[client]), byte(count[client] >> 8),
				byte(count[client] >> 16),
			}
			table.put(newKeptReplies(id, client, results))
		}
	}
	if share := maxKeptReplyBytes / clientShareDivisor / 256; count[0] != share ||
		count[3] != share || count[4] != 0 {
		t.Errorf("%v transactions", count)
	}
	table.drop(RequestID{1})
	if !table.hasRoom(4, nil) {
		t.Error("no room when one is forgotten")
	}
}

func BenchmarkTxn(b *testing.B) {
	for _, operations := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("%d SETs", operations), func(b *testing.B) {
			l := newLeader(b)
			transaction := l.txn()
			for i := range operations {
				transaction.Operations = append(transaction.Operations,
					l.set(fmt.Sprintf("key-%d", i), strings.Repeat("v", 100)))
			}
			b.ReportAllocs()
			for n := uint64(1); b.Loop(); n++ {
				transaction.ID = RequestID{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), 1}
				data := AppendEntry(nil,
					&Entry{Term: l.term, Number: n, Wall: l.wall, Commands: []Command{transaction}})
				if _, err := l.m.Apply(n+1, l.term, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
