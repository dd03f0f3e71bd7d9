package schedule

import (
	"testing"
	"time"
)

func TestScheduleIsDrawnFromItsSeed(t *testing.T) {
	if s := Draw(7, 0); s != (Settings{Seed: s.Seed}) {
		t.Errorf("schedule 0 is not Go's own order: %v", s)
	}
	if Draw(7, 3) != Draw(7, 3) {
		t.Error("a schedule is another one each time")
	}
	picks, others := make(map[Pick]bool), make(map[Settings]bool)
	for schedule := range uint64(200) {
		s := Draw(7, schedule)
		picks[s.Pick], others[s] = true, true
		if sum := s.Stop + s.Delay + s.Demote + s.Yield; sum >= 0.5 {
			t.Errorf("schedule %d: something happens at %.0f %% of all points", schedule, 100*sum)
		}
		if s.Longest > 5*time.Second {
			t.Errorf("schedule %d: stops of up to %v", schedule, s.Longest)
		}
	}
	if len(picks) != 3 || len(others) != 200 {
		t.Errorf("%d ways to pick, %d different settings", len(picks), len(others))
	}
}

// The runtime gets probabilities as 64-bit thresholds, each the sum of the probabilities up to it.
// It gets Longest as a power of two, times the shortest stop, rounded down.
func TestRuntimeGetsProbabilitiesAsThresholds(t *testing.T) {
	s := Settings{Stop: 0.25, Delay: 0.25, Yield: 0.25, Longest: time.Second}
	r := s.forRuntime()
	if r.stop != 1<<62 || r.delay != 1<<63 || r.demote != r.delay || r.yield != 3<<62 {
		t.Errorf("%+v", r)
	}
	if longest := shortest << r.longest; longest > s.Longest || 2*longest <= s.Longest {
		t.Errorf("stops of up to %v, not %v", longest, s.Longest)
	}
}
