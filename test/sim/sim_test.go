package sim

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/test/sim/schedule"
)

var (
	first = flag.Uint64("sim.first", 1, "the first seed")
	seeds = flag.Uint64("sim.seeds", 2, "how many seeds")
	order = flag.Uint64("sim.schedule", 0,
		"seed of the order in which goroutines run, in a binary that can replay it; 0 is Go's own order")
	duration = flag.Duration("sim.duration", 30*time.Second,
		"of each seed's load and faults, in virtual time")
	nodes = flag.Int("sim.nodes", 0, "how many nodes; 0 draws 3 or 5")
	kinds = flag.String("sim.kinds", "",
		"the kinds of faults that are drawn, with commas; empty is all")
	without = flag.String("sim.without", "",
		"what is left out: numbers of faults and ids of clients, with commas")
	report = flag.String("sim.report", "",
		"folder for what is needed to understand a failure, and with one seed always")
	results  = flag.Bool("sim.results", false, "print each result as JSON")
	switches = flag.String("sim.switches", "",
		"file for the switches between goroutines, in a binary that can replay them")
	verbose = flag.Bool("sim.verbose", false, "debug lines of the nodes in the trace")
)

func config(seed uint64) Config {
	c := Config{Seed: seed, Schedule: *order, Duration: *duration, Nodes: *nodes}
	if *kinds != "" {
		c.Kinds = strings.Split(*kinds, ",")
	}
	if *without != "" {
		c.Without = strings.Split(*without, ",")
	}
	if *verbose {
		c.Log = slog.LevelDebug
	}
	if *switches != "" {
		const room = 8 << 20 // switches
		c.Record = make([]schedule.Switch, room)
	}
	return c
}

// TestSimulatedClustersKeepTheirPromises runs one cluster after the other in virtual time, each
// with the faults that its seed draws. `make sim` runs it in a binary in which a seed also decides
// the order of goroutines.
func TestSimulatedClustersKeepTheirPromises(t *testing.T) {
	if *order != 0 && !schedule.Replays {
		t.Fatal("this binary cannot replay a schedule: use make sim")
	}
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			var s *simulation
			var lasted time.Duration
			folder := filepath.Join(*report, fmt.Sprintf("seed-%d-%d", seed, *order))
			began := time.Now()
			synctest.Test(t, func(t *testing.T) {
				s = newSimulation(config(seed))
				if *report != "" { // before it runs: it may crash
					schedule.Quiet(func() {
						if err := s.write(folder); err != nil {
							t.Error(err)
						}
					})
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
			if *switches != "" {
				// on an error, switches are missing
				err := writeFile(*switches,
					func(w io.Writer) {
						_ = binary.Write(w, binary.LittleEndian,
							s.config.Record[:s.recorded])
					})
				if err != nil {
					t.Error(err)
				}
			}
			t.Logf("%d nodes, %v of virtual time in %v: %d operations, faults: %v", result.Nodes,
				lasted.Round(time.Second), result.Real.Round(time.Millisecond), result.Operations,
				result.Faults)
			if schedule.Replays {
				t.Logf("schedule: %s: %d switches, %d synchronisation points, hash %016x",
					s.settings, s.summary.Switches, s.summary.Points, s.summary.Hash)
			}
			if t.Failed() {
				t.Logf("again: %s", s.config.Again())
			}
		})
	}
}
