package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// recordedRatio is the expected ratio. The dividend is the processor time of three members for a
// SET. The divisor is that of the responder and the load of an echo (echoSystem). The broker is
// left out: what it needs differs between machines, and what the Go processes need does not. A
// commit that changes the ratio permanently updates the constant: `make bench-processor` prints the
// new value.
const recordedRatio = 2.0

// newProcessor measures the processor time for a SET beside that of an echo, and fails when their
// ratio has grown. Rates depend on what else the machine does. Processor time hardly depends on it,
// and the ratio of two in one run even less.
func newProcessor() *cobra.Command {
	const most = 1.15 // the command fails above this multiple of recordedRatio
	const members, outstanding = 3, 256
	const echo = "echo"
	o := compareOptions{
		nodes: members, outstanding: []int{outstanding},
		systems: func(nodes int) []system {
			only := []workload{sets()}
			return []system{echoSystem(echo, only), holdfastSystem("Holdfast", nodes, only)}
		},
	}
	command := &cobra.Command{
		Use: "processor", Short: "Processor time for a SET, beside an echo's; fails when it has grown by more than 15 %",
		RunE: func(command *cobra.Command, _ []string) error {
			measured, err := o.run(command.Context())
			if err != nil {
				return err
			}
			ratio := measured.processorRatio("Holdfast", echo, sets().name, outstanding)
			fmt.Printf("%d under way: the members need %.2f times the processor time of an echo without the broker, recorded is %.2f\n", outstanding, ratio, recordedRatio)
			if ratio > most*recordedRatio {
				return fmt.Errorf("%.2f is more than %.2f times the recorded %.2f", ratio, most,
					recordedRatio)
			}
			return nil
		},
	}
	o.add(command)
	command.Flags().IntVar(&o.rounds, "rounds", 7,
		"how often each is measured; medians are compared")
	return command
}

// processorRatio divides, round by round, the processor time for a request of the members of system
// by that of all processes but the broker of the system by. It returns the median of the rounds.
func (c *comparison) processorRatio(system, by, workload string, outstanding int) float64 {
	members, all := c.points[pointKey{system, workload, outstanding}].members(),
		c.points[pointKey{by, workload, outstanding}].processorWithout("broker")
	return median(quotients(members, all))
}
