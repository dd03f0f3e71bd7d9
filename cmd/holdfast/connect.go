package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/mqttconn"
	"holdfast/internal/tlsconfig"
)

// connection holds the flags of all commands that talk to the store.
type connection struct {
	brokers      []string
	clientID     string
	username     string
	passwordFile string
	tls          tlsconfig.Files
	timeout      time.Duration
	output       string
	verbose      bool
	noStore      time.Duration // see client.Config.NoStoreTimeout
}

// addFlags adds the flags by which a command connects to the broker.
func (c *connection) addFlags(command *cobra.Command) {
	flags := command.Flags()
	broker := os.Getenv("HOLDFAST_BROKER")
	if broker == "" {
		broker = "mqtt://127.0.0.1:1883"
	}
	flags.StringSliceVar(&c.brokers, "broker", strings.Split(broker, ","),
		"broker `address`, several are tried in turn; also HOLDFAST_BROKER")
	flags.StringVar(&c.clientID, "client-id", "", "MQTT client `id` (default: a random one)")
	flags.StringVar(&c.username, "username", "", "MQTT user `name`")
	flags.StringVar(&c.passwordFile, "password-file", "", "`file` with the MQTT password")
	flags.StringVar(&c.tls.CA, "ca-file", "",
		"`file` with the certificates that vouch for the broker (mqtts)")
	flags.StringVar(&c.tls.Certificate, "cert-file", "", "`file` with a client certificate (mqtts)")
	flags.StringVar(&c.tls.Key, "key-file", "",
		"`file` with the key of the client certificate (mqtts)")
	flags.StringVar(&c.tls.ServerName, "server-name", "",
		"`name` that the broker's certificate must have (mqtts)")
	flags.DurationVar(&c.timeout, "timeout", 10*time.Second, "how long to wait for an answer")
	flags.StringVarP(&c.output, "output", "o", "text", "output `format`, text or json")
	flags.BoolVarP(&c.verbose, "verbose", "v", false, "log what happens on the connection")
}

// config returns the client configuration that the flags give, or a usage error.
func (c *connection) config() (config client.Config, err error) {
	if c.output != "text" && c.output != "json" {
		return config, usagef("--output is %q: must be text or json", c.output)
	}
	if c.timeout <= 0 {
		return config, usagef("--timeout is %v: must be positive", c.timeout)
	}
	for _, text := range c.brokers {
		address, err := mqttconn.ParseAddress(text)
		if err != nil {
			return config, usagef("--broker is %q: %w", text, err)
		}
		if !address.TLS && c.tls != (tlsconfig.Files{}) {
			return config, usagef(
				"--broker is %q: --ca-file, --cert-file, --key-file and --server-name need an mqtts:// address", text)
		}
	}
	if strings.ContainsAny(c.clientID, "/+#\x00") {
		return config, usagef("--client-id is %q: must not contain '/', '+', '#' or NUL",
			c.clientID)
	}
	config = client.Config{
		Addresses: c.brokers, ClientID: c.clientID, Username: c.username,
		Timeout: c.timeout, NoStoreTimeout: c.noStore,
	}
	if c.passwordFile != "" {
		if config.Password, err = readSecret(c.passwordFile); err != nil {
			return config, &usageError{err}
		}
	}
	if config.TLS, err = c.tls.Client(); err != nil {
		return config, &usageError{err}
	}
	return config, nil
}

// open connects to the broker.
func (c *connection) open(ctx context.Context, command *cobra.Command) (*client.Client, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	if c.verbose {
		config.Log = slog.New(slog.NewTextHandler(command.ErrOrStderr(),
			&slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	store, err := client.Connect(ctx, config)
	if err != nil {
		return nil, &codeError{exitError, err.Error()} // not exitUnknown: nothing was sent
	}
	return store, nil
}

// impatience is after how long a command says that no answer has come, and gives up if the broker
// says that nobody receives requests. A change of leader is no such case: the cluster's session
// stays at the broker.
const impatience = 3 * time.Second

// do runs one command against the store.
func (c *connection) do(command *cobra.Command,
	run func(context.Context, *client.Client) error,
) error {
	if !command.Flags().Changed("timeout") {
		c.noStore = impatience
	}
	store, err := c.open(command.Context(), command)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // Close always returns nil
	ctx, cancel := context.WithTimeout(command.Context(), c.timeout)
	defer cancel()
	if c.timeout > impatience {
		hint := time.AfterFunc(impatience, func() {
			// a failure to write to standard error cannot be reported
			_, _ = fmt.Fprintf(command.ErrOrStderr(),
				"holdfast: no answer yet, waiting for up to %v\n", c.timeout)
		})
		defer hint.Stop()
	}
	return run(ctx, store)
}

func readSecret(file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read secret: %w", err)
	}
	for len(data) > 0 && (data[len(data)-1] == '\n' || data[len(data)-1] == '\r') {
		data = data[:len(data)-1]
	}
	return data, nil
}

// followSecret returns a function that reads the secret from the file at each call, so that it can
// be rotated. While the file cannot be read or is empty, as it may be during a replacement, the
// function logs a warning and returns the previous secret. It is safe for concurrent use.
// followSecret itself reads the file once, and returns the error of that read.
func followSecret(file string, log *slog.Logger) (func() []byte, error) {
	var mu sync.Mutex
	last, err := readSecret(file)
	return func() []byte {
		mu.Lock()
		defer mu.Unlock()
		now, err := readSecret(file)
		if err == nil && len(now) == 0 && len(last) > 0 {
			err = errors.New("the file is empty")
		}
		if err == nil {
			last = now
		} else {
			log.Warn("cannot use the secret in the file: the previous one stays in use", "file",
				file, "error", err)
		}
		return last
	}, err
}

// printJSON writes a value as one line of JSON.
func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
