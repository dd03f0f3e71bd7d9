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

	"holdfast/mqttfront"
	"holdfast/mqttfront/presence"
)

// API says how to reach EMQX's REST API.
type API struct {
	// URL is where it listens, as http://emqx:18083; empty is nowhere, and nobody is sent away.
	URL string
	// Key returns an API key and its secret with a colon between them, as EMQX takes them; it is asked for each call.
	Key func() []byte
	// Client makes the calls. It must have a timeout, or the context of a call must.
	Client *http.Client
}

// Driver implements mqttfront.Driver.
type Driver struct {
	*presence.Watcher
	api API
}

// New returns a driver.
func New(config presence.Config, api API) *Driver {
	return &Driver{Watcher: presence.New(config, source{}), api: api}
}

// Disconnect implements mqttfront.Driver: DELETE /api/v5/clients/{clientid}. A client that is not connected any more is no error.
func (d *Driver) Disconnect(ctx context.Context, publisher mqttfront.Publisher) error {
	if d.api.URL == "" {
		return fmt.Errorf("%w: broker.api.url is not set", mqttfront.ErrUnsupported)
	}
	if publisher.ClientID == "." || publisher.ClientID == ".." { // what is left of it in a path is another path
		return fmt.Errorf("%w: the client id is %q", mqttfront.ErrUnsupported, publisher.ClientID)
	}
	address := strings.TrimSuffix(d.api.URL, "/") + "/api/v5/clients/" + url.PathEscape(publisher.ClientID)
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete, address, http.NoBody)
	if err != nil {
		return fmt.Errorf("send a client away: %w", err)
	}
	if d.api.Key != nil {
		key, secret, _ := strings.Cut(string(bytes.TrimSpace(d.api.Key())), ":")
		request.SetBasicAuth(key, secret)
	}
	response, err := d.api.Client.Do(request)
	if err != nil {
		return fmt.Errorf("send a client away: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // it was read as far as it is of interest
	switch response.StatusCode {
	case http.StatusOK, http.StatusNoContent, http.StatusNotFound:
		return nil
	default:
		const most = 512
		text, _ := io.ReadAll(io.LimitReader(response.Body, most)) // as much as there is
		return fmt.Errorf("send a client away: the broker's API answers %s: %s", response.Status, bytes.TrimSpace(text))
	}
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
