package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/mqttconn"
	"holdfast/test/bench/echo"
)

// echoTopic is where the load publishes requests for the echo. It is as long as the store's invoke
// topic.
const echoTopic = "statestore/v1/00000000-0000-0000-0000-0000000bench/command/invoke"

// newEchoRole returns the command that runs one client of the echo: it answers requests at once.
func newEchoRole() *cobra.Command {
	var broker, id string
	var valueSize int
	command := &cobra.Command{Use: "echo", RunE: func(command *cobra.Command, _ []string) error {
		dialer := &mqttconn.Dialer{
			Addresses: []mqttconn.Address{{Host: broker}},
			Timeout:   10 * time.Second,
		}
		return echo.Run(command.Context(), echo.Config{
			Dialer: dialer, ClientID: id, Topic: echoTopic, ValueSize: valueSize,
			Connected: func() { fmt.Println("ready") },
		})
	}}
	flags := command.Flags()
	flags.StringVar(&broker, "broker", "", "")
	flags.StringVar(&id, "id", "", "")
	flags.IntVar(&valueSize, "value-size", 100, "")
	return command
}
