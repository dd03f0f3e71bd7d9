package fsm

import (
	"cmp"
	"math"
	"strings"

	"github.com/tidwall/btree"

	"holdfast/hlc"
)

// record is a key with its value. It is immutable once it is in the tree, so that a copy of the tree is a copy of the state.
// Key and value share one allocation: at a million small keys that is what the memory goes to.
type record struct {
	data     string // key, then value
	wall     int64  // version
	counter  uint32 // version; below hlc.CounterLimit
	keySize  uint32
	deadline int64 // cluster time at which the key is gone; noDeadline for never
	token    *hlc.Timestamp
}

const noDeadline = math.MaxInt64

func newRecord(key, value []byte, version hlc.Clock, deadline int64, token *hlc.Timestamp) *record {
	var data strings.Builder
	data.Grow(len(key) + len(value))
	data.Write(key)
	data.Write(value)
	return &record{
		data: data.String(), keySize: uint32(len(key)),
		wall: version.Wall, counter: uint32(version.Counter),
		deadline: deadline, token: token,
	}
}

func (r *record) key() string        { return r.data[:r.keySize] }
func (r *record) value() string      { return r.data[r.keySize:] }
func (r *record) version() hlc.Clock { return hlc.Clock{Wall: r.wall, Counter: uint64(r.counter)} }

// values orders all records by key, and those with a deadline also by deadline.
type values struct {
	byKey      *btree.BTreeG[*record]
	byDeadline *btree.BTreeG[*record]
	bytes      int64 // of all keys and values
}

func newValues() values {
	return values{
		byKey: btree.NewBTreeGOptions(func(a, b *record) bool { return a.key() < b.key() }, btree.Options{NoLocks: true}),
		byDeadline: btree.NewBTreeGOptions(func(a, b *record) bool {
			if c := cmp.Compare(a.deadline, b.deadline); c != 0 {
				return c < 0
			}
			return a.key() < b.key()
		}, btree.Options{NoLocks: true}),
	}
}

// find returns the record of the key, whether or not it is due. It may run beside other readers.
func (v *values) find(key []byte) (*record, bool) {
	return v.byKey.Get(&record{data: string(key), keySize: uint32(len(key))})
}

func (v *values) put(r *record) {
	if old, replaced := v.byKey.Set(r); replaced {
		v.forget(old)
	}
	v.bytes += int64(len(r.data))
	if r.deadline != noDeadline {
		v.byDeadline.Set(r)
	}
}

func (v *values) delete(r *record) {
	if old, deleted := v.byKey.Delete(r); deleted {
		v.forget(old)
	}
}

func (v *values) forget(old *record) {
	v.bytes -= int64(len(old.data))
	if old.deadline != noDeadline {
		v.byDeadline.Delete(old)
	}
}

// due returns the record with the earliest deadline, and reports whether it has expired.
func (v *values) due(now int64) (*record, bool) {
	r, ok := v.byDeadline.Min()
	return r, ok && r.deadline <= now
}
