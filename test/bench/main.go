// Command bench measures Holdfast beside its alternatives etcd and NATS JetStream KV, beside a bare
// hashicorp/raft, and beside an echo. The echo is an MQTT client that answers each request at once:
// it shows the most that the broker allows. Every system runs as processes of its own on this
// machine. Each round measures every system in turn, and medians over the rounds are reported.
// bench is a module of its own, because it links etcd and NATS.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use: "bench", Short: "Measure Holdfast beside its peers",
		SilenceUsage: true, SilenceErrors: true,
	}
	role := &cobra.Command{
		Use: "role", Short: "Processes that bench starts from its own binary",
		Hidden: true,
	}
	role.AddCommand(newEtcdRole(), newNATSRole(), newRaftRole(), newEchoRole(), newLoadRole())
	root.AddCommand(newCompare(), newAgainst(), newTLS(), newProcessor(), newGrowth(), role)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
