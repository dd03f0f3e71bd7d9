package mutants

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMutantsCompile also checks that the old text of each edit occurs exactly once: Overlay fails
// otherwise.
func TestMutantsCompile(t *testing.T) {
	names := make(map[string]bool)
	for _, m := range append(All(), NextVersion(), SkewedClock(), NoBootTime()) {
		t.Run(m.Name, func(t *testing.T) {
			if names[m.Name] {
				t.Fatal("two mutants have this name")
			}
			names[m.Name] = true
			folder := t.TempDir()
			written, err := Overlay(t.Context(), folder, m)
			if err != nil {
				t.Fatal(err)
			}
			if output, err := exec.Command("go", "build", "-overlay", written, "holdfast/fsm",
				"holdfast/cluster", "holdfast/mqttfront",
				"holdfast/client").CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, output)
			}
		})
	}
}

func TestFindNamesWhatIsUnknown(t *testing.T) {
	if m, err := Find("dedup_off"); err != nil || m.Name != "dedup_off" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := Find("nothing"); !errors.Is(err, ErrUnknown) ||
		!strings.Contains(err.Error(), "nothing") {
		t.Errorf("a mutant that does not exist: %v", err)
	}
}

// The old text of each edit occurs exactly once, also of the mutants that only make test-mutants
// runs.
func TestEditsFit(t *testing.T) {
	for _, m := range ByTests() {
		t.Run(m.Name, func(t *testing.T) {
			if _, err := Overlay(t.Context(), t.TempDir(), m.Mutant); err != nil {
				t.Error(err)
			}
		})
	}
}

// Each mutant of the list is caught by the test that the list names.
func TestMutantsAreCaughtByTests(t *testing.T) {
	if os.Getenv("HOLDFAST_MUTANTS") == "" {
		t.Skip("make test-mutants runs it: it builds a package for each mutant")
	}
	for _, m := range ByTests() {
		t.Run(m.Name, func(t *testing.T) {
			if err := m.Caught(t.Context(), t.TempDir()); err != nil {
				t.Error(err)
			}
		})
	}
}
