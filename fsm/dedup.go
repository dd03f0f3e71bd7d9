package fsm

import (
	"bytes"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/btree"

	"holdfast/hlc"
)

// memory is the outcome of a request that is remembered so that a copy of the request gets the same reply and has no effect.
type memory struct {
	id      RequestID
	index   uint64 // of the log entry in which it took effect
	expires int64  // cluster time
	client  uint64 // hash of the client id
	wall    int64  // version in the reply
	counter uint32
	code    Code
	err     ErrorCode
	dialect Dialect
	flags   uint8
}

const (
	memoryHasTime uint8 = 1 << iota
	memoryReserve       // counts against the reserve
	memoryFlags         // the end of the known flags
)

// dedup is the table of outcomes. An outcome leaves it when its lifetime is over and for no other reason: if crowding could
// push it out, a flood by one client would let another client's redelivered write take effect twice.
type dedup struct {
	byID     *btree.BTreeG[memory]
	byExpiry btree.Map[int64, []RequestID] // by expiry in units of expiryUnit; derived, not in a snapshot
	clients  map[uint64]int64              // outcomes per client; derived
	reserve  int64                         // outcomes in the reserve; derived
}

// expiryShift is the granularity in which outcomes are forgotten: 2^10 ms.
const expiryShift = 10

// maxForgotten bounds how many outcomes one entry forgets. The others stay a little longer, which harms nobody.
const maxForgotten = 50_000

func newDedup() dedup {
	return dedup{
		byID:    btree.NewBTreeGOptions(func(a, b memory) bool { return bytes.Compare(a.id[:], b.id[:]) < 0 }, btree.Options{NoLocks: true}),
		clients: make(map[uint64]int64),
	}
}

func clientHash(clientID string) uint64 { return xxhash.Sum64String(clientID) }

// dedupShare returns how many outcomes of one client are remembered, its refusals included: never more than half of the table.
func (l *Limits) dedupShare() int64 {
	half := l.DedupEntries / 2
	if l.DedupPerClient > 0 {
		return min(l.DedupPerClient, half)
	}
	return half
}

// reserveRoom reports whether a refusal of the client may be remembered.
func (d *dedup) reserveRoom(client uint64, limits *Limits) bool {
	return d.reserve < limits.DedupEntries/10 && d.clients[client] < limits.dedupShare()
}

func (d *dedup) put(m memory) {
	if m.flags&memoryReserve != 0 {
		d.reserve++
	}
	d.clients[m.client]++
	d.byID.Set(m)
	d.expireWith(expiryUnit(m.expires), m.id)
}

func (d *dedup) expireWith(unit int64, id RequestID) {
	ids, _ := d.byExpiry.Get(unit)
	d.byExpiry.Set(unit, append(ids, id))
}

// prolong remembers an outcome until expires at the earliest. forget removes its id from the earlier unit.
func (d *dedup) prolong(m memory, expires int64) {
	if expires <= m.expires {
		return
	}
	before := expiryUnit(m.expires)
	m.expires = expires
	d.byID.Set(m)
	if unit := expiryUnit(expires); unit != before {
		d.expireWith(unit, m.id)
	}
}

func expiryUnit(expires int64) int64 { return (expires + 1<<expiryShift - 1) >> expiryShift }

// forget removes what has expired at now, the oldest first, at most maxForgotten.
func (d *dedup) forget(now int64) {
	for left := maxForgotten; left > 0; {
		unit, ids, ok := d.byExpiry.Min()
		if !ok || unit > now>>expiryShift {
			return
		}
		ids = slices.DeleteFunc(ids, func(id RequestID) bool { // of outcomes that were prolonged. They are not counted below: a restored replica has no such ids.
			m, known := d.find(id)
			return !known || expiryUnit(m.expires) != unit
		})
		n := min(left, len(ids))
		if n < len(ids) { // which of them go must not depend on the order in which this replica came to know them
			slices.SortFunc(ids, func(a, b RequestID) int { return bytes.Compare(a[:], b[:]) })
		}
		for _, id := range ids[:n] {
			d.drop(id)
		}
		left -= n
		if n == len(ids) {
			d.byExpiry.Delete(unit)
		} else {
			d.byExpiry.Set(unit, ids[n:])
		}
	}
}

func (d *dedup) drop(id RequestID) {
	gone, ok := d.byID.Delete(memory{id: id})
	if !ok {
		return
	}
	if gone.flags&memoryReserve != 0 {
		d.reserve--
	}
	if d.clients[gone.client]--; d.clients[gone.client] == 0 {
		delete(d.clients, gone.client)
	}
}

// remembered turns a result into what is kept of it.
func remembered(id RequestID, index uint64, expires int64, client uint64, result *Result) memory {
	m := memory{
		id: id, index: index, expires: expires, client: client,
		wall: result.version.Wall, counter: uint32(result.version.Counter),
		code: result.Code, err: result.Error, dialect: result.Dialect,
	}
	if result.hasTime {
		m.flags |= memoryHasTime
	}
	return m
}

// result turns what is kept into the result for a copy of the request.
func (m *memory) result() Result {
	return Result{
		Code: m.code, Error: m.err, Dialect: m.dialect, Repeat: true,
		version: hlc.Clock{Wall: m.wall, Counter: uint64(m.counter)}, hasTime: m.flags&memoryHasTime != 0,
	}
}

// find returns the outcome of a request, if it is remembered.
func (d *dedup) find(id RequestID) (memory, bool) { return d.byID.Get(memory{id: id}) }

// room reports whether an outcome of the client may be added without touching the reserve.
func (d *dedup) room(client uint64, limits *Limits) bool {
	main := limits.DedupEntries - limits.DedupEntries/10
	share := limits.dedupShare()
	return int64(d.byID.Len())-d.reserve < main && d.clients[client] < share-share/10
}
