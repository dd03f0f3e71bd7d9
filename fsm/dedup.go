package fsm

import (
	"bytes"
	"iter"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/btree"

	"holdfast/hlc"
)

// dedupEntry is the outcome of a request that is remembered so that a copy of the request gets the
// same reply and has no effect.
type dedupEntry struct {
	id      RequestID
	index   uint64 // of the log entry that decided it, or of the Restore that brought it
	expires int64  // cluster time from which it may be forgotten
	client  uint64 // hash of the client id
	wall    int64  // wall clock of the version in the reply
	counter uint32 // counter of that version
	code    Code
	err     ErrorCode
	dialect Dialect
	flags   uint8
}

const (
	dedupHasVersion uint8 = 1 << iota
	dedupReserve          // the outcome is a refusal in the reserve (see dedup)
	dedupFlagsEnd         // the first bit without a meaning
)

// dedup is the table of outcomes. An outcome leaves it when its lifetime is over and for no other
// reason: if crowding could push it out, a flood by one client would let another client's
// redelivered write take effect twice.
//
// Outcomes are stored in chunks, and chunks belong to groups of outcomes that are due together
// (expiryGroup). A stored outcome never changes, so a snapshot needs no copy. A map has the place
// of each outcome. An outcome that is prolonged is stored again, and its old place becomes stale.
//
// A tenth of limits.dedupEntries is the reserve. Only refusals, the outcomes of requests that were
// not executed, use it (hasReserve); all other outcomes share the rest (hasRoom).
type dedup struct {
	places   map[RequestID]place
	chunks   chunks
	byExpiry btree.Map[int64, *expiryGroup] // by expiryKey
	clients  map[uint64]int64               // number of outcomes by the hash of the client id
	reserve  int64                          // number of outcomes in the reserve
	replies  replyTable                     // replies of the outcomes with CodeReplies
	lastRead RequestID                      // the greatest id, while a snapshot is read
}

// An expiryGroup has the outcomes that expire within the same 2^expiryShift ms and share the first
// expiryIDBits bits of their ids. The bits keep groups short.
const (
	expiryShift  = 10
	expiryIDBits = 6
)

// maxExpiredOutcomes bounds how many outcomes one log entry removes. Outcomes beyond it are removed
// by later entries.
const maxExpiredOutcomes = 50_000

func newDedup() dedup {
	return dedup{
		places: make(map[RequestID]place), clients: make(map[uint64]int64),
		replies: newReplyTable(),
	}
}

func clientHash(clientID string) uint64 { return xxhash.Sum64String(clientID) }

// dedupShare returns how many outcomes of one client, including its refusals, may be in the table:
// at most half of it.
func (l *Limits) dedupShare() int64 {
	half := l.DedupEntries / 2
	if l.DedupPerClient > 0 {
		return min(l.DedupPerClient, half)
	}
	return half
}

// hasReserve reports whether a refusal of the client may be remembered.
func (d *dedup) hasReserve(client uint64, limits *Limits) bool {
	return d.reserve < limits.DedupEntries/10 && d.clients[client] < limits.dedupShare()
}

// put remembers an outcome that is not remembered yet. replies is nil except for a transaction
// (CodeReplies).
func (d *dedup) put(m dedupEntry, replies *keptReplies) {
	if m.flags&dedupReserve != 0 {
		d.reserve++
	}
	d.clients[m.client]++
	if replies != nil {
		d.replies.put(replies)
	}
	d.store(&m)
}

// store adds an outcome to its expiryGroup.
func (d *dedup) store(m *dedupEntry) {
	key := m.expiryKey()
	group, ok := d.byExpiry.Get(key)
	if !ok {
		group = &expiryGroup{chunkRange: chunkRange{due: key >> expiryIDBits << expiryShift}}
		d.byExpiry.Set(key, group)
	}
	d.places[m.id] = group.add(&d.chunks, m)
}

// prolong moves the expiry of an outcome to expires, unless it is later already.
func (d *dedup) prolong(m dedupEntry, expires int64) {
	if expires <= m.expires {
		return
	}
	before := m.expiryKey()
	m.expires = expires
	d.store(&m)
	group, _ := d.byExpiry.Get(before)
	if group.stale++; 2*group.stale > group.len() { // so at most half of all places are stale
		d.rebuild(before, group)
	}
}

// isLive reports whether a place is the current place of an outcome, and not a stale one.
func (d *dedup) isLive(m *dedupEntry, at place) bool {
	live, known := d.places[m.id]
	return known && live == at
}

// expiryKey orders outcomes by when they are due: when they expire, rounded up to 2^expiryShift ms.
// It orders those that are due together by the first expiryIDBits bits of their ids.
func (m *dedupEntry) expiryKey() int64 {
	return (m.expires+1<<expiryShift-1)>>expiryShift<<expiryIDBits |
		int64(m.id[0]>>(8-expiryIDBits))
}

// removeExpired removes the groups that are due at now, the oldest first, and at most
// maxExpiredOutcomes outcomes. Later entries remove the rest. A group is due when all of its
// outcomes have expired. Until its removal, an expired outcome is still found and still answers
// copies.
func (d *dedup) removeExpired(now int64) {
	for left := maxExpiredOutcomes; left > 0; {
		key, group, ok := d.byExpiry.Min()
		if !ok || key>>expiryIDBits > now>>expiryShift {
			return
		}
		if left < group.len()-group.stale && !group.sorted {
			// only some are removed: sort them, because a restored replica has them in another
			// order
			group = d.rebuild(key, group)
		}
		for group.len() > 0 {
			m, at := group.first()
			switch {
			case !d.isLive(&m, at):
				group.stale--
			case left == 0:
				return
			default:
				d.drop(&m)
				left--
			}
			group.removeFirst(&d.chunks)
		}
		d.byExpiry.Delete(key)
	}
}

// rebuild makes a group anew, in the order of the ids and without stale places.
func (d *dedup) rebuild(key int64, group *expiryGroup) *expiryGroup {
	var live []dedupEntry
	for ; group.len() > 0; group.removeFirst(&d.chunks) {
		if m, at := group.first(); d.isLive(&m, at) {
			live = append(live, m)
		}
	}
	d.byExpiry.Delete(key)
	slices.SortFunc(live, func(a, b dedupEntry) int { return bytes.Compare(a.id[:], b.id[:]) })
	for i := range live {
		d.store(&live[i])
	}
	rebuilt, ok := d.byExpiry.Get(key)
	if ok {
		rebuilt.sorted = true
	}
	return rebuilt
}

func (d *dedup) drop(gone *dedupEntry) {
	delete(d.places, gone.id)
	if gone.code == CodeReplies {
		d.replies.drop(gone.id)
	}
	if gone.flags&dedupReserve != 0 {
		d.reserve--
	}
	if d.clients[gone.client]--; d.clients[gone.client] == 0 {
		delete(d.clients, gone.client)
	}
}

// len returns the number of outcomes.
func (d *dedup) len() int { return len(d.places) }

// all returns the outcomes in no particular order.
func (d *dedup) all() iter.Seq[dedupEntry] {
	return func(yield func(dedupEntry) bool) {
		d.byExpiry.Scan(func(_ int64, group *expiryGroup) bool {
			for m, at := range group.all() {
				if d.isLive(&m, at) && !yield(m) {
					return false
				}
			}
			return true
		})
	}
}

// dedupEntryOf returns the dedup entry of a result. It does not have the replies of a transaction.
func dedupEntryOf(id RequestID, index uint64, expires int64, client uint64,
	result *Result,
) dedupEntry {
	m := dedupEntry{
		id: id, index: index, expires: expires, client: client,
		wall: result.version.Wall, counter: uint32(result.version.Counter),
		code: result.Code, err: result.Error, dialect: result.Dialect,
	}
	if result.hasVersion {
		m.flags |= dedupHasVersion
	}
	return m
}

// result returns the result for a copy of the request that has this dedup entry.
func (d *dedup) result(m *dedupEntry) Result {
	result := Result{
		Code: m.code, Error: m.err, Dialect: m.dialect, Repeat: true,
		version:    hlc.Clock{Wall: m.wall, Counter: uint64(m.counter)},
		hasVersion: m.flags&dedupHasVersion != 0,
	}
	if m.code == CodeReplies {
		result.Replies = d.replies.find(m.id).results(m.dialect)
	}
	return result
}

// find returns the outcome of a request, if it is remembered.
func (d *dedup) find(id RequestID) (dedupEntry, bool) {
	at, ok := d.places[id]
	if !ok {
		return dedupEntry{}, false
	}
	return d.chunks.at(at), true
}

// hasRoom reports whether an outcome of the client, other than a refusal, may be added. A tenth of
// the table, and a tenth of the client's share, are reserved for refusals.
func (d *dedup) hasRoom(client uint64, limits *Limits) bool {
	main := limits.DedupEntries - limits.DedupEntries/10
	share := limits.dedupShare()
	return int64(d.len())-d.reserve < main && d.clients[client] < share-share/10
}
