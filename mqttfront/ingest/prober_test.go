package ingest

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// † A session that is too old is not resumed until a clean start has succeeded, even if attempts to connect fail in between.
func TestStaleSessionIsNotResumedBeforeACleanStart(t *testing.T) {
	r := newRig(nil)
	p := r.probes
	p.onConnack(false)
	resumable := func() bool {
		_, ok := p.resumable()
		return ok
	}
	if !resumable() {
		t.Fatal("a session that was just in contact is not resumed")
	}
	if _, _, isProbe := p.handle([]byte("forged")); isProbe {
		t.Fatal("anything is a probe")
	}
	if _, fresh, isProbe := p.handle([]byte("7 0 1")); fresh || !isProbe { // of another process, long ago
		t.Fatal("an old probe counts as fresh")
	}
	for range 2 { // the first attempt fails
		if resumable() {
			t.Error("an old session is resumed")
		}
	}
	if wall, _ := r.contact.Load(); wall != 0 {
		t.Error("a restart would resume it")
	}
	p.onConnack(false)
	if !resumable() {
		t.Error("a new session is not resumed")
	}
}

// A restarted node resumes its session only if its saved contact with the broker is younger than SessionExpiry, and not in the future.
func TestSessionIsResumedOnlyWithinItsExpiry(t *testing.T) {
	for age, want := range map[time.Duration]bool{time.Second: true, 59 * time.Second: true, 61 * time.Second: false, -time.Minute: false} {
		t.Run(fmt.Sprintf("age %v", age), func(t *testing.T) {
			r := newRig(nil)
			_ = r.contact.Save(time.Now().Add(-age).UnixMilli())
			contact, resumed := r.probes.resumable()
			if resumed != want {
				t.Errorf("contact %v ago: resumed %v", age, !want)
			}
			if off := time.Since(contact) - age; resumed && off.Abs() > 10*time.Second {
				t.Errorf("contact %v ago is taken for one %v ago", age, time.Since(contact))
			}
		})
	}
}

// The age of a session is known from the last probe that returned. A reconnect does not make it younger.
func TestAgeOfASessionIsThatOfItsLastProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(nil)
		p := r.probes
		sent := time.Now()
		payload := r.probe(sent)
		time.Sleep(50 * time.Second) // it lay in the queue
		p.handle(payload)
		if since, ok := p.resumable(); !ok || since.After(sent) {
			t.Errorf("resumed %v, with what is younger than %v", ok, since.Sub(sent))
		}
		for range 3 { // connections that end right after SUBACK
			time.Sleep(20 * time.Second)
			p.onConnack(true)
		}
		if since, ok := p.resumable(); ok || since.After(sent) {
			t.Errorf("resumed %v, with what is younger than %v", ok, since.Sub(sent))
		}
		wall, _ := r.contact.Load()
		if wall > sent.UnixMilli() {
			t.Error("a restart would take the session for younger")
		}
	})
}

// † Connections that end before their first probe returns, one after the other, do not make a session younger: the oldest message may still be in it.
func TestConnectionsWithoutAProbeDoNotMakeASessionYounger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(nil)
		r.probes.onConnack(false)
		began := time.Now()
		for n := range 3 {
			time.Sleep(25 * time.Second)
			if since, ok := r.probes.resumable(); ok != (n < 2) || !since.Equal(began) {
				t.Errorf("after %v: resumed %v, with what is younger than %v", time.Since(began), ok, time.Since(since))
			}
			r.probes.onConnack(true)
		}
	})
}

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

// The silence of a session is the time for which it has been down, or has delivered nothing. While it is up, it is not silent if this node does not read.
func TestSessionThatDeliversNothingIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(nil)
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
		r.handler.blocked = true
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

func TestBarrierNeverMovesBack(t *testing.T) {
	b := NewBarrier()
	now := time.Now()
	b.Advance(now)
	b.Advance(now.Add(-time.Second))
	if at := b.Position(); !at.Equal(now) {
		t.Errorf("%v", at.Sub(now))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	b.Await(ended, now.Add(time.Second))
	b.Await(t.Context(), now)
	if b.HasReached(now.Add(time.Second)) || !b.HasReached(now) {
		t.Error("it is elsewhere")
	}
}

// † A probe that an earlier process sent does not move the barrier (this session has delivered all that the broker received before it). The age
// of such a probe depends on the wall clock, so the barrier could move too far.
func TestProbeOfAnEarlierProcessMovesNoBarrier(t *testing.T) {
	r := newRig(nil)
	p := r.probes
	if _, fresh, isProbe := p.handle(fmt.Appendf(nil, "%d 0 %d", p.proberID+1, p.wall()+60_000)); !fresh || !isProbe { // the clock was set back
		t.Fatal("it is not taken for a fresh probe")
	}
	if at := p.barrier.Position(); !at.IsZero() {
		t.Errorf("the barrier is at %v", at)
	}
	if _, _, isProbe := p.handle(fmt.Appendf(nil, "%d %d %d", p.proberID, time.Since(p.start).Microseconds(), p.wall())); !isProbe || p.barrier.Position().IsZero() {
		t.Error("a probe of this process moves no barrier")
	}
}

// † If the process is suspended while the pause detector records the time, that pause counts in the next record.
func TestPauseWhileTheTimeIsRecordedShowsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newPauseDetector()
		d.record(func(time.Duration) { time.Sleep(time.Minute) })
		if gap := d.sinceLast(); gap != time.Minute {
			t.Errorf("the gap is %v", gap)
		}
	})
}
