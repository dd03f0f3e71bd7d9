// Package emqx is what is known of EMQX 5 beyond the MQTT standard: who goes away, from its system topics, and how to send somebody away, by
// its REST API.
package emqx

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/presence"
)

// API says how to reach EMQX's REST API.
type API struct {
	// URL is where it listens, as http://emqx:18083; empty means that no client is disconnected.
	URL string
	// Key returns an API key and its secret with a colon between them, as EMQX takes them; it is asked for each call.
	Key func() []byte
	// Client makes the calls. It must have a timeout, or the context of a call must.
	Client *http.Client
}

// Driver implements broker.Driver.
type Driver struct {
	*presence.Watcher
	api API
}

// New returns a driver.
func New(config presence.Config, api API) *Driver {
	return &Driver{Watcher: presence.New(config, source{}), api: api}
}

// Kick implements broker.Driver: DELETE /api/v5/clients/{clientid}. A client that is not connected any more is no error.
func (d *Driver) Kick(ctx context.Context, publisher broker.Publisher) error {
	_, err := d.call(ctx, http.MethodDelete, publisher.ClientID, "", nil, nil)
	if err != nil {
		return fmt.Errorf("disconnect a client: %w", err)
	}
	return nil
}

// subscription is one of a client's, as EMQX's API has it.
type subscription struct {
	Topic string `json:"topic"`
	QoS   byte   `json:"qos"`
}

// SubscribeNotifications implements broker.NotificationSubscriber: GET /api/v5/clients/{clientid}/subscriptions, and where none of these is
// below the filter's topics POST /api/v5/clients/{clientid}/subscribe. EMQX makes the subscription after it has answered, without asking its
// access control, and keeps it as long as the client's session.
func (d *Driver) SubscribeNotifications(ctx context.Context, clientID, filter string) (made bool, err error) {
	var present []subscription
	found, err := d.call(ctx, http.MethodGet, clientID, "/subscriptions", nil, &present)
	if err != nil || !found { // a client that has disconnected needs none
		return false, err
	}
	topics := strings.TrimSuffix(filter, "+")
	for _, s := range present { // one for a single key is not enough
		if s.Topic == topics+"#" || s.Topic == filter {
			return false, nil
		}
	}
	return d.call(ctx, http.MethodPost, clientID, "/subscribe", subscription{Topic: filter, QoS: 1}, nil)
}

// call calls the API about one client. It reports whether EMQX knows the client.
func (d *Driver) call(ctx context.Context, method, clientID, path string, body, into any) (found bool, err error) {
	if d.api.URL == "" {
		return false, fmt.Errorf("%w: broker.api.url is not set", broker.ErrUnsupported)
	}
	if clientID == "." || clientID == ".." { // what is left of it in a path is another path
		return false, fmt.Errorf("%w: the client id is %q", broker.ErrUnsupported, clientID)
	}
	content := io.Reader(http.NoBody)
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return false, err
		}
		content = bytes.NewReader(encoded)
	}
	address := strings.TrimSuffix(d.api.URL, "/") + "/api/v5/clients/" + url.PathEscape(clientID) + path
	request, err := http.NewRequestWithContext(ctx, method, address, content)
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/json")
	if d.api.Key != nil {
		key, secret, _ := strings.Cut(string(bytes.TrimSpace(d.api.Key())), ":")
		request.SetBasicAuth(key, secret)
	}
	response, err := d.api.Client.Do(request)
	if err != nil {
		return false, err
	}
	defer func() { _ = response.Body.Close() }() // it was read as far as it is of interest
	switch {
	case response.StatusCode == http.StatusNotFound:
		return false, nil
	case response.StatusCode != http.StatusOK && response.StatusCode != http.StatusNoContent:
		const most = 512
		text, _ := io.ReadAll(io.LimitReader(response.Body, most)) // as much as there is
		return false, fmt.Errorf("the broker's API answers %s: %s", response.Status, bytes.TrimSpace(text))
	case into == nil:
		return true, nil
	}
	const most = 1 << 20 // of a client with thousands of subscriptions; more is an error
	if err := json.NewDecoder(io.LimitReader(response.Body, most)).Decode(into); err != nil {
		return false, fmt.Errorf("the broker's API: %w", err)
	}
	return true, nil
}

// source reads EMQX's system topics $SYS/brokers/{node}/clients/{clientid}/connected and …/disconnected.
type source struct{}

// Filters implements presence.Source. A client id may hold slashes, so the last level is not named.
func (source) Filters() []string { return []string{"$SYS/brokers/+/clients/#"} }

// reasons with which a connection ends because its client has another one.
const (
	takenOver = "takenover"
	discarded = "discarded"
)

// Read implements presence.Source. The topic says what happened, the payload to whom.
func (source) Read(topic string, payload []byte, retained bool) (presence.Event, bool) {
	var told struct {
		ClientID    string `json:"clientid"`
		ConnectedAt int64  `json:"connected_at"` // milliseconds since the Unix epoch
		Reason      string `json:"reason"`
	}
	if retained || json.Unmarshal(payload, &told) != nil || told.ClientID == "" {
		return presence.Event{}, false
	}
	event := presence.Event{ClientID: told.ClientID, Connection: told.ConnectedAt}
	switch {
	case strings.HasSuffix(topic, "/disconnected") && (told.Reason == takenOver || told.Reason == discarded):
		event.Kind = presence.TakenOver
	case strings.HasSuffix(topic, "/disconnected"):
		event.Kind = presence.Disconnected
	case strings.HasSuffix(topic, "/connected"):
		event.Kind = presence.Connected
	default:
		return presence.Event{}, false
	}
	return event, true
}
