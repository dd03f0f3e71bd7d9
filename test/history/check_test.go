package history

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/hlc"
	"holdfast/resp"
)

// version returns a version of the store.
func version(n int64) hlc.Timestamp { return hlc.Timestamp{Wall: n, NodeID: hlc.StoreNodeID} }

// op returns an operation. Its times are in seconds. A reply of "?" means that none came, and v is
// the version in the reply.
func op(client string, verb Verb, key, value string, call, replied float64, reply string,
	v int64,
) *Op {
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	o := &Op{
		Client: client, Verb: verb, Key: key, Value: value, Call: seconds(call),
		Sendings: []Sending{{Receivers: []string{"broker"}}},
	}
	if reply == "?" {
		return o
	}
	o.Known, o.Replied, o.Payload = true, seconds(replied), reply
	switch {
	case reply == "OK":
		o.Reply = resp.Reply{Kind: resp.ReplyOK}
	case reply == "-1":
		o.Reply = resp.Reply{Kind: resp.ReplyNotApplied, Integer: -1}
	case reply == "1" || reply == "0":
		o.Reply = resp.Reply{Kind: resp.ReplyInteger, Integer: int64(reply[0] - '0')}
	case reply == "nil":
		o.Reply = resp.Reply{Kind: resp.ReplyNull}
	case strings.HasPrefix(reply, "ERR "):
		o.Reply = resp.Reply{Kind: resp.ReplyError, Error: reply[4:]}
	default:
		o.Reply = resp.Reply{Kind: resp.ReplyBulk, Bulk: []byte(reply)}
	}
	if v > 0 {
		o.Version = version(v)
	}
	return o
}

func with(o *Op, change func(*Op)) *Op {
	change(o)
	return o
}

// histories returns a history for each check, which must find a violation in it. The history of the
// name "" has none.
func histories() map[string][]*Op {
	token := func(n int64) func(*Op) { return func(o *Op) { o.Token = version(n) } }
	ttl := func(o *Op) { o.TTL, o.Condition = 10*time.Second, NEX }
	final := func(o *Op) { o.Final = true }
	return map[string][]*Op{
		"": {
			op("a", Set, "r/1", "x", 0, 1, "OK", 1), op("b", Get, "r/1", "", 2, 3, "x", 1),
			op("b", Set, "r/1", "y", 2, 0, "?", 0),
			op("a", Get, "r/1", "", 4, 5, "y", 2), op("a", Del, "r/1", "", 6, 7, "1", 2),
			op("a", Get, "r/1", "", 8, 9, "nil", 0),
			op("a", Set, "element/1", "z", 10, 11, "OK", 3),
			op("b", Get, "element/1", "", 12, 13, "ERR "+errorOverloaded, 0),
		},
		"linearizability": {
			op("a", Set, "r/1", "x", 0, 1, "OK", 1),
			op("b", Get, "r/1", "", 2, 3, "nil", 0),
		},
		"acknowledged write lost": {
			op("a", Set, "flood/1", "x", 0, 1, "OK", 1),
			with(op("b", Get, "flood/1", "", 2, 3, "nil", 0), final),
		},
		"exactly once": {with(op("a", Set, "r/1", "x", 0, 1, "OK", 1), func(o *Op) {
			o.Again = []Repeat{{
				At: 2 * time.Second, Reply: o.Reply, Payload: "OK",
				Version: version(2),
			}}
		})},
		"effect after an error": {
			op("a", Set, "r/1", "x", 0, 1, "ERR "+errorOverloaded, 0),
			op("b", Set, "r/1", "x", 2, 0, "?", 0), op("c", Get, "r/1", "", 3, 4, "x", 1),
		},
		"order of a client": {
			with(op("a", Set, "p/1", "x", 0, 3, "OK", 2), func(o *Op) { o.Sequence = 1 }),
			with(op("a", Set, "p/1", "y", 0.1, 2.9, "OK", 1), func(o *Op) { o.Sequence = 2 }),
		},
		"versions": {
			op("a", Set, "x/1", "x", 0, 1, "OK", 2),
			op("b", Set, "x/2", "y", 2, 3, "OK", 1),
		},
		"fencing": {
			with(op("a", Set, "protected/1", "x", 0, 1, "OK", 5), token(3)),
			with(op("b", Set, "protected/1", "y", 2, 3, "OK", 6), token(2)),
		},
		"lock lost early": {
			with(op("a", Set, "lock/1", "a", 0, 1, "OK", 1), ttl),
			with(op("b", Set, "lock/1", "b", 2, 3, "OK", 2), ttl),
		},
		"element added twice": {
			op("a", Set, "element/1", "x", 0, 1, "OK", 1),
			op("b", Set, "element/1", "y", 0, 1, "OK", 2),
		},
		"element lost": {
			op("a", Set, "element/1", "x", 0, 1, "OK", 1),
			op("b", Get, "element/1", "", 2, 3, "nil", 0),
		},
		"expired early": {
			with(op("a", Set, "brief/1", "x", 0, 1, "OK", 1),
				func(o *Op) { o.TTL = 5 * time.Second }),
			op("a", Get, "brief/1", "", 2, 3, "nil", 0),
		},
		"never expired": {
			with(op("a", Set, "brief/1", "x", 0, 1, "OK", 1), func(o *Op) { o.TTL = time.Second }),
			with(op("a", Get, "brief/1", "", 60, 61, "x", 1), final),
		},
		"odd reply": {op("a", Set, "r/1", "x", 0, 1, "ERR something else", 0)},
		"transaction": {
			bankOp("a", 0, 1, "OK", sets("100 a")),
			bankOp("b", 2, 3, "read 100 a,100 a,100 a,90 b", gets()),
		},
		"notifications": {
			op("a", Notify, "watched/1", "", 0, 1, "OK", 0),
			op("b", Set, "watched/1", "x", 2, 3, "OK", 1),
		},
	}
}

// bankOp returns a transaction on a bank. The reply "OK" stands for an OK to each SET. "read "
// comes before the values that GETs read, separated by commas.
func bankOp(client string, call, replied float64, reply string, parts []Op) *Op {
	o := op(client, Txn, "bank/0", "", call, replied, reply, 0)
	o.Parts = parts
	values, isRead := strings.CutPrefix(reply, "read ")
	switch {
	case reply == "OK":
		o.Reply = resp.Reply{
			Kind:    resp.ReplyArray,
			Replies: slices.Repeat([]resp.Reply{{Kind: resp.ReplyOK}}, len(parts)),
		}
		o.Version = version(int64(call) + 1)
	case isRead:
		o.Reply = resp.Reply{Kind: resp.ReplyArray}
		for _, value := range strings.Split(values, ",") {
			one := resp.Reply{Kind: resp.ReplyBulk, Bulk: []byte(value)}
			if value == "nil" {
				one = resp.Reply{Kind: resp.ReplyNull}
			}
			o.Reply.Replies = append(o.Reply.Replies, one)
		}
	}
	return o
}

// sets are the SETs that open a bank with one value in all accounts.
func sets(value string) (parts []Op) {
	for n := range BankAccounts {
		parts = append(parts, Op{
			Verb: Set, Key: fmt.Sprintf("bank/0/%d", n), Value: value,
			Condition: NX,
		})
	}
	return parts
}

// gets are the GETs of all accounts.
func gets() (parts []Op) {
	for n := range BankAccounts {
		parts = append(parts, Op{Verb: Get, Key: fmt.Sprintf("bank/0/%d", n)})
	}
	return parts
}

// move is a transfer from account 0 to account 1. Its conditions are the values from and to.
func move(from, to, newFrom, newTo string) []Op {
	return []Op{
		{Verb: Set, Key: "bank/0/0", Value: newFrom, Condition: NEX, Expected: from},
		{Verb: Set, Key: "bank/0/1", Value: newTo, Condition: NEX, Expected: to},
	}
}

// Check accepts a history if the transactions on a bank take effect as a whole, in some order that
// explains all replies. Otherwise it reports a violation.
func TestTransactionsOfABankAreOrdered(t *testing.T) {
	open := bankOp("a", 0, 1, "OK", sets("100 a"))
	moved := bankOp("b", 2, 3, "OK", move("100 a", "100 a", "90 b", "110 b"))
	for name, test := range map[string]struct {
		ops    []*Op
		broken string
	}{
		"read before it is opened": {[]*Op{bankOp("b", -2, -1, "read nil,nil,nil,nil",
			gets()), open}, ""},
		"read after a transfer": {[]*Op{
			open, moved,
			bankOp("c", 4, 5, "read 90 b,110 b,100 a,100 a", gets()),
		}, ""},
		"read beside a transfer": {[]*Op{
			open, moved,
			bankOp("c", 2, 5, "read 100 a,100 a,100 a,100 a", gets()),
		}, ""},
		"a part of a transfer is seen": {[]*Op{
			open, moved,
			bankOp("c", 2, 5, "read 90 b,100 a,100 a,100 a", gets()),
		}, "transaction"},
		"a part of it is seen by GETs": {[]*Op{
			open, moved,
			op("c", Get, "bank/0/0", "", 2, 3, "90 b", 0),
			op("c", Get, "bank/0/1", "", 4, 5, "100 a", 0),
		}, "linearizability"},
		"a transfer is forgotten": {[]*Op{
			open, moved,
			bankOp("c", 4, 5, "read 100 a,100 a,100 a,100 a", gets()),
		}, "linearizability"},
		"a part of the bank is open": {[]*Op{
			open,
			bankOp("c", 0, 5, "read 100 a,nil,100 a,100 a", gets()),
		}, "transaction"},
		"a condition was not met": {[]*Op{
			open, moved,
			bankOp("c", 4, 5, "-1", move("100 a", "110 b", "80 c", "120 c")),
		}, ""},
		"a condition was met": {[]*Op{
			open, moved,
			bankOp("c", 4, 5, "-1", move("90 b", "110 b", "80 c", "120 c")),
		}, "linearizability"},
		"both of two transfers": {[]*Op{
			open, moved,
			bankOp("c", 2, 3, "OK", move("100 a", "100 a", "80 c", "120 c")),
		}, "linearizability"},
		"an unknown transfer was seen": {[]*Op{
			open,
			bankOp("c", 2, 0, "?", move("100 a", "100 a", "80 c", "120 c")),
			bankOp("b", 4, 5, "read 80 c,120 c,100 a,100 a", gets()),
		}, ""},
		"one without effect was seen": {[]*Op{
			open,
			bankOp("c", 2, 3, "-1", move("x", "100 a", "80 c", "120 c")),
			bankOp("b", 4, 5, "read 80 c,120 c,100 a,100 a", gets()),
		}, "linearizability"},
		"one that was refused was seen": {[]*Op{
			open,
			bankOp("c", 2, 3, "ERR "+errorOverloaded, move("100 a", "100 a", "80 c", "120 c")),
			op("b", Get, "bank/0/1", "", 4, 5, "120 c", 0),
		}, "effect after an error"},
		"a copy has other replies": {[]*Op{
			open,
			with(bankOp("b", 2, 3, "read 100 a,100 a,100 a,100 a", gets()),
				func(o *Op) { o.Again = []Repeat{{Payload: "other"}} }),
		}, "exactly once"},
		"a SET beside, of what it wrote": {[]*Op{
			open, moved,
			with(op("c", Set, "bank/0/0", "90 c", 4, 5, "OK", 5),
				func(o *Op) { o.Condition, o.Expected = IfVer, "90 b" }),
		}, ""},
		"a SET beside, of what was": {[]*Op{
			open, moved,
			with(op("c", Set, "bank/0/0", "100 c", 4, 5, "OK", 5),
				func(o *Op) { o.Condition, o.Expected = IfVer, "100 a" }),
		}, "linearizability"},
	} {
		t.Run(name, func(t *testing.T) {
			var found []string
			for _, v := range Check(history(test.ops), conditions()).Violations {
				found = append(found, v.Check)
			}
			if test.broken == "" && len(found) > 0 || test.broken != "" &&
				!slices.Contains(found, test.broken) {
				t.Errorf("found %q", found)
			}
		})
	}
}

func conditions() Conditions {
	return Conditions{
		NotificationsComplete: true, Patience: 5 * time.Second,
		ArrivedInOrder: func(_, _ *Op) bool { return true },
	}
}

func history(ops []*Op) *History {
	h := New()
	for _, o := range ops {
		h.Add(o)
	}
	return h
}

// Each promise that is broken is found, and a history without fault is left alone.
func TestBrokenPromisesAreFound(t *testing.T) {
	for want, ops := range histories() {
		var found []string
		for _, v := range Check(history(ops), conditions()).Violations {
			if !slices.Contains(found, v.Check) {
				found = append(found, v.Check)
			}
		}
		if want == "" && len(found) > 0 || want != "" && !slices.Contains(found, want) {
			t.Errorf("%q: found %q", want, found)
		}
	}
	ahead := New()
	ahead.AddAhead("a version of next year")
	if found := Check(ahead, conditions()).Violations; len(found) != 1 ||
		found[0].Check != "version ahead" {
		t.Errorf("a version that is far ahead: %v", found)
	}
}

// A lock acquisition counts as contested if its token is used after another client has acquired the
// lock.
func TestTwoHoldersOfOneLockAreCounted(t *testing.T) {
	lock := func(o *Op) { o.TTL, o.Condition = time.Second, NEX }
	h := history([]*Op{
		with(op("a", Set, "lock/1", "a", 0, 1, "OK", 1), lock),
		with(op("b", Set, "lock/1", "b", 5, 6, "OK", 2), lock),
		with(op("a", Set, "protected/1", "x", 7, 8, "ERR "+errorTokenLower, 0),
			func(o *Op) { o.Token = version(1) }),
	})
	if findings := Check(h, conditions()); findings.Contested != 1 {
		t.Errorf("%d times", findings.Contested)
	}
}

// watchingAll returns a history in which client a watches all keys of one character.
func watchingAll() *History {
	return history([]*Op{with(op("a", Notify, "?", "", -1, 0, "OK", 0),
		func(o *Op) { o.Glob = true })})
}

// A client is notified of what it watches, by a key or by a pattern, and of nothing else.
func TestNotificationsFollowTheWatches(t *testing.T) {
	glob := func(o *Op) { o.Glob = true }
	watch := with(op("a", Notify, "k/*", "", 0, 1, "OK", 0), glob)
	set := op("b", Set, "k/1", "x", 4, 5, "OK", 1)
	note := Notification{At: 5 * time.Second, Key: "k/1", Value: "x", Version: version(1)}
	for name, test := range map[string]struct {
		ops    []*Op
		notes  []Notification
		broken bool
	}{
		"notified":     {[]*Op{watch, set}, []Notification{note}, false},
		"not notified": {[]*Op{watch, set}, nil, true},
		"not notified after its STOP": {[]*Op{
			watch,
			with(op("a", Stop, "k/*", "", 2, 3, "OK", 0), glob), set,
		}, nil, false},
		"the STOP of a key is another's": {[]*Op{
			watch, op("a", Stop, "k/*", "", 2, 3, "0", 0),
			set,
		}, nil, true},
		"notified of another key": {
			[]*Op{watch, op("b", Set, "l/1", "x", 4, 5, "OK", 1)},
			[]Notification{{At: 5 * time.Second, Key: "l/1", Value: "x", Version: version(1)}},
			true,
		},
		"notified soon after its STOP": {
			[]*Op{watch, with(op("a", Stop, "k/*", "", 2, 3, "OK", 0), glob), set},
			[]Notification{note},
			false,
		},
		"notified long after its STOP": {
			[]*Op{
				watch, with(op("a", Stop, "k/*", "", 2, 3, "OK", 0), glob),
				op("b", Set, "k/1", "x", 99, 100, "OK", 1),
			},
			[]Notification{{At: 100 * time.Second, Key: "k/1", Value: "x", Version: version(1)}},
			true,
		},
		"notified after it watched again": {
			[]*Op{
				watch, with(op("a", Stop, "k/*", "", 2, 3, "OK", 0), glob),
				with(op("a", Notify, "k/*", "", 50, 51, "OK", 0), glob),
				op("b", Set, "k/1", "x", 99, 100, "OK", 1),
			},
			[]Notification{{At: 100 * time.Second, Key: "k/1", Value: "x", Version: version(1)}},
			false,
		},
		"notified before it watched": {[]*Op{
			with(op("a", Notify, "k/*", "", 6, 7, "OK", 0), glob),
			set,
		}, []Notification{note}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := history(test.ops)
			for _, n := range test.notes {
				h.AddNote("a", n)
			}
			if findings := Check(h, conditions()); (len(findings.Violations) > 0) != test.broken {
				t.Errorf("%v", findings.Violations)
			}
		})
	}
}

// Notifications out of order are found. A repetition is accepted if it has all changes from some
// point on.
func TestNotificationsOutOfOrderAreFound(t *testing.T) {
	note := func(n int64) Notification {
		return Notification{At: time.Duration(n), Key: "k", Value: "v", Version: version(n)}
	}
	for want, order := range map[bool][]int64{true: {1, 2, 3, 2, 3, 4}, false: {1, 3, 2}} {
		t.Run(fmt.Sprintf("in order: %v", want), func(t *testing.T) {
			h := watchingAll()
			for _, n := range order {
				h.AddNote("a", note(n))
			}
			if findings := Check(h, conditions()); (len(findings.Violations) == 0) != want {
				t.Errorf("%v: %v", order, findings.Violations)
			}
		})
	}
}

// A client with a new session (a gap in the history) may miss notifications until it has subscribed
// again. They may then come with a repetition, out of order.
func TestNotesOrderAfterANewSession(t *testing.T) {
	for want, gap := range map[bool]time.Duration{true: 15 * time.Second, false: 0} {
		t.Run(fmt.Sprintf("in order: %v", want), func(t *testing.T) {
			h := watchingAll()
			if gap > 0 {
				h.AddGap("a", gap)
			}
			for i, key := range []string{"a", "b", "a", "c"} {
				h.AddNote("a",
					Notification{
						At: 15*time.Second + time.Duration(i+1)*time.Millisecond, Key: key,
						Deleted: key != "c",
						Version: version(map[string]int64{"a": 2, "b": 1, "c": 3}[key]),
					})
			}
			if findings := Check(h, conditions()); (len(findings.Violations) == 0) != want {
				t.Errorf("gap at %v: %v", gap, findings.Violations)
			}
		})
	}
}

// If a client with a new session missed a SET, its notification may come late, with a repetition.
// The repetition must then go on until it reaches what the client already had.
func TestMissedSetComesWithARepetition(t *testing.T) {
	for name, test := range map[string]struct {
		order  []int64 // versions of the notifications, which come one each millisecond
		gap    bool    // the client has a new session before the second one
		broken bool
	}{
		"repeated to the end":             {[]int64{1, 3, 4, 2, 3, 4}, true, false},
		"the repetition does not reach":   {[]int64{1, 3, 4, 2, 3}, true, true},
		"not repeated":                    {[]int64{1, 3, 4, 2}, true, true},
		"repeated, but there is no gap":   {[]int64{1, 3, 4, 2, 3, 4}, false, true},
		"repeated without what is missed": {[]int64{1, 3, 4, 3, 4}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := watchingAll()
			if test.gap {
				h.AddGap("a", 1500*time.Microsecond)
			}
			for i, n := range test.order {
				h.AddNote("a", Notification{
					At: time.Duration(i+1) * time.Millisecond, Key: "k",
					Value: "v", Version: version(n),
				})
			}
			if findings := Check(h, conditions()); (len(findings.Violations) > 0) != test.broken {
				t.Errorf("found %v", findings.Violations)
			}
		})
	}
}

// A repetition may begin before a client's new session. Then all that came since the new session
// must follow, in order.
func TestRepetitionFromBeforeANewSessionMustEndInOrder(t *testing.T) {
	tests := map[string]struct {
		// versions of the notifications, one each second; 9 is a pause. The new session begins at
		// 1.5 s
		order  []int64
		broken bool
	}{
		"repeated to the end":                 {[]int64{1, 9, 2, 1, 2, 3}, false},
		"what came since is left out":         {[]int64{1, 9, 2, 1, 3}, true},
		"repeated from behind what came last": {[]int64{1, 9, 2, 3, 1, 3}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := watchingAll()
			h.AddGap("a", 1500*time.Millisecond)
			at := time.Duration(0)
			for _, n := range test.order {
				if at += time.Second; n == 9 { // a pause, until repetitions are checked again
					at += resubscribeTime
					continue
				}
				h.AddNote("a", Notification{
					At: at, Key: string(rune('a' + n)), Value: "v",
					Version: version(n),
				})
			}
			if findings := Check(h, conditions()); (len(findings.Violations) > 0) != test.broken {
				t.Errorf("found %v", findings.Violations)
			}
		})
	}
}

// If notifications may have been dropped, a leader may publish one that an earlier leader dropped.
// It must then go on until it reaches what the client already had.
func TestNotesOrderWhereSomeWereGivenUp(t *testing.T) {
	loose := conditions()
	loose.NotificationsComplete = false
	note := func(n int64) Notification {
		return Notification{At: time.Duration(n), Key: "k", Value: "v", Version: version(n)}
	}
	for want, order := range map[bool][]int64{true: {1, 3, 2, 3, 4}, false: {1, 3, 2}} {
		t.Run(fmt.Sprintf("in order: %v", want), func(t *testing.T) {
			h := watchingAll()
			for _, n := range order {
				h.AddNote("a", note(n))
			}
			if findings := Check(h, loose); (len(findings.Violations) == 0) != want {
				t.Errorf("%v: %v", order, findings.Violations)
			}
		})
	}
}

// A history that was saved is the same when it is loaded.
func TestLoadedHistoryIsTheSavedOne(t *testing.T) {
	h := New()
	for _, ops := range histories() {
		for _, o := range ops {
			h.Add(o)
		}
	}
	h.AddNote("a", Notification{At: 5, Key: "k", Version: version(3)})
	h.AddGap("a", 7)
	h.AddOdd("odd")
	h.AddAhead("ahead")
	var file bytes.Buffer
	if err := h.Save(&file); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(&file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range h.Ops {
		if !reflect.DeepEqual(*loaded.Ops[i], *h.Ops[i]) {
			t.Errorf("%+v became %+v", h.Ops[i], loaded.Ops[i])
		}
	}
	if !reflect.DeepEqual([]any{loaded.Notifications, loaded.Gaps, loaded.Odd, loaded.Ahead},
		[]any{h.Notifications, h.Gaps, h.Odd, h.Ahead}) {
		t.Errorf("%+v became %+v", h, loaded)
	}
}

// Each line is a map. After an operation of unknown outcome, its client goes on as another process.
func TestUnknownOutcomeGoesOnAsAnotherProcessInEDN(t *testing.T) {
	h := history([]*Op{
		op("a", Set, "r/1", "x", 0, 1, "OK", 1), op("a", Set, "r/1", "y", 2, 0, "?", 0),
		op("a", Get, "r/1", "", 4, 5, "x", 1),
		op("a", Del, "r/1", "", 6, 7, "1", 1), op("a", VDel, "r/1", "x", 8, 9, "0", 0),
		op("b", Set, "lock/1", "b", 0, 1, "OK", 2),
		op("c", Set, "p/1", "x", 0, 2, "OK", 3), op("c", Get, "p/1", "", 1, 3, "x", 3),
	})
	var knossos, elle strings.Builder
	if err := errors.Join(h.WriteKnossos(&knossos), h.WriteElle(&elle)); err != nil {
		t.Fatal(err)
	}
	want := `{:index 0, :process 0, :type :invoke, :f :write, :value ["r/1" "x"], :time 0}
{:index 1, :process 0, :type :ok, :f :write, :value ["r/1" "x"], :time 1000000000}
{:index 2, :process 0, :type :invoke, :f :write, :value ["r/1" "y"], :time 2000000000}
{:index 3, :process 1, :type :invoke, :f :read, :value ["r/1" nil], :time 4000000000}
{:index 4, :process 1, :type :ok, :f :read, :value ["r/1" "x"], :time 5000000000}
{:index 5, :process 1, :type :invoke, :f :delete, :value ["r/1" nil], :time 6000000000}
{:index 6, :process 1, :type :ok, :f :delete, :value ["r/1" nil], :time 7000000000}
{:index 7, :process 1, :type :invoke, :f :delete-if, :value ["r/1" "x"], :time 8000000000}
{:index 8, :process 1, :type :fail, :f :delete-if, :value ["r/1" "x"], :time 9000000000}
{:index 9, :process 0, :type :info, :f :write, :value ["r/1" "y"], :time nil}
`
	if knossos.String() != want {
		t.Errorf("%s", knossos.String())
	}
	want = `{:index 0, :process 0, :type :invoke, :f :txn, :value [[:w "p/1" "x"]], :time 0}
{:index 1, :process 1, :type :invoke, :f :txn, :value [[:r "p/1" nil]], :time 1000000000}
{:index 2, :process 0, :type :ok, :f :txn, :value [[:w "p/1" "x"]], :time 2000000000}
{:index 3, :process 1, :type :ok, :f :txn, :value [[:r "p/1" "x"]], :time 3000000000}
`
	if elle.String() != want {
		t.Errorf("%s", elle.String())
	}
}

// A transaction is written in Elle's form, as its reads and writes. A condition is written as a
// read.
func TestTransactionsAreWrittenAsReadsAndWrites(t *testing.T) {
	h := history([]*Op{
		bankOp("a", 0, 1, "OK", sets("100 a")[:2]),
		bankOp("a", 2, 3, "-1", move("100 a", "100 b", "90 c", "110 c")),
		bankOp("a", 4, 5, "read 100 a,nil", gets()[:2]),
		op("a", Get, "bank/0/0", "", 6, 7, "100 a", 1), op("b", Get, "r/1", "", 6, 7, "x", 1),
	})
	var elle strings.Builder
	if err := h.WriteElleTransactions(&elle); err != nil {
		t.Fatal(err)
	}
	want := `{:index 0, :process 0, :type :invoke, :f :txn, :value [[:r "bank/0/0" nil] [:w "bank/0/0" "100 a"] [:r "bank/0/1" nil] [:w "bank/0/1" "100 a"]], :time 0}
{:index 1, :process 0, :type :ok, :f :txn, :value [[:r "bank/0/0" nil] [:w "bank/0/0" "100 a"] [:r "bank/0/1" nil] [:w "bank/0/1" "100 a"]], :time 1000000000}
{:index 2, :process 0, :type :invoke, :f :txn, :value [[:r "bank/0/0" "100 a"] [:w "bank/0/0" "90 c"] [:r "bank/0/1" "100 b"] [:w "bank/0/1" "110 c"]], :time 2000000000}
{:index 3, :process 0, :type :fail, :f :txn, :value [[:r "bank/0/0" "100 a"] [:w "bank/0/0" "90 c"] [:r "bank/0/1" "100 b"] [:w "bank/0/1" "110 c"]], :time 3000000000}
{:index 4, :process 0, :type :invoke, :f :txn, :value [[:r "bank/0/0" nil] [:r "bank/0/1" nil]], :time 4000000000}
{:index 5, :process 0, :type :ok, :f :txn, :value [[:r "bank/0/0" "100 a"] [:r "bank/0/1" nil]], :time 5000000000}
{:index 6, :process 0, :type :invoke, :f :txn, :value [[:r "bank/0/0" nil]], :time 6000000000}
{:index 7, :process 0, :type :ok, :f :txn, :value [[:r "bank/0/0" "100 a"]], :time 7000000000}
`
	if elle.String() != want {
		t.Errorf("%s", elle.String())
	}
}

// If a SET of an empty value was refused, an empty value may still come from another SET.
func TestRefusedEmptyValueMayBeWrittenByAnotherSet(t *testing.T) {
	h := history([]*Op{
		op("a", Set, "large/1", "", 0, 1, "ERR "+errorOverloaded, 0),
		op("b", Set, "large/1", "", 2, 3, "OK", 1), op("c", Get, "large/1", "", 4, 5, "", 1),
	})
	if findings := Check(h, conditions()); len(findings.Violations) != 0 {
		t.Error(findings.Violations)
	}
}

// A read is left out if its interval contains that of another read with the same reply. The
// interval of a read begins no earlier than the SET of its value.
func TestOnlyNeededReadsAreJudged(t *testing.T) {
	ops := []*Op{
		op("a", Set, "r/1", "x", 5, 6, "OK", 1), op("b", Get, "r/1", "", 0, 9, "x", 1),
		op("b", Get, "r/1", "", 7, 8, "x", 1), op("b", Get, "r/1", "", 1, 5.5, "x", 1),
		op("b", Get, "r/1", "", 0, 1, "nil", 0), op("b", Get, "r/1", "", 2, 3, "nil", 0),
	}
	var got []string
	for _, o := range toPorcupine(ops, func(*Op) bool { return true })[1:] {
		got = append(got, fmt.Sprint(time.Duration(o.Call), time.Duration(o.Return)))
	}
	slices.Sort(got)
	if want := []string{"0s 1s", "2s 3s", "5s 5.5s", "7s 8s"}; !slices.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
}
