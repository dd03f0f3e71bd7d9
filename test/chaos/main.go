// Command chaos runs a Holdfast cluster of real containers under faults, and judges what its
// clients saw. See docs/testing.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"holdfast/test/history"
)

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// brokenPromises is the error of a run in which promises were broken.
type brokenPromises struct{ findings *history.Findings }

// Error implements error.
func (b *brokenPromises) Error() string {
	return fmt.Sprintf("promises were broken: %d violations", len(b.findings.Violations))
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "chaos", Short: "Run a cluster of containers under faults",
		SilenceUsage: true, SilenceErrors: true,
	}
	var o options
	var kinds string
	run := &cobra.Command{
		Use: "run", Short: "Run a cluster under faults, and judge", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.nodes < 3 || o.nodes > 9 {
				return fmt.Errorf("--nodes: %d is not between 3 and 9", o.nodes)
			}
			if o.seed == 0 {
				o.seed = uint64(time.Now().Unix())
			}
			if kinds != "" {
				o.kinds = strings.Split(kinds, ",")
				for _, kind := range o.kinds {
					if _, known := faultWeights()[kind]; !known {
						return fmt.Errorf("--faults: there is no fault %q", kind)
					}
				}
			}
			if !o.smoke && len(drawPlan(o.seed, o.duration, o.kinds)) == 0 {
				return fmt.Errorf("--duration: %v is too short for a fault", o.duration)
			}
			return runOnce(c.Context(), o)
		},
	}
	flags := run.Flags()
	flags.Uint64Var(&o.seed, "seed", 0, "decides settings, faults and what clients do; 0 draws one")
	flags.IntVar(&o.nodes, "nodes", 5, "number of nodes, 3 to 9")
	flags.DurationVar(&o.duration, "duration", 5*time.Minute, "how long faults are injected")
	flags.StringVar(&o.folder, "report", "report", "folder for the report and all that it rests on")
	flags.StringVar(&kinds, "faults", "", "kinds of faults, separated by commas (default: all)")
	flags.StringVar(&o.mutant, "mutant", "",
		"a mutant of the product to run, or several, joined by +")
	flags.BoolVar(&o.smoke, "smoke", false,
		"a fixed plan (power failure of the leader, partition of the leader, broker restart), each of which must have an effect; --faults is ignored")
	flags.BoolVar(&o.keep, "keep", false, "leave the containers as they are at the end")
	check := &cobra.Command{
		Use: "check DIR", Short: "Judge an old run again", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, arguments []string) error {
			findings, err := judge(arguments[0])
			if err == nil && len(findings.Violations) > 0 {
				err = &brokenPromises{findings}
			}
			return err
		},
	}
	selftest := &cobra.Command{
		Use: "selftest", Short: "Show that mutants of the product are caught", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runSelftest(c.Context(), o) },
	}
	selftest.Flags().StringVar(&o.folder, "report", "report", "folder for the reports")
	selftest.Flags().StringVar(&o.mutant, "mutant", "", "only this one")
	root.AddCommand(run, check, selftest)
	return root
}
