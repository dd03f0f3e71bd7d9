package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/server/settings"
)

func newConfig() *cobra.Command {
	command := group(&cobra.Command{
		Use:     "config",
		Short:   "Check and show the settings of `holdfast server`",
		Example: "  holdfast config check /etc/holdfast.yaml",
	})
	check := &cobra.Command{
		Use:     "check FILE",
		Short:   "Say what is wrong with a file of settings and with the certificates that it names: the field, its value and the reason",
		Example: "  holdfast config check /etc/holdfast.yaml",
		Args:    positional(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, arguments []string) error {
			s, _, err := settings.Load(arguments[0], nil, nil)
			if err != nil {
				return err
			}
			if _, err := serverConfig(&s, slog.New(slog.DiscardHandler)); err != nil {
				return err
			}
			if err := checkCertificates(&s, time.Now()); err != nil {
				return &usageError{err}
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "%s is good\n", arguments[0])
			return err
		},
	}
	var file string
	show := &cobra.Command{
		Use:     "show",
		Short:   "Print the settings that `holdfast server` would run with",
		Long:    "Prints what the file, the environment and the flags come to, as a file that can be used again. Secrets are never settings: they\nare in files, of which only the names are shown.",
		Example: "  holdfast config show --config /etc/holdfast.yaml\n  HOLDFAST_NODE_ID=n1 holdfast config show",
		Args:    positional(cobra.NoArgs),
	}
	flags := addSettings(show, &file)
	show.RunE = func(command *cobra.Command, _ []string) error {
		s, err := flags.load(command, file)
		if err != nil {
			return err
		}
		text, err := s.YAML()
		if err != nil {
			return err
		}
		_, err = command.OutOrStdout().Write(text)
		return err
	}
	command.AddCommand(check, show)
	return command
}
