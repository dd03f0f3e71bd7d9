package replica

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// The writer of a snapshot pauses for four times as long as it worked, for maxPause at most, and
// only after workTime of work.
func TestSnapshotWriterPausesForFourTimesItsWork(t *testing.T) {
	var now time.Duration
	var rests []time.Duration
	var out bytes.Buffer
	w := &pacedWriter{
		w: &out, now: func() time.Duration { return now },
		pause: func(d time.Duration) { rests, now = append(rests, d), now+d },
	}
	for _, worked := range []time.Duration{
		400 * time.Microsecond, 599 * time.Microsecond,
		time.Microsecond, 2 * time.Millisecond, time.Second, 0,
	} {
		now += worked
		if n, err := w.Write([]byte("x")); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := []time.Duration{
		4 * time.Millisecond, 8 * time.Millisecond,
		maxPause,
	}; !slices.Equal(rests, want) {
		t.Errorf("%v, want %v", rests, want)
	}
	if out.String() != "xxxxxx" {
		t.Errorf("%q was written", out.String())
	}
}
