// Package mosquitto implements broker.Driver for Mosquitto. It reads client disconnects from the
// log topic (2.0 and later) or from the connection-state topics (2.1), and kicks clients with the
// dynamic security plugin.
package mosquitto

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/presence"
)

const (
	controlTopic  = "$CONTROL/dynamic-security/v1"
	responseTopic = controlTopic + "/response"
)

// Driver implements broker.Driver.
type Driver struct {
	*presence.Watcher
	username string
	before21 atomic.Bool // the broker is older than 2.1: its log lines differ

	mu          sync.Mutex
	lastCommand uint64
	pending     map[string]chan error // channels for the responses to commands, by correlation data
}

// New returns a driver.
func New(config presence.Config) *Driver {
	d := &Driver{username: config.Login.Username, pending: make(map[string]chan error)}
	d.Watcher = presence.New(config, d)
	return d
}

// ErrRefused is wrapped by the errors that the dynamic security plugin returned.
var ErrRefused = errors.New("refused by the dynamic security plugin")

// Kick implements broker.Driver: it disconnects the client that published a request. The plugin
// disconnects all clients of a user name when that user is modified. So Kick sends a modifyClient
// that changes nothing. It does not use disableClient and enableClient: the broker could stop
// between the two, or an administrator could have disabled the user meanwhile.
func (d *Driver) Kick(ctx context.Context, publisher broker.Publisher) error {
	switch publisher.Username {
	case "":
		return fmt.Errorf("%w: the request carries no user name; set identity.usernameProperty if the broker can add it", broker.ErrUnsupported)
	case d.username:
		return fmt.Errorf("%w: %s is the nodes' own user", broker.ErrUnsupported,
			publisher.Username)
	}
	correlation, answer := d.expect()
	defer d.forget(correlation)
	command, err := json.Marshal(
		commands{[]command{{
			Command: "modifyClient", Username: publisher.Username,
			CorrelationData: correlation,
		}}})
	if err != nil {
		return err
	}
	if err := d.Publish(ctx, controlTopic, command); err != nil {
		return fmt.Errorf("disconnect the clients of user %s: %w", publisher.Username, err)
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("disconnect the clients of user %s: no response from the dynamic security plugin: %w", publisher.Username, ctx.Err())
	}
}

type commands struct {
	Commands []command `json:"commands"`
}

type command struct {
	Command         string `json:"command"`
	Username        string `json:"username"`
	CorrelationData string `json:"correlationData"`
}

type responses struct {
	Responses []struct {
		Error           string `json:"error"`
		CorrelationData string `json:"correlationData"`
	} `json:"responses"`
}

// expect registers a pending command. It returns its correlation data and the channel for the
// response.
func (d *Driver) expect() (correlation string, answer <-chan error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastCommand++ // unique together with the time, also after a restart
	correlation = "holdfast-" + strconv.FormatInt(d.Origin(nil).Time, 36) + "-" +
		strconv.FormatUint(d.lastCommand, 36)
	channel := make(chan error, 1)
	d.pending[correlation] = channel
	return correlation, channel
}

func (d *Driver) forget(correlation string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pending, correlation)
}

// answered delivers the plugin's responses to the pending commands.
func (d *Driver) answered(payload []byte) {
	var answers responses
	if json.Unmarshal(payload, &answers) != nil {
		return // not a response of the plugin
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, response := range answers.Responses {
		answer := d.pending[response.CorrelationData]
		if answer == nil {
			continue
		}
		delete(d.pending, response.CorrelationData)
		if response.Error != "" {
			answer <- fmt.Errorf("%w: %s", ErrRefused, response.Error)
		} else {
			answer <- nil
		}
	}
}
