package wal

// positions says where the entries of a log are. It is not safe for concurrent use.
type positions struct {
	first  uint64  // index of the first entry; meaningless if there is none
	places []place // of consecutive entries

	// lost are entries before the first that are not in the segments that remain. They are there
	// only while Open reads a log: a later frame deletes them, or the log is damaged.
	lost span
}

// place is the place of an entry in a segment, in bytes.
type place struct {
	segment *segment
	offset  uint32
	size    uint32
}

// known returns the span of the entries that have a place.
func (p *positions) known() span {
	if len(p.places) == 0 {
		return span{}
	}
	return span{p.first, p.first + uint64(len(p.places)) - 1}
}

// all returns the span of all entries.
func (p *positions) all() span {
	s := p.known()
	switch {
	case p.lost.isEmpty():
	case s.isEmpty():
		s = p.lost
	default:
		s.first = p.lost.first
	}
	return s
}

// with returns the span of all entries, and of count further ones from an index on.
func (p *positions) with(index uint64, count int) span {
	s := p.all()
	if count == 0 {
		return s
	}
	if s.isEmpty() {
		s.first = index
	}
	s.last = index + uint64(count) - 1
	return s
}

// find returns the place of an entry.
func (p *positions) find(index uint64) (place, bool) {
	if !p.known().contains(index) {
		return place{}, false
	}
	return p.places[index-p.first], true
}

// canAppend reports whether an entry may have an index: that after the last, or any of an empty
// log.
func (p *positions) canAppend(index uint64) bool {
	all := p.all()
	return index > 0 && (all.isEmpty() || index == all.last+1)
}

// add appends the places of consecutive entries.
func (p *positions) add(index uint64, places ...place) {
	if len(p.places) == 0 {
		p.first = index
	}
	p.places = append(p.places, places...)
}

// delete removes a span that is at the beginning or at the end.
func (p *positions) delete(d span) {
	p.lost = p.lost.without(d)
	before, after := p.known(), p.known().without(d)
	switch {
	case after.isEmpty():
		p.places = nil
	case after.first > before.first: // copied, so that the memory of the others is free
		p.places = append([]place(nil), p.places[after.first-before.first:]...)
		p.first = after.first
	default:
		p.places = p.places[:after.last-before.first+1]
	}
}

func (s span) isEmpty() bool { return s.last == 0 }

func (s span) contains(index uint64) bool {
	return !s.isEmpty() && s.first <= index && index <= s.last
}

// clip returns the part of s that is in d.
func (s span) clip(d span) span {
	c := span{max(s.first, d.first), min(s.last, d.last)}
	if s.isEmpty() || d.isEmpty() || c.first > c.last {
		return span{}
	}
	return c
}

// without returns s without d, which has a part at the beginning or at the end of s, or none.
func (s span) without(d span) span {
	c := s.clip(d)
	switch {
	case c.isEmpty():
	case c == s:
		s = span{}
	case c.first == s.first:
		s.first = c.last + 1
	case c.last == s.last:
		s.last = c.first - 1
	}
	return s
}
