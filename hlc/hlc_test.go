package hlc

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestTimestampsAreParsedWithoutOverflow(t *testing.T) {
	for _, test := range []struct {
		text string
		want Timestamp
		ok   bool
	}{
		{"1696374425000:0:CLIENT", Timestamp{1696374425000, 0, "CLIENT"}, true},
		{"000001696374425000:00000:c", Timestamp{1696374425000, 0, "c"}, true},
		{"0:0:a b", Timestamp{0, 0, "a b"}, true},
		{
			"9223372036854775807:18446744073709551615:n",
			Timestamp{math.MaxInt64, math.MaxUint64, "n"},
			true,
		},
		{strings.Repeat("0", 400) + "7:1:n", Timestamp{7, 1, "n"}, true},
		{"9223372036854775808:0:n", Timestamp{}, false},
		{"1:18446744073709551616:n", Timestamp{}, false},
		{"1:0:", Timestamp{}, false},
		{"1:0:a:b", Timestamp{}, false},
		{"1:0", Timestamp{}, false},
		{"1", Timestamp{}, false},
		{"", Timestamp{}, false},
		{"::n", Timestamp{}, false},
		{"-1:0:n", Timestamp{}, false},
		{"+1:0:n", Timestamp{}, false},
		{" 1:0:n", Timestamp{}, false},
		{"1_0:0:n", Timestamp{}, false},
		{"1:0x1:n", Timestamp{}, false},
		{"1:٣:n", Timestamp{}, false},
	} {
		t.Run(test.text, func(t *testing.T) {
			got, err := Parse(test.text)
			if (err == nil) != test.ok || got != test.want {
				t.Errorf("Parse(%q) = %v, %v; want %v, ok %v", test.text, got, err, test.want,
					test.ok)
			}
			if err != nil && !errors.Is(err, ErrMalformed) {
				t.Errorf("Parse(%q): %v does not wrap ErrMalformed", test.text, err)
			}
		})
	}
}

// The worked example on the page of the public state store protocol.
func TestReceiveFollowsTheWorkedExample(t *testing.T) {
	var clock Clock
	got := clock.Receive(Timestamp{1696374425000, 0, "CLIENT"},
		1696374425000).Timestamp(StoreNodeID)
	if got.String() != "1696374425000:1:StateStore" {
		t.Fatalf("got %s", got)
	}
}

func TestReceiveAdvancesTheClock(t *testing.T) {
	for _, test := range []struct {
		name    string
		clock   Clock
		message Timestamp
		wall    int64
		want    Clock
	}{
		{"all equal", Clock{5, 2}, Timestamp{5, 7, "c"}, 5, Clock{5, 8}},
		{"own is ahead", Clock{9, 2}, Timestamp{5, 7, "c"}, 5, Clock{9, 3}},
		{"message is ahead", Clock{5, 2}, Timestamp{9, 7, "c"}, 5, Clock{9, 8}},
		{"wall is ahead", Clock{5, 2}, Timestamp{6, 7, "c"}, 9, Clock{9, 0}},
		{"wall equals message", Clock{5, 2}, Timestamp{9, 7, "c"}, 9, Clock{9, 8}},
		{"counter carries", Clock{5, CounterLimit - 1}, Timestamp{5, 0, "c"}, 5, Clock{6, 0}},
		{"foreign counter carries", Clock{4, 0}, Timestamp{5, math.MaxUint64, "c"}, 5, Clock{6, 0}},
		{
			"last counter",
			Clock{5, CounterLimit - 2},
			Timestamp{1, 0, "c"},
			5,
			Clock{5, CounterLimit - 1},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := test.clock
			if got := clock.Receive(test.message, test.wall); got != test.want ||
				clock != test.want {
				t.Errorf("%s: got %v, want %v", test.name, got, test.want)
			}
		})
	}
}

// A timestamp is too far ahead if it is more than MaxSkew (one minute) ahead of the receiver's wall
// clock.
func TestTimestampBeyondMaxSkewIsTooFarAhead(t *testing.T) {
	for _, test := range []struct {
		t    int64
		wall int64
		want bool
	}{
		{100_000, 40_000, false},
		{100_001, 40_000, true},
		{1, 40_000, false},
		{math.MaxInt64, 0, true},
		{math.MaxInt64, math.MinInt64, true},
		{60_000, -5, false},
	} {
		t.Run(fmt.Sprintf("%d at %d", test.t, test.wall), func(t *testing.T) {
			if got := (Timestamp{Wall: test.t}).TooFarAhead(test.wall); got != test.want {
				t.Errorf("%d against %d: %v", test.t, test.wall, got)
			}
		})
	}
}

func TestClockIsMonotonic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.OneOf(rapid.Int64Range(0, 6),
			rapid.Int64Range(math.MaxInt64-6, math.MaxInt64-5))
		counters := rapid.OneOf(rapid.Uint64Range(0, 3),
			rapid.Uint64Range(CounterLimit-3, CounterLimit+1), rapid.Just(uint64(math.MaxUint64)))
		var clock Clock
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			before := clock.Timestamp(StoreNodeID)
			message := Timestamp{small.Draw(t, "lm"), counters.Draw(t, "cm"), "c"}
			if rapid.Bool().Draw(t, "receive") {
				clock.Receive(message, small.Draw(t, "pt"))
				if got := clock.Timestamp(""); !message.Before(got) {
					t.Fatalf("%v is not after the message %v", got, message)
				}
			} else {
				clock.Now(small.Draw(t, "pt"))
			}
			if !before.Before(clock.Timestamp(StoreNodeID)) {
				t.Fatalf("%v is not after %v", clock, before)
			}
			if clock.Counter >= CounterLimit {
				t.Fatalf("counter %d", clock.Counter)
			}
		}
	})
}

func TestOrderIsTotal(t *testing.T) {
	gen := rapid.Custom(func(t *rapid.T) Timestamp {
		return Timestamp{
			rapid.Int64Range(0, 2).Draw(t, "l"), rapid.Uint64Range(0, 2).Draw(t, "c"),
			rapid.SampledFrom([]string{"a", "b", "aa"}).Draw(t, "n"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := gen.Draw(t, "a"), gen.Draw(t, "b"), gen.Draw(t, "c")
		if a.Compare(b) != -b.Compare(a) || (a.Compare(b) == 0) != (a == b) {
			t.Fatalf("%v and %v", a, b)
		}
		if a.Before(b) && b.Before(c) && !a.Before(c) {
			t.Fatalf("%v < %v < %v", a, b, c)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"1696374425000:0:CLIENT", "0001:00002:x", "::", "1:2:3:4",
		"9223372036854775808:0:n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		first, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(first.String())
		if err != nil || again != first {
			t.Fatalf("%q: %v, then %v, %v", text, first, again, err)
		}
	})
}
