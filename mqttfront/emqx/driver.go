// Package emqx is the driver for EMQX 5. It learns of client disconnects from EMQX's system topics,
// and disconnects and subscribes clients through its REST API.
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
	// URL is the API's base URL, such as http://emqx:18083. If it is empty, Kick and
	// SubscribeNotifications return broker.ErrUnsupported.
	URL string
	// Key returns an API key and its secret with a colon between them. It is called for each
	// request to the API. nil means no login.
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

// Kick implements broker.Driver: DELETE /api/v5/clients/{clientid}. A client that is not connected
// any more is no error.
func (d *Driver) Kick(ctx context.Context, publisher broker.Publisher) error {
	_, err := d.call(ctx, http.MethodDelete, publisher.ClientID, "", nil, nil)
	if err != nil {
		return fmt.Errorf("disconnect a client: %w", err)
	}
	return nil
}

// subscription is one subscription of a client, as EMQX's API encodes it.
type subscription struct {
	Topic string `json:"topic"`
	QoS   byte   `json:"qos"`
}

// SubscribeNotifications implements broker.NotificationSubscriber: GET
// /api/v5/clients/{clientid}/subscriptions, and then POST /api/v5/clients/{clientid}/subscribe,
// unless the client already subscribes to the filter, or to its prefix with "#". EMQX makes the
// subscription after it has answered, without asking its access control, and keeps it as long as
// the client's session.
func (d *Driver) SubscribeNotifications(ctx context.Context, clientID, filter string) (created bool,
	err error,
) {
	var present []subscription
	found, err := d.call(ctx, http.MethodGet, clientID, "/subscriptions", nil, &present)
	if err != nil || !found { // a client that has disconnected needs none
		return false, err
	}
	topics := strings.TrimSuffix(filter, "+")
	for _, s := range present { // a subscription to one key does not cover the filter
		if s.Topic == topics+"#" || s.Topic == filter {
			return false, nil
		}
	}
	return d.call(ctx, http.MethodPost, clientID, "/subscribe", subscription{Topic: filter, QoS: 1},
		nil)
}

// unknownClient is the code with which EMQX says that no such client is connected. Another 404
// means that the URL is not that of its API.
const unknownClient = `"CLIENTID_NOT_FOUND"`

// call calls the API about one client. It reports whether EMQX knows the client.
func (d *Driver) call(ctx context.Context, method, clientID, path string, body,
	into any,
) (found bool, err error) {
	if d.api.URL == "" {
		return false, fmt.Errorf("%w: broker.api.url is not set", broker.ErrUnsupported)
	}
	if clientID == "." || clientID == ".." {
		// such a path element would make the URL that of another resource
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
	address := strings.TrimSuffix(d.api.URL, "/") + "/api/v5/clients/" + url.PathEscape(clientID) +
		path
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
	defer func() { _ = response.Body.Close() }() // all that matters was read
	switch {
	case response.StatusCode != http.StatusOK && response.StatusCode != http.StatusNoContent:
		const most = 512
		text, _ := io.ReadAll(io.LimitReader(response.Body, most)) // as much as there is
		if response.StatusCode == http.StatusNotFound &&
			bytes.Contains(text, []byte(unknownClient)) {
			return false, nil
		}
		return false, fmt.Errorf("the broker's API answers %s: %s", response.Status,
			bytes.TrimSpace(text))
	case into == nil:
		return true, nil
	}
	// bytes, enough for thousands of subscriptions; a longer answer is an error
	const most = 1 << 20
	if err := json.NewDecoder(io.LimitReader(response.Body, most)).Decode(into); err != nil {
		return false, fmt.Errorf("the broker's API: %w", err)
	}
	return true, nil
}

// source reads EMQX's system topics $SYS/brokers/{node}/clients/{clientid}/connected and
// …/disconnected.
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
	var payloadFields struct {
		ClientID    string `json:"clientid"`
		ConnectedAt int64  `json:"connected_at"` // milliseconds since the Unix epoch
		Reason      string `json:"reason"`
	}
	if retained || json.Unmarshal(payload, &payloadFields) != nil || payloadFields.ClientID == "" {
		return presence.Event{}, false
	}
	event := presence.Event{ClientID: payloadFields.ClientID, Connection: payloadFields.ConnectedAt}
	switch {
	case strings.HasSuffix(topic, "/disconnected") &&
		(payloadFields.Reason == takenOver || payloadFields.Reason == discarded):
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
