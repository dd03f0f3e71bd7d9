package glob

import "unicode/utf8"

// search finds a segment of at most 64 elements in one pass over a text, whatever the text is: the
// Shift-And algorithm (Baeza-Yates and Gonnet 1992). Bit i of a mask says that element i matches a
// character. It is immutable.
type search struct {
	ascii [utf8.RuneSelf]uint64 // masks of these characters
	// other has the elements that match every other character, as '?' and [!a] do. special are the
	// elements that match some of them.
	other   uint64
	special []int
	last    uint64 // the bit of the last element
}

const (
	// maxSearched is how many elements a search can have.
	maxSearched = 64
	// maxSearches bounds the searches of a pattern.
	maxSearches = 8
	// searchBytes is the memory that Memory counts for a search, in bytes.
	searchBytes = 1200
)

// newSearch returns the search for a segment. The segment has 1 to maxSearched elements.
func newSearch(elements []element) *search {
	s := &search{last: 1 << (len(elements) - 1)}
	for i := range elements {
		e, bit := &elements[i], uint64(1)<<i
		for character := range rune(len(s.ascii)) {
			if e.matches(character) {
				s.ascii[character] |= bit
			}
		}
		switch {
		case e.beyondASCII():
			s.special = append(s.special, i)
		case len(e.ranges) == 0 || e.negated:
			s.other |= bit
		}
	}
	return s
}

// beyondASCII reports whether the element does not treat all characters alike that are not ASCII.
func (e *element) beyondASCII() bool {
	for _, r := range e.ranges {
		if r[1] >= utf8.RuneSelf {
			return true
		}
	}
	return false
}

// cost returns how many comparisons a character takes beside one step.
func (s *search) cost(elements []element) (comparisons int) {
	for _, i := range s.special {
		comparisons += len(elements[i].ranges)
	}
	return comparisons
}

// find returns what follows the first match of the elements in a text.
func (s *search) find(text string, elements []element) (rest string, ok bool) {
	state := uint64(0) // bit i: elements 0 to i match the characters before this one
	for at := 0; at < len(text); {
		mask, size := uint64(0), 1
		if c := text[at]; c < utf8.RuneSelf {
			mask = s.ascii[c]
		} else {
			var character rune
			character, size = utf8.DecodeRuneInString(text[at:])
			mask = s.other
			for _, i := range s.special {
				if elements[i].matches(character) {
					mask |= 1 << i
				}
			}
		}
		at += size
		if state = (state<<1 | 1) & mask; state&s.last != 0 {
			return text[at:], true
		}
	}
	return "", false
}
