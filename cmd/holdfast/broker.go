package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"holdfast/cluster"
	"holdfast/internal/server/httpapi"
	"holdfast/internal/server/settings"
	"holdfast/mqttfront/embedded"
)

// brokerOptions are the flags of `holdfast broker`.
type brokerOptions struct {
	listen       string
	health       string
	cluster      string
	username     string
	passwordFile string
	logLevel     string
}

func newBroker() *cobra.Command {
	var o brokerOptions
	command := &cobra.Command{
		Use:   "broker",
		Short: "Run the embedded MQTT broker alone, for trials; check a broker",
		Long: `Runs the MQTT 5 broker of ` + "`holdfast dev`" +
			` by itself, for trials of a cluster without another broker. It keeps sessions in memory only:
what is queued is gone when it ends. Clients need no login. With --node-password-file, only a connection with the nodes' login may use
the client ids and topics of nodes. Without it, any client that uses such an id is taken for a node.`,
		Example: "  holdfast broker --listen 0.0.0.0:1883\n  holdfast server --broker.addresses mqtt://127.0.0.1:1883",
		Args:    positional(cobra.NoArgs),
		RunE:    func(command *cobra.Command, _ []string) error { return o.run(command) },
	}
	flags := command.Flags()
	flags.StringVar(&o.listen, "listen", "127.0.0.1:1883",
		"`address` of the broker; port 0 is any free one")
	flags.StringVar(&o.health, "health.listen", "", "`address` of /livez and /readyz; empty is off")
	flags.StringVar(&o.cluster, "cluster.name", settings.Default().Cluster.Name,
		"`name` of the cluster, prefix of its nodes' client ids")
	flags.StringVar(&o.username, "node-username", "holdfast-node", "user `name` of the nodes")
	flags.StringVar(&o.passwordFile, "node-password-file", "", "`file` with the nodes' password")
	flags.StringVar(&o.logLevel, "log.level", "info", "debug, info, warn or error")
	command.AddCommand(newBrokerCheck())
	return command
}

func (o *brokerOptions) run(command *cobra.Command) (err error) {
	s := settings.Default()
	s.Cluster.Name, s.Log.Level, s.Health.Listen = o.cluster, o.logLevel, o.health
	if err := s.Validate(); err != nil {
		return err
	}
	log, _ := newLog(command.ErrOrStderr(), &s)
	config := embedded.Config{
		Listen: o.listen, Log: log, Wall: cluster.SystemClock().Wall,
		Cluster: o.cluster, NodeUsername: o.username,
	}
	if o.passwordFile != "" {
		password, err := followSecret(o.passwordFile, log)
		if err != nil {
			return usagef("--node-password-file: %w", err)
		}
		if config.NodePassword = password; len(password()) == 0 {
			return usagef("--node-password-file is %q: there is nothing in it", o.passwordFile)
		}
	} else {
		config.Open = true
		log.Warn("any client that uses a node's client id is taken for a node: set --node-password-file")
	}
	broker, err := embedded.Start(config)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := broker.Close(); err == nil {
			err = closeErr
		}
	}()
	if o.health != "" {
		health, err := httpapi.Listen(o.health, httpapi.Liveness(), nil, log)
		if err != nil {
			return err
		}
		defer func() { _ = health.Close(command.Context()) }() // it only answers health checks
	}
	if _, err := fmt.Fprintf(command.OutOrStdout(),
		"The broker listens on mqtt://%s. Ctrl-C stops it.\n", broker.Address()); err != nil {
		return err
	}
	<-command.Context().Done()
	return nil
}
