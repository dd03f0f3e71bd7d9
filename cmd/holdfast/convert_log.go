package main

import (
	"github.com/spf13/cobra"

	"holdfast/cluster/raftlog"
)

func newConvertLog() *cobra.Command {
	var file string
	a := administration{output: "text"}
	command := &cobra.Command{
		Use:   "convert-log",
		Short: "Convert the log of a stopped node to the store that cluster.logStore names",
		Long: `Copies the log and the votes in the data folder of a stopped node to the store that cluster.logStore names, wal or boltdb, then removes the old ones.
It may be called again when it was interrupted. Convert one node after the other; nothing is lost meanwhile.

It takes the settings of the server: its file, environment and flags.`,
		Example: "  holdfast raft convert-log --config /etc/holdfast.yaml --cluster.logStore wal",
		Args:    positional(cobra.NoArgs),
	}
	flags := addSettings(command, &file)
	command.Flags().StringVarP(&a.output, "output", "o", "text", "output `format`, text or json")
	command.RunE = func(command *cobra.Command, _ []string) error {
		s, err := a.stoppedNode(command, flags, file)
		if err != nil {
			return err
		}
		to := raftlog.Kind(s.Cluster.LogStore)
		if to == raftlog.Auto {
			return usagef("cluster.logStore is %q: name the store to convert to, %s or %s", to,
				raftlog.WAL, raftlog.BoltDB)
		}
		converted, err := raftlog.ConvertLog(command.Context(), s.Node.DataDir, to)
		if err != nil {
			return err
		}
		if !converted {
			return a.done(command.OutOrStdout(), "the log of %s is one of %s already", s.Node.ID,
				to)
		}
		return a.done(command.OutOrStdout(), "the log of %s is now one of %s", s.Node.ID, to)
	}
	return command
}
