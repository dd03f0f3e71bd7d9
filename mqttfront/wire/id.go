package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"

	"holdfast/internal/mqttconn"

	"holdfast/fsm"
)

// minIdentifying is the shortest Correlation Data, in bytes, that gives a request an identity.
const minIdentifying = 16

// requestID returns the identity of a request: the first 16 bytes of a SHA-256 over the fields that
// identify it. Two messages with equal ids are copies of one request. The id is zero if the
// Correlation Data is too short. It depends on no setting, so all nodes compute the same id, also
// while a change of settings is rolled out.
func requestID(claimedID string, message *mqttconn.Publish, timestamp,
	token string,
) (id fsm.RequestID) {
	if len(message.Properties.CorrelationData) < minIdentifying {
		return id
	}
	h := hashers.Get().(*hasher)
	defer hashers.Put(h)
	h.sum.Reset()
	h.text(claimedID)
	h.text(message.Properties.ResponseTopic)
	h.field(message.Properties.CorrelationData)
	h.field(message.Payload)
	h.text(timestamp)
	h.text(token)
	copy(id[:], h.sum.Sum(h.scratch[:0]))
	return id
}

// hasher hashes fields, with the length of each field before it. Hashers are pooled, because the
// arguments of a hash.Hash escape to the heap.
type hasher struct {
	sum     hash.Hash
	scratch []byte
}

var hashers = sync.Pool{New: func() any {
	return &hasher{
		sum:     sha256.New(),
		scratch: make([]byte, 0, 512),
	}
}}

func (h *hasher) field(field []byte) {
	// a hash never fails
	h.sum.Write(binary.BigEndian.AppendUint64(h.scratch[:0], uint64(len(field))))
	h.sum.Write(field)
}

func (h *hasher) text(field string) {
	h.scratch = append(binary.BigEndian.AppendUint64(h.scratch[:0], uint64(len(field))), field...)
	h.sum.Write(h.scratch)
}
