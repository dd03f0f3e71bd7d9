package fsm

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"iter"
	"slices"
)

// A chunk has room for chunkSize outcomes.
const (
	chunkShift = 4
	chunkSize  = 1 << chunkShift
)

// chunk has outcomes of one expiryGroup. A slot is written once, before add returns its place, and
// never changes. A chunk has 768 bytes, one of Go's size classes. With the due time in each slot it
// would have 896.
type chunk [chunkSize]slot

// slot is an outcome in 48 bytes. The due time is in dueChunk: it is the cluster time at which all
// outcomes of the group have expired.
type slot struct {
	id        RequestID
	index     uint64
	client    uint64
	wall      int64
	counter   uint32
	beforeDue uint16 // due minus expires, in milliseconds; below 2^expiryShift
	packed    uint16 // code, error, dialect and flags, at the shifts below
}

// The bits at which the error, the dialect and the flags begin in slot.packed. The code begins at
// bit 0.
const (
	errorShift   = 4
	dialectShift = 11
	flagShift    = 13
)

// The compiler checks that each value fits into its bits: a negative constant is no uint.
const (
	_ = uint(1<<errorShift - 1 - CodeReplies)
	_ = uint(1<<(dialectShift-errorShift) - errorCodes)
	_ = uint(1<<(flagShift-dialectShift) - 1 - SDK)
	_ = uint(1<<(16-flagShift) - dedupFlagsEnd)
)

// slotOf packs an outcome for a group with this due time.
func slotOf(e *dedupEntry, due int64) slot {
	packed := uint16(e.code) | uint16(e.err)<<errorShift | uint16(e.dialect)<<dialectShift |
		uint16(e.flags)<<flagShift
	return slot{e.id, e.index, e.client, e.wall, e.counter, uint16(due - e.expires), packed}
}

// entry unpacks an outcome of a group with this due time.
func (s *slot) entry(due int64) dedupEntry {
	return dedupEntry{
		id: s.id, index: s.index, client: s.client, wall: s.wall, counter: s.counter,
		expires: due - int64(s.beforeDue),
		code:    Code(s.packed & (1<<errorShift - 1)),
		err:     ErrorCode(s.packed >> errorShift & (1<<(dialectShift-errorShift) - 1)),
		dialect: Dialect(s.packed >> dialectShift & (1<<(flagShift-dialectShift) - 1)),
		flags:   uint8(s.packed >> flagShift),
	}
}

// place is the position of an outcome: the number of its chunk times chunkSize, plus the number of
// its slot.
type place uint32

// chunks has the chunks by their numbers. The zero value is empty.
type chunks struct {
	byNumber []dueChunk
	free     []uint32 // numbers that may be reused
}

// dueChunk is a chunk with the due time of its group. The time is kept for each chunk, because a
// place leads to the chunk only.
type dueChunk struct {
	*chunk
	due int64
}

func (c *chunks) at(p place) dedupEntry {
	found := &c.byNumber[p>>chunkShift]
	return found.chunk[p%chunkSize].entry(found.due)
}

// add makes a chunk for a group with this due time. It returns the chunk and its number.
func (c *chunks) add(due int64) (added *chunk, number uint32) {
	added = new(chunk)
	if n := len(c.free); n > 0 {
		number, c.free = c.free[n-1], c.free[:n-1]
		c.byNumber[number] = dueChunk{added, due}
		return added, number
	}
	c.byNumber = append(c.byNumber, dueChunk{added, due})
	return added, uint32(len(c.byNumber) - 1)
}

// remove frees a number for reuse. A snapshot may still refer to the chunk.
func (c *chunks) remove(number uint32) {
	c.byNumber[number] = dueChunk{}
	c.free = append(c.free, number)
}

// expiryGroup has the outcomes with one expiryKey: they are due together, and their ids share the
// first expiryIDBits bits.
type expiryGroup struct {
	chunkRange
	numbers []uint32 // numbers of the chunks
	stale   int      // number of stale places: the outcome was stored again, with a later expiry
	sorted  bool     // the outcomes are in the order of their ids
}

// chunkRange is a range of slots in consecutive chunks of a group. The outcomes in a copy of a
// chunkRange do not change.
type chunkRange struct {
	chunks     []*chunk
	start, end int   // slots in use are [start, end), counted from the first slot of chunks[0]
	due        int64 // cluster time
}

func (p *chunkRange) len() int { return p.end - p.start }

func (p *chunkRange) at(i int) dedupEntry {
	return p.chunks[i>>chunkShift][i%chunkSize].entry(
		p.due)
}

func (g *expiryGroup) place(i int) place {
	return place(g.numbers[i>>chunkShift])<<chunkShift | place(i%chunkSize)
}

// add appends an outcome, and returns its place.
func (g *expiryGroup) add(c *chunks, e *dedupEntry) place {
	if g.end == len(g.chunks)*chunkSize {
		added, number := c.add(g.due)
		g.chunks, g.numbers = append(g.chunks, added), append(g.numbers, number)
	}
	at := g.end
	g.chunks[at>>chunkShift][at%chunkSize] = slotOf(e, g.due)
	g.end++
	g.sorted = false
	return g.place(at)
}

// first returns the first outcome. The group must not be empty.
func (g *expiryGroup) first() (dedupEntry, place) { return g.at(g.start), g.place(g.start) }

// removeFirst removes the first outcome. It also removes the first chunk, if no outcome is left in
// it.
func (g *expiryGroup) removeFirst(c *chunks) {
	if g.start++; g.start == chunkSize || g.start == g.end {
		c.remove(g.numbers[0])
		g.chunks, g.numbers = g.chunks[1:], g.numbers[1:]
		g.end -= min(g.start, chunkSize)
		g.start = 0
	}
}

// all returns the outcomes with their places, also stale ones.
func (g *expiryGroup) all() iter.Seq2[dedupEntry, place] {
	return func(yield func(dedupEntry, place) bool) {
		for i := g.start; i < g.end; i++ {
			if !yield(g.at(i), g.place(i)) {
				return
			}
		}
	}
}

// captured has all outcomes at one moment, by the first expiryIDBits bits of their ids. Stale
// places are in it, too; inOrder skips them. It does not change.
type captured [1 << expiryIDBits][]chunkRange

// capture returns all outcomes as they are now. The time that it takes grows with the number of
// groups, not of outcomes.
func (d *dedup) capture() (all captured) {
	d.byExpiry.Scan(func(key int64, group *expiryGroup) bool {
		ranges := &all[key&(1<<expiryIDBits-1)]
		*ranges = append(*ranges, group.chunkRange)
		return true
	})
	return all
}

// inOrder returns the outcomes in the order of their ids. Of an outcome that is stored more than
// once it returns the one that expires last. It copies and sorts one element of captured at a time,
// which fits into a processor's cache.
func (c *captured) inOrder() iter.Seq[*dedupEntry] {
	return func(yield func(*dedupEntry) bool) {
		var entries []dedupEntry
		var order []keyed
		for i := range c {
			entries, order = entries[:0], order[:0]
			for _, p := range c[i] {
				for at := p.start; at < p.end; at++ {
					e := p.at(at)
					order = append(order, keyed{binary.BigEndian.Uint64(e.id[:]), len(entries)})
					entries = append(entries, e)
				}
			}
			slices.SortFunc(order, func(a, b keyed) int {
				if by := cmp.Compare(a.key, b.key); by != 0 {
					return by
				}
				one, other := &entries[a.at], &entries[b.at]
				return cmp.Or(bytes.Compare(one.id[:], other.id[:]),
					cmp.Compare(one.expires, other.expires))
			})
			for j, k := range order {
				e := &entries[k.at]
				if superseded := j+1 < len(order) &&
					entries[order[j+1].at].id == e.id; !superseded && !yield(e) {
					return
				}
			}
		}
	}
}

// keyed is the position of an outcome in a slice, with the first bytes of its id: most comparisons
// need no more.
type keyed struct {
	key uint64 // first 8 bytes of the id
	at  int
}
