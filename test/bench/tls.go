package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// newTLS measures what TLS to the broker costs, and fails when it costs too much.
func newTLS() *cobra.Command {
	const withoutTLS = "Holdfast"
	var least float64
	o := compareOptions{systems: func(nodes int) []system {
		only := []workload{sets()}
		return append([]system{holdfastSystem(withoutTLS, nodes, only)},
			secureSystems(nodes, only)...)
	}}
	command := &cobra.Command{
		Use: "tls", Short: "SETs with TLS between broker and nodes, and clients, beside SETs without; fails below a ratio",
		RunE: func(command *cobra.Command, _ []string) error {
			measured, err := o.run(command.Context())
			if err != nil {
				return err
			}
			for _, s := range secureSystems(o.nodes, nil) {
				for _, outstanding := range o.outstanding {
					ratio := measured.ratio(s.name, withoutTLS, sets().name, outstanding)
					fmt.Printf("%-24s %5d under way: %.2f of the rate without TLS\n", s.name,
						outstanding, ratio)
					if ratio < least {
						err = errors.Join(err,
							fmt.Errorf("%s at %d under way: ratio %.2f, want at least %.2f", s.name,
								outstanding, ratio, least))
					}
				}
			}
			return err
		},
	}
	o.add(command)
	flags := command.Flags()
	flags.IntSliceVar(&o.outstanding, "outstanding", []int{1, 64, 256},
		"requests under way at once")
	flags.IntVar(&o.nodes, "nodes", 3, "members of the cluster")
	flags.IntVar(&o.rounds, "rounds", 3, "how often each is measured; medians are compared")
	flags.Float64Var(&least, "at-least", 0.7, "the lowest ratio that passes")
	return command
}

// secureSystems returns two systems: Holdfast with TLS between broker and nodes, and Holdfast with
// TLS for the load as well.
func secureSystems(nodes int, workloads []workload) []system {
	return []system{
		linkedSystem("Holdfast, nodes by TLS", nodes, workloads, links{nodesTLS: true}),
		linkedSystem("Holdfast, all by TLS", nodes, workloads,
			links{nodesTLS: true, clientsTLS: true}),
	}
}

// ratio divides, round by round, the rate of system by the rate of the system by. It returns the
// median of the rounds.
func (c *comparison) ratio(system, by, workload string, outstanding int) float64 {
	rates := c.points[pointKey{system, workload, outstanding}].Rates
	others := c.points[pointKey{by, workload, outstanding}].Rates
	return median(quotients(rates, others))
}
