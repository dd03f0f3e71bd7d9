package fsm

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"holdfast/hlc"
	"holdfast/internal/policy"
)

// ErrUnknown says that an entry or snapshot holds something that this version does not know. It was
// written by a newer version; the node has to stop, and to be upgraded, rather than to let its
// state diverge.
var ErrUnknown = errors.New("written by a newer version of holdfast: upgrade this node")

// ErrDamaged says that an entry or snapshot is not as it was written.
var ErrDamaged = errors.New("damaged data")

// The append functions write proto3: a zero value is not written.

func appendUint(b []byte, field protowire.Number, value uint64) []byte {
	if value == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), value)
}

func appendBool(b []byte, field protowire.Number, value bool) []byte {
	if !value {
		return b
	}
	return appendUint(b, field, 1)
}

func appendBytes[T ~string | ~[]byte](b []byte, field protowire.Number, value T) []byte {
	if len(value) == 0 {
		return b
	}
	return appendElement(b, field, value)
}

// appendElement writes an element of a repeated field. An empty element is written, too.
func appendElement[T ~string | ~[]byte](b []byte, field protowire.Number, value T) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(value)))
	return append(b, value...)
}

// appendMessage appends an embedded message, whose content write appends. One byte is reserved for
// the length before the content. If the length takes more bytes, the content is moved up.
func appendMessage(b []byte, field protowire.Number, write func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	start := len(b)
	b = write(append(b, 0))
	size := len(b) - start - 1
	if more := protowire.SizeVarint(uint64(size)) - 1; more > 0 {
		b = append(b, make([]byte, more)...)
		copy(b[start+1+more:], b[start+1:start+1+size])
	}
	protowire.AppendVarint(b[:start], uint64(size))
	return b
}

// reader reads the fields of one message. The first error is kept in err, and ends the reading.
type reader struct {
	rest  []byte
	field protowire.Number
	kind  protowire.Type
	err   error
	names names // shared strings of the entry that is read; nil elsewhere

	inOperation bool // the message is an operation of a transaction
}

// names has the strings of an entry that several commands may share, so that each is allocated
// once: a few clients send many commands.
type names map[string]string

// name reads a string that other commands may have, too. Equal names of an entry share memory.
func (r *reader) name() string {
	b := r.bytes()
	if known, ok := r.names[string(b)]; ok {
		return known
	}
	name := string(b)
	if r.names != nil {
		r.names[name] = name
	}
	return name
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.rest = nil
}

// next moves to the next field and reports whether there is one.
func (r *reader) next() bool {
	if r.err != nil || len(r.rest) == 0 {
		return false
	}
	field, kind, n := protowire.ConsumeTag(r.rest)
	if n < 0 {
		r.fail(ErrDamaged)
		return false
	}
	r.field, r.kind, r.rest = field, kind, r.rest[n:]
	return true
}

func (r *reader) unknown(message string) {
	r.fail(fmt.Errorf("%w: field %d of %s is unknown", ErrUnknown, r.field, message))
}

func (r *reader) uint() uint64 {
	value, n := protowire.ConsumeVarint(r.rest)
	if r.kind != protowire.VarintType || n < 0 {
		r.fail(ErrDamaged)
		return 0
	}
	r.rest = r.rest[n:]
	return value
}

func (r *reader) int() int64 { return int64(r.uint()) }

// small reads a value below end: an enumeration, flags or a bool. Any other value was written by a
// newer version: the error is ErrUnknown.
func (r *reader) small(end uint64) uint8 {
	value := r.uint()
	if value >= end {
		r.fail(fmt.Errorf("%w: value %d of field %d is unknown", ErrUnknown, value, r.field))
		return 0
	}
	return uint8(value)
}

func (r *reader) bool() bool { return r.small(2) == 1 }

// bytes reads a byte string. It returns a slice of the message, not a copy.
func (r *reader) bytes() []byte {
	value, n := protowire.ConsumeBytes(r.rest)
	if r.kind != protowire.BytesType || n < 0 {
		r.fail(ErrDamaged)
		return nil
	}
	r.rest = r.rest[n:]
	return value[:len(value):len(value)]
}

func (r *reader) string() string { return string(r.bytes()) }

func (r *reader) id() (id RequestID) {
	value := r.bytes()
	if len(value) != len(id) {
		r.fail(ErrDamaged)
		return id
	}
	return RequestID(value)
}

// enter returns a reader of the embedded message in the current field. leave takes over its error.
// They are a pair of calls instead of one with a callback, so that reading a command allocates
// nothing.
func (r *reader) enter() reader { return reader{rest: r.bytes(), err: r.err, names: r.names} }

func (r *reader) leave(inner *reader) {
	if inner.err != nil {
		r.fail(inner.err)
	}
}

func appendTimestamp(b []byte, field protowire.Number, t *hlc.Timestamp) []byte {
	if t.IsZero() {
		return b
	}
	return appendMessage(b, field, func(b []byte) []byte {
		b = appendUint(b, 1, uint64(t.Wall))
		b = appendUint(b, 2, t.Counter)
		return appendBytes(b, 3, t.NodeID)
	})
}

func (r *reader) timestamp() (t hlc.Timestamp) {
	inner := r.enter()
	for inner.next() {
		switch inner.field {
		case 1:
			t.Wall = inner.int()
		case 2:
			t.Counter = inner.uint()
		case 3:
			t.NodeID = inner.name()
		default:
			inner.unknown("Timestamp")
		}
	}
	r.leave(&inner)
	return t
}

func appendAttributes(b []byte, field protowire.Number, attributes []policy.Attribute) []byte {
	for i := range attributes {
		b = appendMessage(b, field, func(b []byte) []byte {
			b = appendBytes(b, 1, attributes[i].Name)
			return appendBytes(b, 2, attributes[i].Value)
		})
	}
	return b
}

func (r *reader) attribute() (attribute policy.Attribute) {
	inner := r.enter()
	for inner.next() {
		switch inner.field {
		case 1:
			attribute.Name = inner.string()
		case 2:
			attribute.Value = inner.string()
		default:
			inner.unknown("Attribute")
		}
	}
	r.leave(&inner)
	return attribute
}
