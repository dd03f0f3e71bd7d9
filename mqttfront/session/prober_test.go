package session

import (
	"testing"
	"testing/synctest"
	"time"
)

// Round trips of about 40 ms show that the broker uses Nagle's algorithm, and operators are told
// while it does. Shorter and longer ones do not show that.
func TestNagleIsNoted(t *testing.T) {
	for took, want := range map[time.Duration]int{
		41 * time.Millisecond: 1, time.Millisecond: 0,
		100 * time.Millisecond: 0,
	} {
		t.Run(took.String(), func(t *testing.T) {
			s := newOwn(nil)
			trips := func(took time.Duration) { // of a connection; the later ones do not count
				s.probes.nagle.begin()
				for range nagleTrips {
					s.probes.nagle.trip(took)
				}
				for range 2 * nagleTrips {
					s.probes.nagle.trip(time.Microsecond)
				}
			}
			trips(took)
			if got := len(s.Notes()); got != want {
				t.Errorf("%v: %d notes", took, got)
			}
			if trips(time.Millisecond); len(s.Notes()) != 0 {
				t.Error("it is noted when it is over")
			}
		})
	}
}

// The silence of a session is the time for which it has been down, or has delivered nothing. While
// it is up, it is not silent if this node does not read.
func TestSessionThatDeliversNothingIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newOwn(nil)
		time.Sleep(time.Minute)
		if s := r.Silence(time.Now()); s != time.Minute || r.Err() == nil {
			t.Errorf("not connected for a minute: %v, %v", s, r.Err())
		}
		up := time.Now()
		r.setStatus(true, "connected")
		if s := r.Silence(time.Now()); s != 0 || r.Err() != nil {
			t.Errorf("just up: %v, %v", s, r.Err())
		}
		time.Sleep(time.Minute)
		if s := r.Silence(time.Now()); s != time.Minute || r.Err() == nil {
			t.Errorf("nothing came for a minute: %v, %v", s, r.Err())
		}
		r.status.blocked = func() bool { return true }
		if s := r.Silence(time.Now()); s != 0 {
			t.Errorf("this node does not read: %v", s)
		}
		if !r.UpSince(up) || r.UpSince(up.Add(-1)) {
			t.Error("wrong since when the session is up")
		}
		if r.setStatus(false, "lost"); r.UpSince(time.Now()) || r.Silence(time.Now()) != 0 {
			t.Error("up although it was lost")
		}
	})
}

// What the broker received before a probe was sent has been delivered when the probe returns. A
// probe that comes out of order does not count: one that was sent later has returned.
func TestReturnOfAProbeShowsWhatIsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newOwn(nil).probes
		began := time.Now()
		if p.hasDelivered(began) {
			t.Error("before a probe has returned")
		}
		c := &connection{}
		_, first := p.begin(c)
		time.Sleep(time.Second)
		_, second := p.begin(c)
		time.Sleep(time.Second)
		if _, _, ok := p.returned(second, c); !ok || !p.hasDelivered(began.Add(time.Second)) ||
			p.hasDelivered(time.Now()) {
			t.Error("it counts for another moment")
		}
		if _, _, ok := p.returned(first, c); ok || !p.disorder {
			t.Error("a probe that was overtaken counts")
		}
		number, third := p.begin(c)
		p.forget(number) // the broker refused it
		if _, _, ok := p.returned(third, c); ok {
			t.Error("a probe that the broker refused counts")
		}
	})
}
