package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/server/settings"
)

// maxHealthBody bounds what is read of an answer, in bytes.
const maxHealthBody = 64 << 10

func newHealth() *cobra.Command {
	var address string
	var live bool
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "health",
		Short: "Ask a node on this machine whether it is ready",
		Long: `Asks the health port of a node whether it is ready, or with --live whether it runs at all, and prints what it says. It is what the
image's HEALTHCHECK runs.

Exit codes: 0 it is, 1 it is not, 2 usage, 3 nobody answers.`,
		Example: "  holdfast health\n  holdfast health --live --health.listen 127.0.0.1:7402",
		Args:    positional(cobra.NoArgs),
	}
	listening := os.Getenv("HOLDFAST_HEALTH_LISTEN")
	if listening == "" {
		listening = settings.Default().Health.Listen
	}
	flags := command.Flags()
	flags.StringVar(&address, "health.listen", listening,
		"`address` on which the node listens; also HOLDFAST_HEALTH_LISTEN")
	flags.BoolVar(&live, "live", false, "ask whether it runs, not whether it is ready")
	flags.DurationVar(&timeout, "timeout", 3*time.Second, "how long to wait for an answer")
	command.RunE = func(command *cobra.Command, _ []string) error {
		path := "/readyz"
		if live {
			path = "/livez"
		}
		if timeout <= 0 {
			return usagef("--timeout is %v: must be positive", timeout)
		}
		ctx, cancel := context.WithTimeout(command.Context(), timeout)
		defer cancel()
		return askHealth(ctx, command.OutOrStdout(), "http://"+settings.Dialable(address)+path)
	}
	return command
}

func askHealth(ctx context.Context, out io.Writer, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return &usageError{fmt.Errorf("--health.listen: %w", err)}
	}
	// without a proxy: the node is on this machine
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return &codeError{exitError, err.Error()}
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, maxHealthBody))
	if err != nil {
		return &codeError{exitError, err.Error()}
	}
	if response.StatusCode != http.StatusOK {
		return &codeError{exitNotApplied, strings.TrimSpace(string(text))}
	}
	_, err = out.Write(text)
	return err
}
