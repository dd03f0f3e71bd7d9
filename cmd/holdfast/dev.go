package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"holdfast/internal/server/settings"
	"holdfast/internal/server/trial"
)

// devOptions are the flags of `holdfast dev`.
type devOptions struct {
	listen     string
	nodes      int
	data       string
	admin      string
	health     string
	policyFile string
	mirrors    settings.Mirrors
	logLevel   string
	dialect    string
	foldCase   bool
}

func newDev() *cobra.Command {
	var o devOptions
	command := &cobra.Command{
		Use:   "dev",
		Short: "Run the whole product in one process: a broker, and a cluster inside",
		Long: `Starts an MQTT 5 broker and a cluster of Holdfast nodes in this process. Without --data, everything is in a temporary folder that is
removed at the end. It is for trying things out: one process is one point of failure.`,
		Example: "  holdfast dev\n  holdfast dev --listen 127.0.0.1:2883 --nodes 1 --data ./trial",
		Args:    positional(cobra.NoArgs),
		RunE:    func(command *cobra.Command, _ []string) error { return o.run(command) },
	}
	flags := command.Flags()
	flags.StringVar(&o.listen, "listen", "127.0.0.1:1883",
		"`address` of the broker; port 0 is any free one")
	flags.IntVar(&o.nodes, "nodes", 3, "number of nodes: 1, 3 or 5")
	flags.StringVar(&o.data, "data", "",
		"`folder` for the data, which is kept (default: a temporary one)")
	flags.StringVar(&o.admin, "admin.listen", settings.Default().Admin.Listen,
		"`address` of the first node's admin API; port 0 is any free one, and so is the default if it is in use")
	flags.StringVar(&o.health, "health.listen", "127.0.0.1:0",
		"`address` of the first node's /livez, /readyz and /metrics")
	flags.StringVar(&o.policyFile, "policyFile", "", "authorization policy `file`")
	flags.Var(&o.mirrors, "mirrors",
		"keys that are published as retained messages, as pattern=topic/")
	flags.StringVar(&o.dialect, "protocol.dialect", "auto",
		"syntax of replies: auto (as the client asks), documented or sdk")
	flags.BoolVar(&o.foldCase, "protocol.caseInsensitive", false,
		"understand verbs and options in lower case")
	flags.StringVar(&o.logLevel, "log.level", "warn", "debug, info, warn or error")
	return command
}

func (o *devOptions) run(command *cobra.Command) error {
	s := settings.Default()
	s.Mirrors = o.mirrors
	s.PolicyFile, s.Log.Level, s.Protocol.Dialect, s.Protocol.CaseInsensitive = o.policyFile,
		o.logLevel, o.dialect, o.foldCase
	if err := s.Validate(); err != nil {
		return err
	}
	var admin []string
	switch {
	case !command.Flags().Changed("admin.listen"):
		admin = []string{o.admin, "127.0.0.1:0"}
	case o.admin != "":
		admin = []string{o.admin}
	}
	log, level, lines := newQueuedLog(command.ErrOrStderr(), &s)
	defer lines.Close()
	running, err := trial.Start(trial.Config{
		Listen: o.listen, Nodes: o.nodes, Folder: o.data, Settings: &s, Admin: admin,
		Health: o.health, Version: version, Log: log,
	})
	if errors.Is(err, trial.ErrConfig) {
		return &usageError{err}
	}
	if err != nil {
		return err
	}
	ready, err := running.WaitReady(command.Context())
	if ready {
		o.welcome(command.OutOrStdout(), running)
		select {
		case <-command.Context().Done():
		case err = <-running.Exits():
		}
	}
	// no warnings of lost members while all nodes stop
	level.Set(max(level.Level(), slog.LevelError))
	return errors.Join(err, running.Close())
}

func (o *devOptions) welcome(out io.Writer, running *trial.Cluster) {
	address := running.Broker()
	folder, temporary := running.Folder()
	if temporary {
		folder += " (temporary)"
	}
	admin, metrics := "none", "none"
	if at := running.Admin(); at != "" {
		admin = "http://" + at + "  (in a browser: the status page)"
	}
	if at := running.Health(); at != "" {
		metrics = "http://" + at + "/metrics"
	}
	_, _ = fmt.Fprintf(out, `Holdfast is ready: %d node(s) behind an MQTT broker.

  broker   mqtt://%s
  admin    %s
  metrics  %s
  data     %s

Try, in another terminal:

  %s set --broker %s greeting hello
  %s get --broker %s greeting

Ctrl-C stops it.
`, o.nodes, address, admin, metrics, folder, os.Args[0], address, os.Args[0], address) // a failed write loses a greeting only
}
