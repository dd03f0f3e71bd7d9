package sim

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"holdfast/test/history"
	"holdfast/test/sim/schedule"
)

// Result is the result of one run.
type Result struct {
	Seed         uint64
	Schedule     uint64
	Settings     string // settings of the schedule
	Summary      schedule.Summary
	Nodes        int
	Virtual      time.Duration  // how long the run took in virtual time
	Real         time.Duration  // how long it took in real time
	Operations   int64          // how many were answered
	Kinds        map[string]int // how many operations were begun, by kind
	Faults       map[string]int // how many faults had an effect, by kind
	Plan         []string       // all faults, also those that were left out
	Clients      []string       // ids of the clients that were not left out
	Again        string         // the command that repeats the run
	RecoveryTime time.Duration  // until service was back after the last fault
	OrderChecked bool           // the order of each client was checked
	// CompletenessChecked says that no notification was allowed to be missing. Expected is how many
	// had to come, Repeated how many came again.
	CompletenessChecked bool
	Expected            int
	Repeated            int
	Scans               int // how many scans were checked
	Pages               int // how many pages these scans had
	Sums                int // how often the sum of all accounts of a bank was checked
	Undecided           int // how many keys could not be checked in time
	Violations          []history.Violation
}

func (s *simulation) result(lasted, took time.Duration) *Result {
	kinds := make(map[string]int)
	for _, o := range s.load.History.Ops {
		kinds[string(o.Verb)]++
	}
	plan, clients := make([]string, 0, len(s.plan)), make([]string, 0, len(s.clients))
	for i := range s.plan {
		plan = append(plan, s.plan[i].String())
	}
	for _, c := range s.clients {
		clients = append(clients, c.ID)
	}
	return &Result{
		Seed: s.seed, Schedule: s.config.Schedule, Settings: s.settings.String(),
		Summary: s.summary, Nodes: len(s.hosts), Virtual: lasted, Real: took,
		Operations: s.load.Answered.Load(), Kinds: kinds, Faults: s.effects, Plan: plan,
		Clients: clients, Again: s.config.Again(),
		RecoveryTime: s.recovered, OrderChecked: s.findings.Ordered,
		CompletenessChecked: s.findings.Complete, Expected: s.findings.ExpectedNotes,
		Repeated: s.findings.Repeated, Scans: s.findings.Scans, Pages: s.findings.Pages,
		Sums: s.findings.Sums, Undecided: s.findings.Undecided,
		Violations: s.violations,
	}
}

// Again returns the command that repeats a run of the product, without mutants. The repeated run
// logs more, which changes nothing else.
func (c *Config) Again() string {
	var b strings.Builder
	fmt.Fprintf(&b, "make sim FIRST=%d SCHEDULE=%d DURATION=%v", c.Seed, c.Schedule, c.Duration)
	if c.Nodes != 0 {
		fmt.Fprintf(&b, " NODES=%d", c.Nodes)
	}
	if len(c.Kinds) > 0 {
		fmt.Fprintf(&b, " KINDS=%q", strings.Join(c.Kinds, ","))
	}
	if len(c.Without) > 0 {
		fmt.Fprintf(&b, " WITHOUT=%s", strings.Join(c.Without, ","))
	}
	return b.String()
}

// write writes what is needed to understand a run into a folder.
func (s *simulation) write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	files := map[string]func(io.Writer){
		"violations.txt": func(w io.Writer) {
			fmt.Fprintf(w, "Again: %s\n\n", s.config.Again())
			for _, v := range s.violations {
				fmt.Fprintf(w, "%s: %s\n\n", v.Check, v.Text)
			}
		},
		"faults.txt": func(w io.Writer) {
			fmt.Fprintf(w, "%+v\n\n", *s.tunables)
			fmt.Fprintf(w, "Schedule: %s\n\n", s.settings)
			for i := range s.plan {
				if !s.config.without(strconv.Itoa(i + 1)) {
					fmt.Fprintf(w, "%3d %s\n", i+1, &s.plan[i])
				}
			}
		},
		// an error shows as an incomplete file
		"trace.txt":   func(w io.Writer) { _, _ = s.trace.WriteTo(w) },
		"clients.txt": s.load.History.Write,
	}
	for name, content := range files {
		if err := writeFile(filepath.Join(folder, name), content); err != nil {
			return err
		}
	}
	return s.findings.WritePicture(filepath.Join(folder, "linearizability.html"))
}

// keep writes the report of a run if it is wanted, or else removes the one that was written before
// the run began. It does nothing unless enabled.
func (s *simulation) keep(enabled, wanted bool, folder string) error {
	switch {
	case !enabled:
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
