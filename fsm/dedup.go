package fsm

import (
	"bytes"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/btree"

	"holdfast/hlc"
)

// dedupEntry is the outcome of a request that is remembered so that a copy of the request gets the same reply and has no effect.
type dedupEntry struct {
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
	byID     *btree.BTreeG[dedupEntry]
	byExpiry btree.Map[int64, *expiring] // by expiryKey; derived, not in a snapshot
	clients  map[uint64]int64            // outcomes per client; derived
	reserve  int64                       // outcomes in the reserve; derived
}

// expiring are the outcomes that are due together.
type expiring struct {
	ids   []RequestID
	stale int // how many of them were prolonged, and are due later
}

// Outcomes are forgotten together that expire within 2^expiryShift ms and share the first expiryBits bits of their ids, so that none of these
// lists is long.
const (
	expiryShift = 10
	expiryBits  = 6
)

// maxForgotten bounds how many outcomes one entry forgets. The others stay a little longer, which harms nobody.
const maxForgotten = 50_000

func newDedup() dedup {
	return dedup{
		byID:    btree.NewBTreeGOptions(func(a, b dedupEntry) bool { return bytes.Compare(a.id[:], b.id[:]) < 0 }, btree.Options{NoLocks: true}),
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

func (d *dedup) put(m dedupEntry) {
	if m.flags&memoryReserve != 0 {
		d.reserve++
	}
	d.clients[m.client]++
	d.byID.Set(m)
	d.expireWith(&m)
}

func (d *dedup) expireWith(m *dedupEntry) {
	key := m.expiryKey()
	e, ok := d.byExpiry.Get(key)
	if !ok {
		e = &expiring{}
		d.byExpiry.Set(key, e)
	}
	e.ids = append(e.ids, m.id)
}

// prolong remembers an outcome until expires at the earliest.
func (d *dedup) prolong(m dedupEntry, expires int64) {
	if expires <= m.expires {
		return
	}
	before := m.expiryKey()
	m.expires = expires
	d.byID.Set(m)
	if m.expiryKey() == before {
		return
	}
	d.expireWith(&m)
	e, _ := d.byExpiry.Get(before)
	if e.stale++; 2*e.stale <= len(e.ids) { // so at most half of all places are stale
		return
	}
	e.ids, e.stale = slices.DeleteFunc(e.ids, func(id RequestID) bool { return !d.isDue(id, before) }), 0
	if len(e.ids) == 0 {
		d.byExpiry.Delete(before)
	}
}

// isDue reports whether an outcome is remembered, and due with a list.
func (d *dedup) isDue(id RequestID, key int64) bool {
	m, known := d.find(id)
	return known && m.expiryKey() == key
}

// expiryKey orders outcomes by when they are due, and those that are due together by their ids.
func (m *dedupEntry) expiryKey() int64 {
	return (m.expires+1<<expiryShift-1)>>expiryShift<<expiryBits | int64(m.id[0]>>(8-expiryBits))
}

// forget removes the outcomes that have expired at now, the oldest first, at most maxForgotten. All replicas remove the same outcomes, whether they
// applied the log or were restored from a snapshot.
func (d *dedup) forget(now int64) {
	for left := maxForgotten; left > 0; {
		key, e, ok := d.byExpiry.Min()
		if !ok || key>>expiryBits > now>>expiryShift {
			return
		}
		if left < len(e.ids) {
			slices.SortFunc(e.ids, func(a, b RequestID) int { return bytes.Compare(a[:], b[:]) })
		}
		for left > 0 && len(e.ids) > 0 {
			if id := e.ids[0]; e.stale == 0 || d.isDue(id, key) {
				d.drop(id)
				left--
			} else {
				e.stale--
			}
			e.ids = e.ids[1:]
		}
		if len(e.ids) == 0 {
			d.byExpiry.Delete(key)
		}
	}
}

func (d *dedup) drop(id RequestID) {
	gone, ok := d.byID.Delete(dedupEntry{id: id})
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
func remembered(id RequestID, index uint64, expires int64, client uint64, result *Result) dedupEntry {
	m := dedupEntry{
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
func (m *dedupEntry) result() Result {
	return Result{
		Code: m.code, Error: m.err, Dialect: m.dialect, Repeat: true,
		version: hlc.Clock{Wall: m.wall, Counter: uint64(m.counter)}, hasTime: m.flags&memoryHasTime != 0,
	}
}

// find returns the outcome of a request, if it is remembered.
func (d *dedup) find(id RequestID) (dedupEntry, bool) { return d.byID.Get(dedupEntry{id: id}) }

// room reports whether an outcome of the client may be added without touching the reserve.
func (d *dedup) room(client uint64, limits *Limits) bool {
	main := limits.DedupEntries - limits.DedupEntries/10
	share := limits.dedupShare()
	return int64(d.byID.Len())-d.reserve < main && d.clients[client] < share-share/10
}
