package node

import (
	"strings"
	"testing"

	"holdfast/fsm"
)

func TestNearLimitsAreNoted(t *testing.T) {
	const memory = 16 << 30
	for name, test := range map[string]struct {
		change func(*fsm.Limits, *fsm.Status)
		memory int64
		want   string // a part of the only note; empty for none
	}{
		"an empty store": {func(*fsm.Limits, *fsm.Status) {}, memory, ""},
		"watches below 80 %": {
			func(_ *fsm.Limits, s *fsm.Status) { s.Watches = 79_999 }, memory,
			"",
		},
		"watches": {
			func(_ *fsm.Limits, s *fsm.Status) { s.Watches = 80_000 }, memory,
			"limits.watches: 80000 of 100000",
		},
		"bytes": {
			func(_ *fsm.Limits, s *fsm.Status) { s.Bytes = 1 << 30 }, memory,
			"limits.totalBytes: 1073741824 of 1073741824 are used; at the limit what would grow " +
				"is refused; `holdfast keys owners` says by whom",
		},
		"keys": {
			func(l *fsm.Limits, s *fsm.Status) { l.Keys, s.Keys = 1000, 900 },
			memory, "limits.keys: 900 of 1000",
		},
		"no limit of keys": {func(_ *fsm.Limits, s *fsm.Status) { s.Keys = 1 << 30 }, memory, ""},
		"outcomes": {
			func(_ *fsm.Limits, s *fsm.Status) { s.Remembered = 7_000_000 },
			memory, "limits.dedupEntries: 7000000 of 8000000",
		},
		"a small machine": {
			func(*fsm.Limits, *fsm.Status) {}, 1 << 30,
			"it would be killed before the store is full",
		},
		"just enough memory": {func(*fsm.Limits, *fsm.Status) {}, 2 << 30, ""},
		"no limit of bytes": {
			func(l *fsm.Limits, _ *fsm.Status) { l.TotalBytes = 0 }, 1 << 20,
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			limits, status := fsm.DefaultSettings().Limits, fsm.Status{}
			test.change(&limits, &status)
			notes := limitNotes(&limits, &status, test.memory)
			if test.want == "" && len(notes) > 0 || test.want != "" &&
				(len(notes) != 1 || !strings.Contains(notes[0], test.want)) {
				t.Errorf("%q, want %q", notes, test.want)
			}
		})
	}
}

// After an hour in which the clocks of a majority were wrong, versions are an hour ahead: that is
// noted.
func TestVersionsAheadOfTheClockAreNoted(t *testing.T) {
	const clock = 1_700_000_000_000
	for newest, want := range map[int64]bool{
		0: false, clock - 1: false, clock + 60_000: false,
		clock + 3_600_000: true,
	} {
		if note := aheadNote(newest, clock); (note != "") != want || want &&
			!strings.Contains(note, "1h0m0s ahead") {
			t.Errorf("%d ms ahead: %q", newest-clock, note)
		}
	}
	if note := aheadNote(clock, 0); note != "" {
		t.Errorf("without a clock: %q", note)
	}
}
