package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

var (
	first    = flag.Uint64("sim.first", 1, "the first seed")
	seeds    = flag.Uint64("sim.seeds", 2, "how many seeds")
	duration = flag.Duration("sim.duration", 30*time.Second, "of each seed's load and faults, in virtual time")
	nodes    = flag.Int("sim.nodes", 0, "how many nodes; 0 draws 3 or 5")
	ingest   = flag.String("sim.ingest", "", "by what session requests come: everywhere or leader; empty draws")
	report   = flag.String("sim.report", "", "folder for what is needed to understand a failure, and with one seed always")
	results  = flag.Bool("sim.results", false, "print each result as JSON")
)

// TestSeeds runs one cluster after the other in virtual time, each with the faults that its seed draws.
func TestSeeds(t *testing.T) {
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			var s *simulation
			var lasted time.Duration
			folder := filepath.Join(*report, fmt.Sprintf("seed-%d", seed))
			began := time.Now()
			synctest.Test(t, func(t *testing.T) {
				s = newSimulation(Config{Seed: seed, Duration: *duration, Nodes: *nodes, Ingest: *ingest})
				if *report != "" { // before it runs: it may crash
					if err := s.write(folder); err != nil {
						t.Error(err)
					}
				}
				s.run()
				lasted = s.trace.now()
			})
			s.check()
			result := s.result(lasted, time.Since(began))
			if *results {
				line, err := json.Marshal(result)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Printf("RESULT %s\n", line)
			}
			for _, v := range s.violations {
				t.Errorf("%s: %s", v.Check, v.Text)
			}
			if err := s.keep(*report != "", t.Failed() || *seeds == 1, folder); err != nil {
				t.Error(err)
			}
			t.Logf("%d nodes, %v of virtual time in %v: %d operations, faults: %v", result.Nodes, lasted.Round(time.Second), result.Real.Round(time.Millisecond), result.Operations, result.Faults)
			if t.Failed() {
				t.Logf("again: %s", s.again())
			}
		})
	}
}
