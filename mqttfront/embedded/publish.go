package embedded

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"holdfast/internal/topics"
)

const (
	notificationPrefix = "clients/statestore/v1/"
	// ghostClient has a shared subscription to all notifications, so that mochi calls
	// OnSelectSubscribers for them: it does that only for topics that a shared subscription
	// matches. OnSelectSubscribers removes the ghost from the message's subscribers. No client can
	// have this id: MQTT forbids U+0000.
	ghostClient = "\x00implicit"
	ghostFilter = "$SHARE/holdfast/" + notificationPrefix + "+/+/command/notify/#"
)

// OnPublish takes gate for reading, and adds the broker's user properties to requests (stamp).
// After CodeSuccessIgnore mochi acknowledges the message, but does not route it.
func (h *hook) OnPublish(client *mqtt.Client, packet packets.Packet) (packets.Packet, error) {
	h.gate.RLock()
	c := h.connection(client)
	if c == nil { // the connection has ended
		h.gate.RUnlock()
		return packet, packets.CodeSuccessIgnore
	}
	c.publishing = true
	if packet.TopicName == topics.Invoke &&
		strings.ContainsAny(packet.Properties.ResponseTopic, "+#") {
		// mochi would deliver the request without its response topic, and the store could not
		// disconnect its publisher.
		disconnect(client, packets.ErrAdministrativeAction)
		return packet, packets.CodeSuccessIgnore
	}
	packet.Created = h.sequence.Add(1) // for the order of a resend; see OnSessionEstablish
	if packet.TopicName == topics.Invoke {
		if c.unreceived = !h.reachesNode(topics.Invoke); c.unreceived {
			return packet, packets.CodeSuccessIgnore
		}
		packet.Properties.User = stamp(packet.Properties.User, client, c, packet.FixedHeader.Qos)
	}
	return packet, nil
}

// reachesNode reports whether a node's session has a subscription to a topic.
func (h *hook) reachesNode(topic string) bool {
	subscribers := h.server.Topics.Subscribers(topic)
	for id := range subscribers.Subscriptions {
		if h.nodes.reserved(id) {
			return true
		}
	}
	for _, group := range subscribers.Shared {
		for id := range group {
			if h.nodes.reserved(id) {
				return true
			}
		}
	}
	return false
}

// OnPacketProcessed releases gate. mochi calls it after each OnPublish, on the same goroutine, also
// if it could not write the acknowledgement.
func (h *hook) OnPacketProcessed(client *mqtt.Client, _ packets.Packet, _ error) {
	if c := h.connection(client); c != nil && c.publishing {
		c.publishing, c.unreceived = false, false
		h.gate.RUnlock()
	}
}

// stamp returns the user properties of a request with those of the broker. It removes properties of
// the same names that the client sent.
func stamp(user []packets.UserProperty, client *mqtt.Client, c *connection,
	qos byte,
) []packets.UserProperty {
	stamps := []packets.UserProperty{
		{Key: ClientIDProperty, Val: client.ID},
		{Key: UsernameProperty, Val: string(client.Properties.Username)},
		{Key: connectionProperty, Val: strconv.FormatInt(c.ordinal, 10)},
		{Key: qosProperty, Val: strconv.Itoa(int(qos))},
	}
	user = slices.DeleteFunc(user, func(u packets.UserProperty) bool {
		return slices.ContainsFunc(stamps,
			func(s packets.UserProperty) bool { return s.Key == u.Key })
	})
	return append(user, stamps...)
}

// OnSelectSubscribers adds the addressed client to the subscribers of a notification, unless it has
// subscribed or is not connected. The topic is clients/statestore/v1/<service id>/<client id in
// hex>/command/notify/<key>.
func (h *hook) OnSelectSubscribers(subscribers *mqtt.Subscribers,
	packet packets.Packet,
) *mqtt.Subscribers {
	if _, ok := subscribers.Shared[ghostFilter]; !ok {
		return subscribers
	}
	delete(subscribers.Shared, ghostFilter)
	// after the service id
	_, rest, _ := strings.Cut(strings.TrimPrefix(packet.TopicName, notificationPrefix), "/")
	encoded, _, _ := strings.Cut(rest, "/")
	id, err := hex.DecodeString(encoded)
	if err != nil {
		return subscribers
	}
	if _, subscribed := subscribers.Subscriptions[string(id)]; subscribed {
		return subscribers
	}
	client, ok := h.server.Clients.Get(string(id))
	if !ok || client.Closed() { // a notification is not queued for a session without a connection
		return subscribers
	}
	subscribers.Subscriptions[string(id)] = packets.Subscription{Filter: packet.TopicName, Qos: 1}
	return subscribers
}
