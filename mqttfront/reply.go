package mqttfront

import (
	"encoding/hex"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/fsm"
	"holdfast/resp"
)

const (
	contentType     = "application/octet-stream"
	protocolVersion = "1.0"
)

// newPublish returns a packet with what all packets of the store have in common.
func newPublish(topic string, payload []byte) *packets.Publish {
	format := byte(0)
	return &packets.Publish{
		Topic: topic, Payload: payload, QoS: 1,
		Properties: &packets.Properties{ContentType: contentType, PayloadFormat: &format},
	}
}

// encodeReply returns the packet that answers a request at the time now.
func encodeReply(r *request, deadline time.Time, result *fsm.Result, now time.Time) *packets.Publish {
	packet := newPublish(r.responseTopic, appendResult(nil, result))
	properties := packet.Properties
	properties.CorrelationData = r.correlation
	if !deadline.IsZero() {
		properties.MessageExpiry = seconds(deadline.Sub(now))
	}
	properties.User = append(make([]packets.User, 0, 4),
		packets.User{Key: "__stat", Value: "200"}, packets.User{Key: "__protVer", Value: protocolVersion})
	if r.version != "" {
		packet.Payload = nil
		properties.User[0].Value = "505"
		properties.User = append(properties.User,
			packets.User{Key: "__supProtMajVer", Value: "1"}, packets.User{Key: "__requestProtVer", Value: r.version})
	}
	if version, ok := result.Version(); ok {
		properties.User = append(properties.User, packets.User{Key: "__ts", Value: version.String()})
	}
	return packet
}

// seconds returns what is left, rounded up, and at least one.
func seconds(left time.Duration) *uint32 {
	value := uint32(max((left+time.Second-1)/time.Second, 1))
	return &value
}

// appendResult appends the payload of a reply.
func appendResult(dst []byte, result *fsm.Result) []byte {
	switch result.Code {
	case fsm.CodeOK:
		return resp.AppendOK(dst)
	case fsm.CodeNotApplied:
		if result.Dialect == fsm.SDK {
			return resp.AppendInteger(dst, -1)
		}
		return resp.AppendBareMinusOne(dst)
	case fsm.CodeDeleted:
		return resp.AppendInteger(dst, 1)
	case fsm.CodeMissing:
		return resp.AppendInteger(dst, 0)
	case fsm.CodeValue:
		return resp.AppendBulk(dst, result.Value)
	case fsm.CodeNull:
		return resp.AppendNull(dst)
	default:
		return resp.AppendError(dst, result.Error.Text())
	}
}

// encodeNotification returns the packet that tells a client of a change.
func encodeNotification(event *fsm.Event, receiver *fsm.Receiver, left time.Duration) *packets.Publish {
	var payload []byte
	switch {
	case !event.Deleted:
		payload = resp.AppendArray(nil, "NOTIFY", "SET", "VALUE", event.Value)
	case receiver.Dialect == fsm.SDK:
		payload = resp.AppendArray(nil, "NOTIFY", "DELETE")
	default:
		payload = resp.AppendArray(nil, "NOTIFY", "DEL")
	}
	packet := newPublish(NotificationTopic(receiver.ClientID, event.Key), payload)
	packet.Properties.MessageExpiry = seconds(left)
	packet.Properties.User = []packets.User{
		{Key: "__ts", Value: event.Version.String()}, {Key: "__protVer", Value: protocolVersion},
	}
	return packet
}

// NotificationTopic returns the topic on which a client is told of a key: both in upper-case Base16 (RFC 4648 section 8).
func NotificationTopic(clientID, key string) string {
	var topic strings.Builder
	topic.Grow(fsm.NotificationTopicSize(clientID, key))
	topic.WriteString(notificationPrefix + "/")
	topic.WriteString(base16(clientID))
	topic.WriteString("/command/notify/")
	topic.WriteString(base16(key))
	return topic.String()
}

func base16(text string) string { return strings.ToUpper(hex.EncodeToString([]byte(text))) }
