package mqttconn

import "github.com/eclipse/paho.golang/packets"

// Publish is a PUBLISH, received or to be sent.
type Publish struct {
	Topic      string
	Payload    []byte
	QoS        byte // 0 or 1
	Retain     bool
	PacketID   uint16      // of a received message at QoS 1
	Properties *Properties // never nil in a received message
}

// Properties are the properties of a PUBLISH that this project reads or writes.
type Properties struct {
	PayloadFormat   *byte
	MessageExpiry   *uint32 // seconds
	ContentType     string
	ResponseTopic   string
	CorrelationData []byte // nil is none; an empty one is sent
	User            UserProperties
}

// UserProperties are in the order of the packet. A key may occur several times.
type UserProperties []UserProperty

// UserProperty is one of them.
type UserProperty struct{ Key, Value string }

// Get returns the value of the first property with the key, and "" if there is none.
func (u UserProperties) Get(key string) string {
	for i := range u {
		if u[i].Key == key {
			return u[i].Value
		}
	}
	return ""
}

// Add appends a property.
func (u *UserProperties) Add(key, value string) { *u = append(*u, UserProperty{key, value}) }

// Packet returns the message as the encoder takes it, with no packet id.
func (p *Publish) Packet() *packets.Publish {
	packet := &packets.Publish{Topic: p.Topic, Payload: p.Payload, QoS: p.QoS, Retain: p.Retain}
	if from := p.Properties; from != nil {
		packet.Properties = &packets.Properties{
			PayloadFormat: from.PayloadFormat, MessageExpiry: from.MessageExpiry,
			ContentType:   from.ContentType,
			ResponseTopic: from.ResponseTopic, CorrelationData: from.CorrelationData,
		}
		for _, user := range from.User {
			packet.Properties.User = append(packet.Properties.User,
				packets.User{Key: user.Key, Value: user.Value})
		}
	}
	return packet
}

// Message is a received PUBLISH.
type Message struct {
	*Publish
	// Size is the size in bytes of the packet and of the copy of its text, which the strings and
	// byte slices of the message point into. It does not count the list of user properties.
	Size int
	// Redelivered is the DUP flag: the broker may have sent the message before, on an earlier
	// connection of the session.
	Redelivered bool
}
