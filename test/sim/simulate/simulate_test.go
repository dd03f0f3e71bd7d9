package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/test/history"
	"holdfast/test/mutants"
	"holdfast/test/sim"
	"holdfast/test/sim/schedule"
)

func TestShrinkLeavesWhatIsNeeded(t *testing.T) {
	tried := 0
	s := shrinker{
		duration: 2 * time.Minute,
		fails: func(duration time.Duration, without []string) bool {
			tried++
			return duration >= 23*time.Second && !slices.Contains(without, "3") &&
				!slices.Contains(without, "17") && !slices.Contains(without, "writer-0")
		},
	}
	var faults []string
	for i := range 30 {
		faults = append(faults, strconv.Itoa(i+1))
	}
	clients := []string{"writer-0", "locker-0", "locker-1"}
	s.shorten()
	s.leaveOut(slices.Clone(faults))
	s.leaveOut(slices.Clone(clients))
	s.shorten()
	left := slices.DeleteFunc(slices.Concat(faults, clients),
		func(part string) bool { return slices.Contains(s.without, part) })
	if want := []string{"3", "17", "writer-0"}; !slices.Equal(left, want) {
		t.Errorf("%v are left, not %v", left, want)
	}
	if s.duration < 23*time.Second || s.duration > 25*time.Second {
		t.Errorf("%v are left", s.duration)
	}
	if tried > 100 {
		t.Errorf("%d runs", tried)
	}
	text := describeRun(&sim.Result{
		Plan: make([]string, 30), Again: "make sim",
		Violations: []history.Violation{{Check: "other"}, {Check: "fencing", Text: "a\nb"}},
	}, &s,
		"fencing")
	if lines := strings.Count(text, "\n"); lines != 6 || !strings.Contains(text, "fencing: a\n") ||
		!strings.Contains(text, "fault 17") {
		t.Errorf("%d lines:\n%s", lines, text)
	}
}

func TestFirstDifferenceNamesTheFunctions(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := symbolTable(program)
	if err != nil {
		t.Fatal(err)
	}
	here, there := symbols.LookupFunc(
		"holdfast/test/sim/simulate.TestFirstDifferenceNamesTheFunctions"),
		symbols.LookupFunc("testing.tRunner")
	if here == nil || there == nil {
		t.Fatal("this program has no functions")
	}
	const at = 5000
	var files [2]string
	for i := range files {
		switches := make([]schedule.Switch, at+10)
		for j := range switches {
			switches[j] = schedule.Switch{Goroutine: uint64(j), PC: here.Entry + 4}
		}
		switches[at].Frames[0] = []uint64{0, there.Entry + 4}[i]
		files[i] = filepath.Join(t.TempDir(), "switches")
		file, err := os.Create(files[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := binary.Write(file, binary.LittleEndian, switches); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := firstDifference(program, files)
	if err != nil {
		t.Fatal(err)
	}
	once, again, _ := strings.Cut(text, "second run:")
	if !strings.HasPrefix(text, "switch 5000\n") ||
		!strings.Contains(once, "TestFirstDifference") || strings.Contains(once, "tRunner") ||
		!strings.Contains(again, "testing.tRunner") {
		t.Error(text)
	}
	same, err := firstDifference(program, [2]string{files[0], files[0]})
	if err != nil || !strings.Contains(same, "are the same") {
		t.Errorf("%q, %v", same, err)
	}
}

func TestRecordedPairsCanBeRead(t *testing.T) {
	known, err := recorded()
	if err != nil || len(known) == 0 {
		t.Fatalf("%v, %v", known, err)
	}
}

// A run whose only failure is one that pairs.txt lists as open does not count as failed. It counts
// as failed if it does not show that failure any more.
func TestKnownFindingsAreNoFailures(t *testing.T) {
	known := map[pair]finding{
		{1, 2}: {open: true, checks: []string{"fencing"}, name: "x"},
		{1, 4}: {open: true, checks: []string{"end"}, name: "y"},
	}
	result := func(schedule uint64, checks ...string) *sim.Result {
		r := &sim.Result{Seed: 1, Schedule: schedule}
		for _, check := range checks {
			r.Violations = append(r.Violations, history.Violation{Check: check})
		}
		return r
	}
	for name, test := range map[string]struct {
		result *sim.Result
		failed bool
	}{
		"known":              {result(2, "fencing", "fencing"), false},
		"known, and another": {result(2, "fencing", "versions"), true},
		"gone":               {result(2), true},
		"known, of a crash":  {result(4, "end"), false},
		"another run":        {result(3, "fencing"), true},
		"well":               {result(3), false},
	} {
		t.Run(name, func(t *testing.T) {
			total := newTotal()
			total.add(test.result, known)
			if failed := len(total.failures) > 0; failed != test.failed {
				t.Errorf("failed: %t", failed)
			}
		})
	}
}

func TestMutantsNameFaultsThatThereAre(t *testing.T) {
	for _, m := range mutants.All() {
		for _, kind := range m.Faults {
			if !slices.Contains(sim.Kinds(), kind) {
				t.Errorf("%s is to be shown by %q, which is no kind of fault", m.Name, kind)
			}
		}
	}
}
