package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// newAgainst measures this build beside another one, in interleaved rounds. It answers whether a
// change made the store faster or slower.
func newAgainst() *cobra.Command {
	const this, other = "this build", "other build"
	var o compareOptions
	command := &cobra.Command{
		Use:   "against BINARY",
		Short: "SETs on this build of Holdfast and on another one, in one run: rates, processor time, and their ratios", Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			binary, err := filepath.Abs(arguments[0])
			if err != nil {
				return err
			}
			o.systems = func(nodes int) []system {
				only := []workload{sets()}
				return []system{
					holdfastSystem(this, nodes, only),
					ofBinary(binary, holdfastSystem(other, nodes, only)),
					echoSystem("echo", only),
				}
			}
			measured, err := o.run(command.Context())
			if err != nil {
				return err
			}
			table := measured.against(this, other)
			fmt.Print("\n", table)
			return os.WriteFile(filepath.Join(o.output, "against.md"), []byte(table), 0o644)
		},
	}
	o.add(command)
	flags := command.Flags()
	flags.IntSliceVar(&o.outstanding, "outstanding", []int{1, 64, 256, 1024},
		"requests under way at once")
	flags.IntVar(&o.nodes, "nodes", 3, "members of each cluster")
	flags.IntVar(&o.rounds, "rounds", 9,
		"how often each is measured; medians and the spread are reported")
	return command
}

// ofBinary returns a system whose nodes run another binary.
func ofBinary(binary string, s system) system {
	start := s.start
	s.start = func(ctx context.Context, env *environment) (*deployment, error) {
		env.holdfast = binary // the environment is this system's own
		return start(ctx, env)
	}
	return s
}

// against returns the ratios of two systems' SETs in Markdown: the median over the rounds, the
// lowest and the highest. The medians of all systems follow.
func (c *comparison) against(this, other string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s. %d members each; %d interleaved rounds of %v.\n", c.Machine, c.Nodes,
		c.Rounds, c.Duration)
	header(&b, "SETs of "+this+", of the "+other, c.outstanding())
	for _, figure := range []struct {
		title  string
		values func(*point) []float64
	}{
		{"requests per second", func(p *point) []float64 { return p.Rates }},
		{"processor time of the members for a request", (*point).members},
		{"p50", func(p *point) []float64 { return p.P50 }},
		{"p99", func(p *point) []float64 { return p.P99 }},
	} {
		fmt.Fprintf(&b, "| %s |", figure.title)
		for _, n := range c.outstanding() {
			ratios := quotients(figure.values(c.points[pointKey{this, sets().name, n}]),
				figure.values(c.points[pointKey{other, sets().name, n}]))
			b.WriteString(" " + medianAndSpread(ratios) + " |")
		}
		b.WriteString("\n")
	}
	c.figures(&b, "Requests per second", "%.0f", func(p *point) float64 { return median(p.Rates) })
	c.figures(&b, "Processor time of the members for a request, microseconds", "%.1f",
		func(p *point) float64 { return median(p.members()) })
	return b.String()
}

// quotients divides a by b, round by round. An interrupted round that only one of them has is left
// out.
func quotients(a, b []float64) []float64 {
	all := make([]float64, min(len(a), len(b)))
	for i := range all {
		all[i] = a[i] / b[i]
	}
	return all
}
