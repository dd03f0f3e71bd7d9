package mqttconn

import (
	"errors"
	"fmt"
)

var (
	// ErrTooLarge says that a message is larger than the broker's Maximum Packet Size, or cannot be
	// encoded. Nothing was sent.
	ErrTooLarge = errors.New("mqtt: larger than the broker accepts")
	// ErrClosed says that the connection was closed on this side.
	ErrClosed = errors.New("mqtt: connection closed")
	// ErrSilent says that for half the keep-alive time no byte arrived, and no part of a long write
	// went through.
	ErrSilent = errors.New("mqtt: the broker is silent")
)

// ReasonCodeError is the reason code of a DISCONNECT, or of a CONNACK that rejects the connection.
type ReasonCodeError struct {
	Reason byte   // of the DISCONNECT or CONNACK
	Text   string // reason string, often empty
}

func (r *ReasonCodeError) Error() string {
	return fmt.Sprintf("mqtt: the broker rejected or closed the connection: reason code 0x%02X %s",
		r.Reason, r.Text)
}

// IsTakenOver reports whether a connection ended because another client connected under its client
// id.
func IsTakenOver(err error) bool {
	var refusal *ReasonCodeError
	return errors.As(err, &refusal) && refusal.Reason == ReasonSessionTakenOver
}

// MQTT reason codes that callers distinguish: of a DISCONNECT, and of a PUBACK.
const (
	ReasonSessionTakenOver     byte = 0x8E
	ReasonNoMatchingSubscriber byte = 0x10
)
