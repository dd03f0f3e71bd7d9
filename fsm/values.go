package fsm

import (
	"cmp"
	"math"
	"strings"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/btree"

	"holdfast/hlc"
)

// record is a key with its value. While a snapshot that is not yet released has it, it is
// immutable. Key and value share one allocation, because with many small keys the overhead of each
// allocation dominates.
type record struct {
	data     string // key, then value
	wall     int64  // version
	counter  uint32 // version; below hlc.CounterLimit
	keySize  uint32
	deadline int64 // cluster time at which the key is gone; noDeadline for never
	holding  *holding
}

const noDeadline = math.MaxInt64

func newRecord(key, value []byte, version hlc.Clock, deadline int64, holding *holding) *record {
	return &record{
		data: join(key, value), keySize: uint32(len(key)),
		wall: version.Wall, counter: uint32(version.Counter),
		deadline: deadline, holding: holding,
	}
}

func join(key, value []byte) string {
	var data strings.Builder
	data.Grow(len(key) + len(value))
	data.Write(key)
	data.Write(value)
	return data.String()
}

func (r *record) key() string        { return r.data[:r.keySize] }
func (r *record) value() string      { return r.data[r.keySize:] }
func (r *record) version() hlc.Clock { return hlc.Clock{Wall: r.wall, Counter: uint64(r.counter)} }

// token returns the fencing token of the key, nil if it has none.
func (r *record) token() *hlc.Timestamp {
	if r.holding.token.IsZero() {
		return nil
	}
	return &r.holding.token
}

// values are all records, ordered by key, and those with a deadline also by deadline.
type values struct {
	byKey      *btree.BTreeG[*record]
	byDeadline *btree.BTreeG[*record]
	bytes      int64 // of all keys and values
	owners     owners

	// index finds a record in one step, where byKey needs one for each level of the tree. It has at
	// most one record for each hash.
	index    keyIndex
	hashMask uint64 // all ones; a test makes hashes collide
	// unindexed counts the records that are not in index, because another record with the same hash
	// was there when they were added. Only byKey finds them.
	unindexed int
	// captures counts the snapshots that are not yet released. While there are any, no record is
	// changed.
	captures *atomic.Int64
}

// keyIndex is a map by the hash of a key, in two parts. A map doubles its room when it is full. Two
// of unequal sizes do so at different times, so that together they never have much more room than
// they need.
type keyIndex struct{ smaller, larger map[uint64]*record }

func newKeyIndex() keyIndex {
	return keyIndex{smaller: make(map[uint64]*record), larger: make(map[uint64]*record)}
}

// part returns the part for a hash. The larger part gets about 1.41 (√2) times as many keys as the
// smaller one.
func (x *keyIndex) part(hash uint64) map[uint64]*record {
	const share = math.MaxUint64 / 1000 * 414
	if hash < share {
		return x.smaller
	}
	return x.larger
}

func (x *keyIndex) len() int { return len(x.smaller) + len(x.larger) }

func newValues() values {
	return values{
		byKey: btree.NewBTreeGOptions(func(a, b *record) bool { return a.key() < b.key() },
			btree.Options{NoLocks: true}),
		byDeadline: btree.NewBTreeGOptions(func(a, b *record) bool {
			if c := cmp.Compare(a.deadline, b.deadline); c != 0 {
				return c < 0
			}
			return a.key() < b.key()
		}, btree.Options{NoLocks: true}),
		owners: make(owners), index: newKeyIndex(), hashMask: math.MaxUint64,
		captures: new(atomic.Int64),
	}
}

// len returns the number of keys.
func (v *values) len() int { return v.byKey.Len() }

// find returns the record of the key, whether or not it is due. It may run beside other readers.
func (v *values) find(key []byte) (*record, bool) {
	hash := xxhash.Sum64(key) & v.hashMask
	if r, ok := v.index.part(hash)[hash]; ok && r.key() == string(key) {
		return r, true
	}
	if v.unindexed == 0 {
		return nil, false
	}
	return v.byKey.Get(&record{data: string(key), keySize: uint32(len(key))})
}

// put adds a record, or replaces the record with the same key.
func (v *values) put(r *record) {
	old, replaced := v.byKey.Set(r)
	if replaced {
		v.removeDerived(old)
	}
	v.addDerived(r)
	hash := xxhash.Sum64String(r.key()) & v.hashMask
	part := v.index.part(hash)
	switch indexed, taken := part[hash]; {
	case replaced && indexed != old: // it stays unindexed
	case replaced || !taken:
		part[hash] = r
	default:
		v.unindexed++
	}
}

// set gives the key a value. found is its record, or nil if there is none. It returns the record
// that has the value.
func (v *values) set(found *record, key, value []byte, version hlc.Clock, deadline int64,
	holding *holding,
) *record {
	if found == nil || v.captures.Load() > 0 {
		added := newRecord(key, value, version, deadline, holding)
		v.put(added)
		return added
	}
	v.removeDerived(found)
	*found = record{ // newRecord would allocate another
		data: join(key, value), keySize: found.keySize, wall: version.Wall,
		counter: uint32(version.Counter), deadline: deadline, holding: holding,
	}
	v.addDerived(found)
	return found
}

func (v *values) delete(r *record) {
	old, deleted := v.byKey.Delete(r)
	if !deleted {
		return
	}
	v.removeDerived(old)
	hash := xxhash.Sum64String(old.key()) & v.hashMask
	if part := v.index.part(hash); part[hash] == old {
		delete(part, hash)
	} else {
		v.unindexed--
	}
}

// addDerived adds a record to bytes, owners and byDeadline. The caller updates byKey and index.
func (v *values) addDerived(r *record) {
	v.bytes += int64(len(r.data))
	v.owners.add(r)
	if r.deadline != noDeadline {
		v.byDeadline.Set(r)
	}
}

// removeDerived subtracts a record from bytes and owners, and removes it from byDeadline. The
// caller updates byKey and index.
func (v *values) removeDerived(old *record) {
	v.bytes -= int64(len(old.data))
	v.owners.remove(old)
	if old.deadline != noDeadline {
		v.byDeadline.Delete(old)
	}
}

// capture returns the records, in the order of their keys, as they are now. They stay so until
// release is called, once, from any goroutine.
func (v *values) capture() (byKey *btree.BTreeG[*record], release func()) {
	captures := v.captures
	captures.Add(1)
	return v.byKey.Copy(), func() { captures.Add(-1) }
}

// postpone moves all deadlines by shift, which keeps their order. It changes the records in place,
// so no snapshot may hold them.
func (v *values) postpone(shift int64) {
	v.byDeadline.Scan(func(r *record) bool {
		r.deadline += shift
		return true
	})
}

// due returns the record with the earliest deadline, and reports whether it has expired.
func (v *values) due(now int64) (*record, bool) {
	r, ok := v.byDeadline.Min()
	return r, ok && r.deadline <= now
}
