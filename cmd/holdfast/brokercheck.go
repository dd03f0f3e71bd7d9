package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/brokercheck"
	"holdfast/internal/mqttconn"
	"holdfast/internal/server/settings"
)

func newBrokerCheck() *cobra.Command {
	var c connection
	var clusterName string
	command := &cobra.Command{
		Use:   "check",
		Short: "Say what a broker does with a durable session, on which the promises of the store rest",
		Long: `Publishes to a session of its own, lets another connection take it over, and says what came: whether the session and its
subscription are there, whether what was not acknowledged comes again and in order, how many messages may be in flight, and more.
It uses topics below holdfast/check/ and leaves nothing behind. Give it the nodes' login: it needs no more rights than a node.

Exit codes: 0 the store can rely on the broker, 1 not in everything, 2 usage, 3 error.`,
		Example: "  holdfast broker check\n  holdfast broker check -o json",
		Args:    positional(cobra.NoArgs),
	}
	c.addFlags(command)
	command.Flags().StringVar(&clusterName, "cluster.name", settings.Default().Cluster.Name,
		"`name` of the cluster, prefix of the client ids")
	command.RunE = func(command *cobra.Command, _ []string) error {
		config, err := c.config()
		if err != nil {
			return err
		}
		var addresses []mqttconn.Address
		for _, text := range c.brokers {
			address, err := mqttconn.ParseAddress(text)
			if err != nil {
				return usagef("--broker is %q: %w", text, err)
			}
			addresses = append(addresses, address)
		}
		// no node is called so
		name := fmt.Sprintf("check-%d%s", time.Now().UnixNano(), c.clientID)
		const keepAlive, longest = 30 * time.Second, time.Minute
		ctx, cancel := context.WithTimeout(command.Context(), longest)
		defer cancel()
		findings, err := brokercheck.Run(ctx,
			brokercheck.Config{Cluster: clusterName, Node: name, Login: &mqttconn.Login{
				Dialer: &mqttconn.Dialer{
					Addresses: addresses[:1], TLS: config.TLS, Timeout: c.timeout,
				},
				Username: config.Username, Password: func() []byte { return config.Password },
				KeepAlive: keepAlive, Timeout: c.timeout,
			}})
		printed := c.printFindings(command, findings)
		if err != nil {
			return &codeError{exitError, err.Error()}
		}
		return printed
	}
	return command
}

func (c *connection) printFindings(command *cobra.Command, findings []brokercheck.Finding) error {
	out := stdout(command)
	if c.output == "json" {
		for i := range findings {
			if err := printJSON(out, &findings[i]); err != nil {
				return err
			}
		}
	} else {
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, f := range findings {
			verdict := "ok"
			if !f.OK {
				verdict = "NOT OK: " + f.Why
			}
			_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", f.Check, f.Found, verdict) // Flush says it
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if !brokercheck.AllOK(findings) {
		return &codeError{code: exitNotApplied}
	}
	return nil
}
