package sim

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Result is what came of one seed.
type Result struct {
	Seed       uint64
	Nodes      int
	Virtual    time.Duration // from the beginning to the end
	Real       time.Duration
	Operations int64          // that were answered
	Kinds      map[string]int // operations begun, by kind
	Faults     map[string]int // that had an effect, by kind
	Planned    int            // faults
	Recovered  time.Duration  // until service was back after the last fault
	Ordered    bool           // the order of each client was checked
	// Complete says that notifications were checked for completeness; Expected is how many had to come, Repeated how many
	// came again.
	Complete   bool
	Expected   int
	Repeated   int
	Undecided  int // keys that could not be checked in time
	Violations []Violation
}

func (s *simulation) result(lasted, took time.Duration) *Result {
	kinds := make(map[string]int)
	for _, o := range s.load.History.Ops {
		kinds[string(o.Verb)]++
	}
	return &Result{
		Seed: s.seed, Nodes: len(s.hosts), Virtual: lasted, Real: took, Operations: s.load.Answered.Load(), Kinds: kinds, Faults: s.effects, Planned: len(s.plan),
		Recovered: s.recovered, Ordered: s.findings.Ordered, Complete: s.findings.Complete, Expected: s.findings.Expected, Repeated: s.findings.Repeated, Undecided: s.findings.Undecided,
		Violations: s.violations,
	}
}

// Again is the command that replays the faults of a seed.
func (s *simulation) again() string {
	return fmt.Sprintf("make sim FIRST=%d SEEDS=1 DURATION=%v NODES=%d", s.seed, s.config.Duration, s.config.Nodes)
}

// write writes what is needed to understand a run into a folder.
func (s *simulation) write(folder string) error {
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	files := map[string]func(io.Writer){
		"violations.txt": func(w io.Writer) {
			fmt.Fprintf(w, "Again: %s\n\n", s.again())
			for _, v := range s.violations {
				fmt.Fprintf(w, "%s: %s\n\n", v.Check, v.Text)
			}
		},
		"faults.txt": func(w io.Writer) {
			fmt.Fprintf(w, "%+v\n\n", *s.tunables)
			for i := range s.plan {
				fmt.Fprintln(w, &s.plan[i])
			}
		},
		"trace.txt":   func(w io.Writer) { _, _ = s.trace.WriteTo(w) }, // shown by what is missing
		"clients.txt": s.load.History.Write,
	}
	for name, content := range files {
		if err := writeFile(filepath.Join(folder, name), content); err != nil {
			return err
		}
	}
	return s.findings.WritePicture(filepath.Join(folder, "linearizability.html"))
}

// keep writes what is needed to understand a run, or removes what was written before it.
func (s *simulation) keep(reported, wanted bool, folder string) error {
	switch {
	case !reported:
		return nil
	case wanted:
		return s.write(folder)
	default:
		return os.RemoveAll(folder)
	}
}

func writeFile(name string, content func(io.Writer)) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(file)
	content(buffered)
	return cmp.Or(buffered.Flush(), file.Close())
}
