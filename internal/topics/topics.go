// Package topics has the MQTT topics of the state store protocol, for the store and its clients.
package topics

import (
	"encoding/hex"
	"strings"
	"unicode"
)

const (
	service = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
	// Invoke is the topic on which clients publish requests.
	Invoke = service + "/command/invoke"
	// ReservedPrefix is the prefix of the topics on which only the store publishes.
	ReservedPrefix = "clients/" + service
	// Notifications is the prefix of all notification topics. The client id follows, then notify,
	// then the key.
	Notifications = ReservedPrefix + "/"
	notify        = "/command/notify/"
)

// LimitProperty is the user property of a reply that the quota has been exceeded: which limit that
// was, and its bound.
const LimitProperty = "holdfast-limit"

// HasDisallowedCharacters reports whether a topic has control characters, or code points that are
// no characters. A broker may end the connection on these (MQTT 5, 1.5.4).
func HasDisallowedCharacters(topic string) bool {
	return strings.ContainsFunc(topic, func(r rune) bool {
		return unicode.IsControl(r) || r&0xFFFE == 0xFFFE || r >= 0xFDD0 && r <= 0xFDEF
	})
}

// Base16 encodes a client id or a key for a topic: upper-case Base16 (RFC 4648 section 8).
func Base16(text string) string { return strings.ToUpper(hex.EncodeToString([]byte(text))) }

// NotificationPrefix returns the prefix of a client's notification topics. The key in Base16
// follows.
func NotificationPrefix(clientID string) string { return Notifications + Base16(clientID) + notify }

// Notification returns the topic of a client's notifications about a key.
func Notification(clientID, key string) string {
	var topic strings.Builder
	topic.Grow(NotificationSize(clientID, key))
	topic.WriteString(Notifications)
	topic.WriteString(Base16(clientID))
	topic.WriteString(notify)
	topic.WriteString(Base16(key))
	return topic.String()
}

// NotificationSize returns the size of a notification topic in bytes.
func NotificationSize[T ~string | ~[]byte](clientID string, key T) int {
	return len(Notifications) + len(notify) + 2*len(clientID) + 2*len(key)
}
