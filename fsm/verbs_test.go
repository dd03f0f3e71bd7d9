package fsm

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"holdfast/hlc"
	"holdfast/internal/glob"
)

// verb is a command whose time and allocations are measured.
type verb struct {
	name        string
	allocations float64 // of one run, at most; lower it when a change saves some
	prepare     func(l *testLeader)
	run         func(l *testLeader, n int)
}

// applyOnly applies an entry, and keeps nothing of it.
func (l *testLeader) applyOnly(command *Command) *EntryOutcome {
	l.number++
	l.index++
	outcome, err := l.m.Apply(l.index, l.term,
		AppendEntry(nil, &Entry{
			Term: l.term, Number: l.number, Wall: l.wall,
			Commands: []Command{*command},
		}))
	if err != nil {
		l.t.Fatal(err)
	}
	return outcome
}

// verbs returns SET and the commands that only Holdfast has. Each write is in an entry of its own.
func verbs() []verb {
	key := func(n int) string { return fmt.Sprintf("line-%d/state", n%1000) }
	value := strings.Repeat("v", 100)
	set := func(l *testLeader, n int) {
		command := l.set(key(n), value, id(l.newID()))
		l.applyOnly(&command)
	}
	none := func(*testLeader) {}
	full := func(l *testLeader) {
		for n := range 10_000 {
			command := l.set(fmt.Sprintf("line-%05d/state", n), value)
			l.applyOnly(&command)
		}
	}
	everything, err := glob.Compile("*")
	if err != nil {
		panic(err)
	}
	var version hlc.Timestamp
	return []verb{
		{"SET", 17, none, set},
		{"SET IFVER", 17, func(l *testLeader) {
			command := l.set("guarded", value)
			version, _ = l.applyOnly(&command).Results[0].Version()
		}, func(l *testLeader, _ int) {
			command := l.set("guarded", value, id(l.newID()))
			command.Condition, command.ExpectedVersion = IfVersion, version
			version, _ = l.applyOnly(&command).Results[0].Version()
		}},
		{"TXN of one SET", 24, none, func(l *testLeader, n int) {
			command := l.txn(l.set(key(n), value))
			command.ID = l.newID()
			l.applyOnly(&command)
		}},
		{"SET of a mirrored key", 18, func(l *testLeader) {
			l.configure(func(s *Settings) { s.Mirrors = []Mirror{{Keys: "*", Topic: "mirror/"}} })
		}, set},
		{"SET beside 10,000 patterns", 17, func(l *testLeader) {
			for n := range 10_000 {
				l.do(watchingPattern(fmt.Sprint("c", n%100), fmt.Sprintf("site-%d/*/state", n)))
			}
		}, set},
		{
			"SCAN, a page of 1,000 keys", 34, full,
			func(l *testLeader, _ int) { l.m.Read(scanOf("*", nil)) },
		},
		{
			"export, a page of 1,000 keys", 12, full,
			func(l *testLeader, _ int) { l.m.Export(everything, "") },
		},
	}
}

func BenchmarkVerbs(b *testing.B) {
	for _, v := range verbs() {
		b.Run(v.name, func(b *testing.B) {
			l := newLeader(b)
			v.prepare(l)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				v.run(l, n)
			}
		})
	}
}

func TestAllocationsOfVerbsAreBounded(t *testing.T) {
	if os.Getenv("HOLDFAST_ALLOCATIONS") == "" {
		t.Skip("HOLDFAST_ALLOCATIONS is not set: make allocations (the race detector allocates, too)")
	}
	for _, v := range verbs() {
		t.Run(v.name, func(t *testing.T) {
			l := newLeader(t)
			v.prepare(l)
			n := 0
			run := func() { v.run(l, n); n++ }
			for range 2000 {
				run()
			}
			got := testing.AllocsPerRun(1000, run)
			t.Logf("%.1f allocations", got)
			if got > v.allocations {
				t.Errorf("%.1f allocations, want at most %.0f", got, v.allocations)
			}
		})
	}
}
