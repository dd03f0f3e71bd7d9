// Package mutants lists mutants: builds with one rule broken by a few edits of the source, which
// the tests must catch. It also has builds that tests need: one with an older log version, and one
// with a clock that can be set. Package overlay applies the edits to one build; the files on disk
// stay.
package mutants

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"holdfast/test/overlay"
)

// Mutant is a build of the product that differs by edits.
type Mutant struct {
	Name string
	What string // what the build does differently
	// Check has the checks of the simulation that can catch it, with ", " between them. It is empty
	// for a build that breaks no rule. What another check finds is not the mutant's effect, and
	// does not count.
	Check string
	Edits []overlay.Edit // edits of files below the module's root
	// Faults are the simulation's kinds of faults that show it soon. An empty list means all kinds.
	Faults []string
}

// Checks returns the checks that can catch the mutant.
func (m Mutant) Checks() []string {
	if m.Check == "" {
		return nil
	}
	return strings.Split(m.Check, ", ")
}

// shownBy returns the mutant with the kinds of faults that show it soon.
func (m Mutant) shownBy(faults ...string) Mutant {
	m.Faults = faults
	return m
}

// ErrUnknown says that no mutant has the given name.
var ErrUnknown = errors.New("no such mutant")

// Find returns the mutant of a name, among All.
func Find(name string) (Mutant, error) {
	all := All()
	i := slices.IndexFunc(all, func(m Mutant) bool { return m.Name == name })
	if i < 0 {
		return Mutant{}, fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	return all[i], nil
}

// Root returns the folder of the product's module.
func Root(ctx context.Context) (string, error) {
	output, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}",
		"holdfast").Output()
	if err != nil {
		return "", fmt.Errorf("find the product: %w", err)
	}
	return strings.TrimSpace(string(output)), nil
}

// Add adds the edits of mutants to an overlay.
func Add(ctx context.Context, o *overlay.Overlay, mutants ...Mutant) error {
	root, err := Root(ctx)
	if err != nil {
		return err
	}
	for _, m := range mutants {
		if err := o.Edit(root, m.Edits...); err != nil {
			return fmt.Errorf("mutant %s: %w", m.Name, err)
		}
	}
	return nil
}

// Overlay writes an overlay for `go build -overlay` with the edits of all the mutants into a
// folder, and returns its path.
func Overlay(ctx context.Context, folder string, mutants ...Mutant) (string, error) {
	o := overlay.New()
	if err := Add(ctx, o, mutants...); err != nil {
		return "", err
	}
	return o.Write(folder)
}

// NextVersion is a build that knows one version of the log more. While that is in force, its leader
// writes SETs as commands of a kind that other builds do not know. Rolling upgrades are tested with
// it.
func NextVersion() Mutant {
	return Mutant{Name: "next_version", What: "the next version of the log", Edits: []overlay.Edit{
		{File: "fsm/entry.go", Old: "const Version = 1", New: "const Version = 2"},
		{
			File: "fsm/entry.go", Old: "const lastKind = KindTxn",
			New: "const lastKind = KindTxn + 1",
		},
		{
			File: "fsm/machine.go", Old: "\tm.index = index\n\toutcome :=",
			New: `	for i := range entry.Commands {
		if entry.Commands[i].Kind == lastKind {
			entry.Commands[i].Kind = KindSet
		}
	}
	m.index = index
	outcome :=`,
		},
		{
			File: "cluster/propose/proposer.go", Old: "\tlow := p.env.StorageLow()\n",
			New: `	for i := range commands {
		if commands[i].Kind == fsm.KindSet && p.env.Status().Version == fsm.Version {
			commands[i].Kind = fsm.KindTxn + 1
		}
	}
	low := p.env.StorageLow()
`,
		},
	}}
}

// SkewedClock is a build whose wall clock is off by the milliseconds in the file that
// CHAOS_CLOCK_OFFSET_FILE names: containers have no clocks of their own.
func SkewedClock() Mutant {
	return Mutant{
		Name: "skewed_clock", What: "a wall clock that tests can set",
		Edits: []overlay.Edit{
			{
				File: "cluster/config.go", Old: "\t\"log/slog\"\n\t\"time\"\n",
				New: "\t\"log/slog\"\n\t\"os\"\n\t\"strconv\"\n\t\"strings\"\n\t\"time\"\n",
			},
			{
				File: "cluster/config.go",
				Old:  "func wallClock() int64 { return time.Now().UnixMilli() }",
				New: `func wallClock() int64 {
	now := time.Now().UnixMilli()
	text, err := os.ReadFile(os.Getenv("CHAOS_CLOCK_OFFSET_FILE"))
	if err != nil {
		return now
	}
	offset, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return now
	}
	return now + offset
}`,
			},
		},
	}
}

// NoBootTime is a build in which package client does not know for how long the machine was
// suspended: in virtual time nothing is.
func NoBootTime() Mutant {
	return Mutant{
		Name: "no_boot_time", What: "time that the machine was suspended is unknown",
		Edits: []overlay.Edit{
			{
				File: "client/moment_linux.go", Old: "\tif unix.ClockGettime",
				New: "\tif known := false; !known || unix.ClockGettime",
			},
		},
	}
}
