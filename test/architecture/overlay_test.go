package architecture

import (
	"go/build/constraint"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOnlyTheSimulationEditsTheRuntime: only the simulation imports the packages that edit Go's
// runtime and that use the edits.
func TestOnlyTheSimulationEditsTheRuntime(t *testing.T) {
	users := map[string][]string{
		"holdfast/test/sim/golib":    {"holdfast/test/sim/simulate"},
		"holdfast/test/sim/schedule": {"holdfast/test/sim", "holdfast/test/sim/simulate"},
	}
	for _, p := range sources(t, "holdfast/...") {
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if allowed, restricted := users[imported]; restricted &&
				!slices.Contains(allowed, p.ImportPath) {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
}

// TestProductHasNoBuildTags: the only build tags of the product are operating systems. Tests that
// need another product edit its source (test/mutants).
func TestProductHasNoBuildTags(t *testing.T) {
	systems := []string{"linux", "unix"}
	for _, p := range sources(t, "holdfast/...") {
		if p.Module == nil || !p.Module.Main || strings.HasPrefix(p.ImportPath, "holdfast/test/") {
			continue
		}
		names, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			content, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(content)) {
				if !constraint.IsGoBuild(line) {
					continue
				}
				expression, err := constraint.Parse(strings.TrimSpace(line))
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				expression.Eval(func(tag string) bool {
					if !slices.Contains(systems, tag) {
						t.Errorf("%s: build tag %s", name, tag)
					}
					return true
				})
			}
		}
	}
}
