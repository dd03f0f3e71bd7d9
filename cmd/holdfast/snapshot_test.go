package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The snapshot that was just saved is never removed, also if the clock was ahead before: then the names of older ones have later times.
func TestSavedSnapshotIsKept(t *testing.T) {
	const added = "holdfast-2026-01-01T000000Z.snap"
	future := []string{"holdfast-2997-01-01T000000Z.snap", "holdfast-2998-01-01T000000Z.snap", "holdfast-2999-01-01T000000Z.snap"}
	for name, test := range map[string]struct {
		keep int
		want []string
	}{
		"one":               {1, []string{added}},
		"two":               {2, []string{added, future[2]}},
		"as many as before": {3, []string{added, future[1], future[2]}},
		"more":              {9, append([]string{"holdfast-2001-01-01T000000Z.snap", added}, future...)},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			for _, file := range append([]string{"holdfast-2001-01-01T000000Z.snap", added}, future...) {
				if err := os.WriteFile(filepath.Join(folder, file), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := removeOld(folder, test.keep, added); err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(folder)
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, entry := range entries {
				left = append(left, entry.Name())
			}
			if !slices.Equal(left, test.want) {
				t.Errorf("%q are left, want %q", left, test.want)
			}
		})
	}
}
