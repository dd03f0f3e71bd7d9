package session

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Round trips of about 40 ms show that the broker uses Nagle's algorithm, which is logged once. Shorter and longer ones do not show that.
func TestNagleIsLoggedOnce(t *testing.T) {
	for took, want := range map[time.Duration]int{41 * time.Millisecond: 1, time.Millisecond: 0, 100 * time.Millisecond: 0} {
		t.Run(took.String(), func(t *testing.T) {
			var n nagle
			logged := 0
			for range 10 * nagleTrips {
				if n.trip(took) {
					logged++
				}
			}
			if logged != want {
				t.Errorf("%v: logged %d times", took, logged)
			}
		})
	}
}

// The silence of a session is the time for which it has been down, or has delivered nothing. While it is up, it is not silent
// if this node does not read.
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

// What the broker received before a probe was sent has been delivered when the probe returns. A probe that returns out of order
// does not take that back. Nor does it count if an earlier process sent it: its age depends on the wall clock.
func TestReturnOfAProbeShowsWhatIsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newOwn(nil)
		p := s.probes
		if _, age, isProbe := p.handle(fmt.Appendf(nil, "%d 0 %d", p.proberID+1, p.wall()+60_000)); age > 0 || !isProbe { // the clock was set back
			t.Fatal("it is not taken for a young probe")
		}
		began := time.Now()
		if p.hasDelivered(began) {
			t.Error("a probe of another process counts")
		}
		time.Sleep(time.Second)
		p.handle(s.probe(time.Now()))
		p.handle(s.probe(began))
		if !p.hasDelivered(time.Now()) || p.hasDelivered(time.Now().Add(time.Second)) {
			t.Error("it counts for another moment")
		}
	})
}
