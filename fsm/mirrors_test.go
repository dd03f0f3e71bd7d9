package fsm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"holdfast/hlc"
)

// byTheRules returns by topic what the mirrors of TestMirroredKeysAreWhatChanged should show. It
// gets each key as a client would.
func (l *testLeader) byTheRules() map[string]string {
	all := make(map[string]string)
	for _, letter := range "ab" {
		for number := range 10 {
			for _, behind := range []string{"", "x"} {
				key := fmt.Sprintf("%c%d%s", letter, number, behind)
				topic := ""
				switch {
				case behind == "" && letter == 'a' && number < 5:
					topic = "low/"
				case letter == 'a':
					topic = "a/"
				case behind == "" && number == 7:
					topic = "seven/"
				}
				if read := l.get(key); topic != "" && read.Code == CodeValue {
					all[topic+key] = read.Value + " " +
						read.version.Timestamp(hlc.StoreNodeID).String()
				}
			}
		}
	}
	return all
}

// shown returns what the mirrors show, from the whole state.
func (l *testLeader) shown() map[string]string {
	all := make(map[string]string)
	for after, more := "", true; more; {
		after, more = l.m.ScanMirrored(after, 3, func(key string, shown Mirrored) {
			all[shown.Topic+key] = shown.Value + " " + shown.Version.String()
		})
	}
	return all
}

// follow updates copied with the mirrored keys that an entry changed.
func (l *testLeader) follow(copied map[string]string, outcome *EntryOutcome) {
	for _, changed := range outcome.Mirrored {
		value, ok := l.m.Mirrored(changed.Key)
		if !ok || value.Topic != changed.Topic {
			l.t.Fatalf("%+v has no mirror like that", changed)
		}
		if value.Exists {
			copied[value.Topic+changed.Key] = value.Value + " " + value.Version.String()
		} else {
			delete(copied, value.Topic+changed.Key)
		}
	}
}

// A copy that is updated with the EntryOutcome.Mirrored of each entry equals what the mirrors show.
func TestMirroredKeysAreWhatChanged(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := newLeader(t)
		l.configure(func(s *Settings) {
			s.Mirrors = []Mirror{
				{Keys: "a[0-4]", Topic: "low/"},
				{Keys: "a*", Topic: "a/"},
				{Keys: "?7", Topic: "seven/"},
			}
		})
		copied := make(map[string]string)
		for step := range 300 {
			key := fmt.Sprintf("%c%d", "ab"[r.IntN(2)], r.IntN(10))
			set := l.set(key, fmt.Sprint(step), ttl(int64(r.IntN(2)*(1+r.IntN(500)))),
				id(l.newID()))
			var outcome *EntryOutcome
			switch r.IntN(6) {
			case 0, 1:
				outcome = l.apply(set, l.set(key+"x", "y"))
			case 2:
				outcome = l.apply(del(key), set)
			case 3:
				outcome = l.apply(vdel(key, fmt.Sprint(step-1)))
			case 4:
				outcome = l.apply(Command{
					Kind: KindTxn, ID: l.newID(), Principal: client("c"), Timestamp: stamp(l.wall),
					Lifetime:   180_000,
					Operations: []Command{del("a1"), l.set("a5", "txn"), l.set("b7", "txn")},
				})
			default:
				outcome = l.pass(int64(r.IntN(200)))
			}
			l.follow(copied, outcome)
			want := l.byTheRules()
			if scanned := l.shown(); !maps.Equal(copied, want) || !maps.Equal(scanned, want) {
				t.Fatalf("seed %d, step %d: followed %v, scanned %v, want %v", seed, step, copied,
					scanned, want)
			}
		}
		if len(copied) == 0 {
			t.Fatalf("seed %d: nothing is mirrored", seed)
		}
	}
}

func TestFirstMirrorThatMatchesShowsTheKey(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) {
		s.Mirrors = []Mirror{
			{Keys: "line/*", Topic: "lines/"},
			{Keys: "*", Topic: "all/"},
		}
	})
	for name, test := range map[string]struct {
		key, topic string
		ok         bool
	}{
		"the first":         {"line/7", "lines/", true},
		"the second":        {"press/1", "all/", true},
		"no text":           {"line/\xff", "", false},
		"the longest":       {"line/" + strings.Repeat("x", 4091), "lines/", true},
		"longer than those": {"line/" + strings.Repeat("x", 4092), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			if shown, ok := l.m.Mirrored(test.key); shown.Topic != test.topic || ok != test.ok {
				t.Errorf("%q, %v", shown.Topic, ok)
			}
		})
	}
}

// A call of ScanMirrored ends early if it takes many comparisons to find the mirrors of its keys.
func TestScanOfMirrorsIsBounded(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) {
		for i := range MaxMirrors {
			s.Mirrors = append(s.Mirrors,
				Mirror{Keys: fmt.Sprintf("*[a-é][a-é][a-é][a-é][a-é]z*%d?q", i), Topic: "t/"})
		}
	})
	for i := range 50 {
		l.apply(l.set(strings.Repeat("ab", 2000)+fmt.Sprint(i), "v"))
	}
	pages := 0
	for after, more := "", true; more; pages++ {
		after, more = l.m.ScanMirrored(after, 1000, func(string, Mirrored) {})
	}
	if pages < 10 {
		t.Errorf("%d pages", pages)
	}
}

// A key that has expired and is not removed yet is absent for its mirror, too.
func TestDueKeyIsNotShown(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Mirrors = []Mirror{{Keys: "*", Topic: "all/"}} })
	l.apply(l.set("k", "v", ttl(10)))
	found, _ := l.m.values.find([]byte("k"))
	l.m.now = found.deadline
	if shown, ok := l.m.Mirrored("k"); !ok || shown.Exists || len(l.shown()) != 0 {
		t.Errorf("%+v, %v, %v", shown, ok, l.shown())
	}
}

func TestMirrorsThatNoMemberCanReadAreRefused(t *testing.T) {
	for name, mirrors := range map[string][]Mirror{
		"a pattern that is not closed": {{Keys: "a[", Topic: "t/"}},
		"no pattern":                   {{Topic: "t/"}},
		"too many":                     make([]Mirror, MaxMirrors+1),
	} {
		t.Run(name, func(t *testing.T) {
			if name == "too many" {
				for i := range mirrors {
					mirrors[i].Keys = "*"
				}
			}
			l := newLeader(t)
			settings := DefaultSettings()
			settings.Mirrors = mirrors
			data := AppendEntry(nil,
				&Entry{
					Term: l.term, Number: 1, Wall: l.wall,
					Commands: []Command{{Kind: KindConfigure, Settings: &settings}},
				})
			if _, err := l.m.Apply(l.index+1, l.term, data); err == nil {
				t.Error("applied")
			}
		})
	}
}

// BenchmarkSetWithMirrors measures a SET of a key that matches no mirror, with none, one and
// MaxMirrors of them.
func BenchmarkSetWithMirrors(b *testing.B) {
	for _, count := range []int{0, 1, MaxMirrors} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			l := newLeader(b)
			l.configure(func(s *Settings) {
				for i := range count {
					s.Mirrors = append(s.Mirrors,
						Mirror{Keys: fmt.Sprintf("lines/%d/*", i), Topic: "lines/"})
				}
			})
			b.ReportAllocs()
			for b.Loop() {
				l.apply(l.set("machines/7/state", "running"))
			}
		})
	}
}
