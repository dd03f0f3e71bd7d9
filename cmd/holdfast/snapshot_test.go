package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A snapshot whose name has a future time is of a clock that was ahead. It counts as the oldest:
// otherwise it would displace the snapshot that was just saved.
func TestSnapshotsWithFutureTimesAreRemovedFirst(t *testing.T) {
	const yesterday, today = "holdfast-2025-12-31T000000Z.snap", "holdfast-2026-01-01T000000Z.snap"
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	future := []string{
		"holdfast-2997-01-01T000000Z.snap", "holdfast-2998-01-01T000000Z.snap",
		"holdfast-2999-01-01T000000Z.snap",
	}
	for name, test := range map[string]struct {
		keep int
		want []string
	}{
		"one":               {1, []string{today}},
		"two":               {2, []string{yesterday, today}},
		"as many as before": {3, []string{yesterday, today, future[2]}},
		"more":              {9, append([]string{yesterday, today}, future...)},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			for _, file := range append([]string{yesterday, today}, future...) {
				if err := os.WriteFile(filepath.Join(folder, file), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := removeOld(folder, test.keep, now); err != nil {
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
