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

// chunk has outcomes. A slot is written once, before the place in it is known to anybody, and is not changed afterwards.
type chunk [chunkSize]dedupEntry

// place is where an outcome is: the number of its chunk, and the slot.
type place uint32

// chunks has the chunks by their numbers. The zero value is empty.
type chunks struct {
	byNumber []*chunk
	free     []uint32
}

func (c *chunks) at(p place) *dedupEntry { return &c.byNumber[p>>chunkShift][p%chunkSize] }

// add returns a new chunk and its number.
func (c *chunks) add() (added *chunk, number uint32) {
	added = new(chunk)
	if n := len(c.free); n > 0 {
		number, c.free = c.free[n-1], c.free[:n-1]
		c.byNumber[number] = added
		return added, number
	}
	c.byNumber = append(c.byNumber, added)
	return added, uint32(len(c.byNumber) - 1)
}

// remove gives a number back. A snapshot may still have the chunk.
func (c *chunks) remove(number uint32) {
	c.byNumber[number] = nil
	c.free = append(c.free, number)
}

// dueTogether is a list of outcomes that are due together.
type dueTogether struct {
	part
	numbers []uint32 // of the chunks
	stale   int      // how many of the outcomes were prolonged since
	sorted  bool     // by id
}

// part is outcomes that lie one behind the other. A copy of it does not change.
type part struct {
	chunks     []*chunk
	start, end int // slots in use, counted from the first chunk
}

func (p *part) len() int { return p.end - p.start }

func (p *part) at(i int) *dedupEntry { return &p.chunks[i>>chunkShift][i%chunkSize] }

func (l *dueTogether) place(i int) place {
	return place(l.numbers[i>>chunkShift])<<chunkShift | place(i%chunkSize)
}

// add appends an outcome, and returns its place.
func (l *dueTogether) add(c *chunks, m *dedupEntry) place {
	if l.end == len(l.chunks)*chunkSize {
		added, number := c.add()
		l.chunks, l.numbers = append(l.chunks, added), append(l.numbers, number)
	}
	at := l.end
	*l.at(at) = *m
	l.end++
	l.sorted = false
	return l.place(at)
}

// first returns the first outcome. The list must not be empty.
func (l *dueTogether) first() (*dedupEntry, place) { return l.at(l.start), l.place(l.start) }

// removeFirst removes the first outcome.
func (l *dueTogether) removeFirst(c *chunks) {
	if l.start++; l.start == chunkSize || l.start == l.end {
		c.remove(l.numbers[0])
		l.chunks, l.numbers = l.chunks[1:], l.numbers[1:]
		l.end -= min(l.start, chunkSize)
		l.start = 0
	}
}

// all returns the outcomes with their places, also stale ones.
func (l *dueTogether) all() iter.Seq2[*dedupEntry, place] {
	return func(yield func(*dedupEntry, place) bool) {
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
	d.byExpiry.Scan(func(key int64, due *dueTogether) bool {
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
					group = append(group, *m)
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
