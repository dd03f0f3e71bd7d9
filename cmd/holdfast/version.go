package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"holdfast/fsm"
)

func newVersion() *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:     "version",
		Short:   "Say what this program is: its version, the newest log version that it knows, and what built it",
		Example: "  holdfast version\n  holdfast version -o json",
		Args:    positional(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			result := struct {
				Version    string `json:"version"`
				LogVersion int    `json:"logVersion"`
				Go         string `json:"go"`
				Platform   string `json:"platform"`
			}{version, fsm.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			switch output {
			case "json":
				return printJSON(stdout(command), result)
			case "text":
				_, err := fmt.Fprintf(stdout(command), "holdfast %s, log version %d, %s, %s\n",
					result.Version, result.LogVersion, result.Go, result.Platform)
				return err
			default:
				return usagef("--output is %q: must be text or json", output)
			}
		},
	}
	command.Flags().StringVarP(&output, "output", "o", "text", "output `format`, text or json")
	return command
}
