package wire

import (
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/fsm"
	"holdfast/internal/topics"
	"holdfast/resp"
)

const (
	contentType     = "application/octet-stream"
	protocolVersion = "1.0"
)

// packet is a PUBLISH packet and all that it points to, in one allocation.
type packet struct {
	publish    packets.Publish
	properties packets.Properties
	format     byte
	expiry     uint32
	user       [5]packets.User
	payload    [16]byte // room for the payload of a short reply
}

// newPublish returns a packet with the properties that all replies and notifications have.
func newPublish(topic string, payload []byte) *packet {
	p := &packet{}
	p.publish = packets.Publish{Topic: topic, Payload: payload, QoS: 1, Properties: &p.properties}
	p.properties = packets.Properties{
		ContentType: contentType, PayloadFormat: &p.format,
		User: p.user[:0],
	}
	return p
}

// add adds a user property.
func (p *packet) add(key, value string) {
	p.properties.User = append(p.properties.User, packets.User{Key: key, Value: value})
}

// setExpiry sets the message expiry to the time left, rounded up to seconds. It is at least 1 s.
func (p *packet) setExpiry(left time.Duration) {
	p.expiry = uint32(max((left+time.Second-1)/time.Second, 1))
	p.properties.MessageExpiry = &p.expiry
}

// EncodeReply returns the packet that answers a request at the time now. The reply expires when the
// request does.
func EncodeReply(r *Request, result *fsm.Result, now time.Time) *packets.Publish {
	p := newPublish(r.ResponseTopic, nil)
	p.properties.CorrelationData = r.Correlation
	if !r.Deadline.IsZero() {
		p.setExpiry(r.Deadline.Sub(now))
	}
	status := "200"
	if r.UnsupportedVersion != "" {
		status = "505"
	} else {
		p.publish.Payload = appendResult(p.payload[:0], result)
	}
	p.add("__stat", status)
	p.add("__protVer", protocolVersion)
	if r.UnsupportedVersion != "" {
		p.add("__supProtMajVer", "1")
		p.add("__requestProtVer", r.UnsupportedVersion)
	}
	if version, ok := result.Version(); ok {
		p.add("__ts", version.String())
	}
	if r.Store != "" {
		p.add(StoreProperty, r.Store)
	}
	if r.Limit != "" {
		p.add(topics.LimitProperty, r.Limit)
	}
	return &p.publish
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
	case fsm.CodeKeys:
		return resp.AppendPage(dst, result.Page.Keys, result.Page.Next)
	case fsm.CodeReplies:
		dst = resp.AppendHeader(dst, len(result.Replies))
		for i := range result.Replies {
			dst = appendResult(dst, &result.Replies[i])
		}
		return dst
	default:
		return resp.AppendError(dst, result.Error.Text())
	}
}

// EncodeNotification returns the packet that notifies a client of a change, and that expires after
// the time left. Without a version it is no change, and has no __ts.
func EncodeNotification(event *fsm.Event, receiver *fsm.Receiver,
	left time.Duration,
) *packets.Publish {
	var payload []byte
	switch {
	case !event.Deleted:
		payload = resp.AppendArray(nil, "NOTIFY", "SET", "VALUE", event.Value)
	case receiver.Dialect == fsm.SDK:
		payload = resp.AppendArray(nil, "NOTIFY", "DELETE")
	default:
		payload = resp.AppendArray(nil, "NOTIFY", "DEL")
	}
	p := newPublish(topics.Notification(receiver.ClientID, event.Key), payload)
	p.setExpiry(left)
	if !event.Version.IsZero() {
		p.add("__ts", event.Version.String())
	}
	p.add("__protVer", protocolVersion)
	return &p.publish
}
