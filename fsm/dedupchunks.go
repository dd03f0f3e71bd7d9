package fsm

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"iter"
	"slices"
)

// chunkSize is how many outcomes a chunk has.
const (
	chunkShift = 4
	chunkSize  = 1 << chunkShift
)

// chunk has outcomes that are due together. A slot is written once, before the place in it is known to anybody, and is not changed afterwards. With
// another word in it a chunk would take 128 bytes more, by Go's classes of sizes.
type chunk [chunkSize]slot

// slot is an outcome in 48 bytes. It leaves out when the outcomes of its chunk are due: the cluster time at which all of them have expired.
type slot struct {
	id      RequestID
	index   uint64
	client  uint64
	wall    int64
	counter uint32
	early   uint16 // by how much it expires before it is due, in milliseconds; below 2^expiryShift
	rest    uint16 // code, error, dialect and flags; see the shifts
}

// At which bits of slot.rest each of them begins.
const (
	errorShift   = 4 // the code is below
	dialectShift = 11
	flagShift    = 13
)

// All known values have room: a negative constant would be no uint.
const (
	_ = uint(1<<errorShift - 1 - CodeReplies)
	_ = uint(1<<(dialectShift-errorShift) - errorCodes)
	_ = uint(1<<(flagShift-dialectShift) - 1 - SDK)
	_ = uint(1<<(16-flagShift) - dedupFlagsEnd)
)

// slotOf returns the slot for an outcome among those that are due at a time.
func slotOf(m *dedupEntry, due int64) slot {
	rest := uint16(m.code) | uint16(m.err)<<errorShift | uint16(m.dialect)<<dialectShift | uint16(m.flags)<<flagShift
	return slot{m.id, m.index, m.client, m.wall, m.counter, uint16(due - m.expires), rest}
}

// entry returns the outcome of a slot, in a chunk that is due at a time.
func (s *slot) entry(due int64) dedupEntry {
	return dedupEntry{
		id: s.id, index: s.index, client: s.client, wall: s.wall, counter: s.counter, expires: due - int64(s.early),
		code: Code(s.rest & (1<<errorShift - 1)), err: ErrorCode(s.rest >> errorShift & (1<<(dialectShift-errorShift) - 1)),
		dialect: Dialect(s.rest >> dialectShift & (1<<(flagShift-dialectShift) - 1)), flags: uint8(s.rest >> flagShift),
	}
}

// place is where an outcome is: the number of its chunk, and the slot.
type place uint32

// chunks has the chunks by their numbers. The zero value is empty.
type chunks struct {
	byNumber []dueChunk
	free     []uint32
}

// dueChunk is a chunk, and when its outcomes are due. Its list knows that as well, but a place only has the number of the chunk.
type dueChunk struct {
	*chunk
	due int64
}

func (c *chunks) at(p place) dedupEntry {
	found := &c.byNumber[p>>chunkShift]
	return found.chunk[p%chunkSize].entry(found.due)
}

// add returns a new chunk of outcomes that are due at a time, and its number.
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

// remove gives a number back. A snapshot may still have the chunk.
func (c *chunks) remove(number uint32) {
	c.byNumber[number] = dueChunk{}
	c.free = append(c.free, number)
}

// expiryGroup is a list of outcomes that are due together.
type expiryGroup struct {
	part
	numbers []uint32 // of the chunks
	stale   int      // how many of the outcomes were prolonged since
	sorted  bool     // by id
}

// part is outcomes that lie one behind the other. A copy of it does not change.
type part struct {
	chunks     []*chunk
	start, end int   // slots in use, counted from the first chunk
	due        int64 // cluster time
}

func (p *part) len() int { return p.end - p.start }

func (p *part) at(i int) dedupEntry { return p.chunks[i>>chunkShift][i%chunkSize].entry(p.due) }

func (l *expiryGroup) place(i int) place {
	return place(l.numbers[i>>chunkShift])<<chunkShift | place(i%chunkSize)
}

// add appends an outcome, and returns its place.
func (l *expiryGroup) add(c *chunks, m *dedupEntry) place {
	if l.end == len(l.chunks)*chunkSize {
		added, number := c.add(l.due)
		l.chunks, l.numbers = append(l.chunks, added), append(l.numbers, number)
	}
	at := l.end
	l.chunks[at>>chunkShift][at%chunkSize] = slotOf(m, l.due)
	l.end++
	l.sorted = false
	return l.place(at)
}

// first returns the first outcome. The list must not be empty.
func (l *expiryGroup) first() (dedupEntry, place) { return l.at(l.start), l.place(l.start) }

// removeFirst removes the first outcome.
func (l *expiryGroup) removeFirst(c *chunks) {
	if l.start++; l.start == chunkSize || l.start == l.end {
		c.remove(l.numbers[0])
		l.chunks, l.numbers = l.chunks[1:], l.numbers[1:]
		l.end -= min(l.start, chunkSize)
		l.start = 0
	}
}

// all returns the outcomes with their places, also stale ones.
func (l *expiryGroup) all() iter.Seq2[dedupEntry, place] {
	return func(yield func(dedupEntry, place) bool) {
		for i := l.start; i < l.end; i++ {
			if !yield(l.at(i), l.place(i)) {
				return
			}
		}
	}
}

// captured is all outcomes at one moment, by the first expiryBits bits of their ids. It does not change.
type captured [1 << expiryBits][]part

// capture returns all outcomes as they are now. It takes time for each list, and not for each outcome.
func (d *dedup) capture() (all captured) {
	d.byExpiry.Scan(func(key int64, due *expiryGroup) bool {
		group := &all[key&(1<<expiryBits-1)]
		*group = append(*group, due.part)
		return true
	})
	return all
}

// inOrder returns the outcomes in the order of their ids. Of an outcome that was prolonged it returns the last version. It copies and
// sorts one group at a time, which fits into a processor's cache.
func (c *captured) inOrder() iter.Seq[*dedupEntry] {
	return func(yield func(*dedupEntry) bool) {
		var group []dedupEntry
		var order []keyed
		for i := range c {
			group, order = group[:0], order[:0]
			for _, p := range c[i] {
				for at := p.start; at < p.end; at++ {
					m := p.at(at)
					order = append(order, keyed{binary.BigEndian.Uint64(m.id[:]), len(group)})
					group = append(group, m)
				}
			}
			slices.SortFunc(order, func(a, b keyed) int {
				if by := cmp.Compare(a.key, b.key); by != 0 {
					return by
				}
				one, other := &group[a.at], &group[b.at]
				return cmp.Or(bytes.Compare(one.id[:], other.id[:]), cmp.Compare(one.expires, other.expires))
			})
			for j, k := range order {
				m := &group[k.at]
				if prolonged := j+1 < len(order) && group[order[j+1].at].id == m.id; !prolonged && !yield(m) {
					return
				}
			}
		}
	}
}

// keyed is an outcome in a group, with the first bytes of its id: most comparisons need no more.
type keyed struct {
	key uint64
	at  int
}
