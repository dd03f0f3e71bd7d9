// Package mosquitto is what is known of Mosquitto beyond the MQTT standard: who goes away, from its log topic (2.0 and later) or the topic of
// connection states (2.1), and how to send somebody away, by the dynamic security plugin.
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
	old      atomic.Bool // the broker is older than 2.1, whose log has other lines

	mu      sync.Mutex
	number  uint64
	waiting map[string]chan error // for the answers to commands, by correlation data
}

// New returns a driver.
func New(config presence.Config) *Driver {
	d := &Driver{username: config.Username, waiting: make(map[string]chan error)}
	d.Watcher = presence.New(config, d)
	return d
}

// ErrRefused says that the dynamic security plugin did not do as it was told.
var ErrRefused = errors.New("refused by the dynamic security plugin")

// Kick implements broker.Driver. The plugin knows users only: all clients with the publisher's user name are sent away. It does so
// when something about a user is changed, so a change of nothing does it, and leaves the user as it is: neither is one disabled for a
// moment in which the broker could stop, nor one enabled that an administrator has disabled meanwhile.
func (d *Driver) Kick(ctx context.Context, publisher broker.Publisher) error {
	switch publisher.Username {
	case "":
		return fmt.Errorf("%w: the publisher has no user name, or the broker does not stamp it (identity.usernameProperty)", broker.ErrUnsupported)
	case d.username:
		return fmt.Errorf("%w: %s is the nodes' own user", broker.ErrUnsupported, publisher.Username)
	}
	correlation, answer := d.expect()
	defer d.forget(correlation)
	command, err := json.Marshal(commands{[]command{{Command: "modifyClient", Username: publisher.Username, CorrelationData: correlation}}})
	if err != nil {
		return err
	}
	if err := d.Publish(ctx, controlTopic, command); err != nil {
		return fmt.Errorf("send %s away: %w", publisher.Username, err)
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("send %s away: no answer from the dynamic security plugin: %w", publisher.Username, ctx.Err())
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

// expect returns correlation data for a command, and where its answer will come.
func (d *Driver) expect() (correlation string, answer <-chan error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.number++
	correlation = "holdfast-" + strconv.FormatInt(d.Origin(nil).Time, 36) + "-" + strconv.FormatUint(d.number, 36)
	channel := make(chan error, 1)
	d.waiting[correlation] = channel
	return correlation, channel
}

func (d *Driver) forget(correlation string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waiting, correlation)
}

// answered hands the plugin's answers to whoever waits for them.
func (d *Driver) answered(payload []byte) {
	var answers responses
	if json.Unmarshal(payload, &answers) != nil {
		return // not an answer to a node
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, answer := range answers.Responses {
		waiting := d.waiting[answer.CorrelationData]
		if waiting == nil {
			continue
		}
		delete(d.waiting, answer.CorrelationData)
		if answer.Error != "" {
			waiting <- fmt.Errorf("%w: %s", ErrRefused, answer.Error)
		} else {
			waiting <- nil
		}
	}
}
