// Package glob matches keys with patterns: the pattern language of the protocol (docs/protocol.md,
// SCAN). Access policies have another pattern language; see package policy.
//
// The state machine calls this package, so all members must get the same results. What the
// functions return, and MaxWatchedKey, may change only with a new version of the log.
package glob

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// The errors of Compile.
var (
	// ErrSyntax says that a pattern is empty, or has a '[' that is not closed: in a class, a ']'
	// that comes first is that character.
	ErrSyntax = errors.New("pattern syntax error")
	// ErrTooLong says that a pattern is longer than MaxSize.
	ErrTooLong = errors.New("pattern too long")
)

// MaxSize is the size of the longest pattern in bytes. It bounds the cost of Compile and of Match:
// see Steps.
const MaxSize = 1024

// MaxWatchedKey is the size in bytes of the longest key to which pattern watches and mirrors apply.
// It bounds the cost of matching a key with many patterns.
const MaxWatchedKey = 4096

// Pattern is a compiled pattern. It is immutable. Literals and stars take about four times as many
// bytes as their text. In a segment with a '?' or a class, each element takes 32 bytes, and 8 more
// for each of its ranges. A literal character of such a segment is an element with one range.
type Pattern struct {
	// segments are the parts between the stars. A key begins with the first and ends with the last.
	// A pattern without a star has one segment, which matches the whole key.
	segments []packedSegment
	text     string    // the literal segments, one after the other
	elements []element // the elements of the other segments, one segment after the other
	searches []*search // of non-literal segments between two stars: of the first that fit
	prefix   string
	// middleCost is the greatest cost of a non-literal segment between two stars, 0 if there is
	// none. Match makes at most middleCost comparisons at each byte of a key, beside the one step
	// of a search. endsCost is the sum of the costs of the first and the last segment, which are
	// compared at one position only.
	middleCost, endsCost int
	matchesNothing       bool // the pattern is not valid UTF-8
}

// packedSegment is the range of a literal segment in Pattern.text, or of any other segment in
// Pattern.elements.
type packedSegment struct {
	from, to uint16
	literal  bool
	search   uint8 // its place in Pattern.searches, from 1; 0 without one
}

// segment is a part of a pattern without stars. It matches a fixed number of characters. It is
// either literal or a list of elements.
type segment struct {
	literal  string
	elements []element
}

// element matches one character. An element without ranges is '?', which matches any character.
type element struct {
	ranges  [][2]rune // both ends inclusive
	negated bool
}

// Compile reads a pattern: '*' is any run of characters, '?' one character, [abc] and [a-z] one of
// these, [!a] any other one, and everything else is itself. A ']' that comes first in a class is
// that character, and a range that goes backwards ([z-a]) has no character. A pattern that is not
// valid UTF-8 matches nothing. The error is ErrSyntax or ErrTooLong.
func Compile(pattern string) (*Pattern, error) {
	if pattern == "" {
		return nil, ErrSyntax
	}
	if len(pattern) > MaxSize {
		return nil, ErrTooLong
	}
	if !utf8.ValidString(pattern) {
		return &Pattern{matchesNothing: true}, nil
	}
	segments := []segment{{}}
	for pattern != "" {
		last := &segments[len(segments)-1]
		character, size := utf8.DecodeRuneInString(pattern)
		text := pattern[:size]
		pattern = pattern[size:]
		switch character {
		case '*':
			if n := len(segments); n == 1 || !last.isEmpty() {
				segments = append(segments, segment{})
			}
		case '?':
			last.add(element{})
		case '[':
			class, rest, err := compileClass(pattern)
			if err != nil {
				return nil, err
			}
			pattern = rest
			if only, ok := class.singleCharacter(); ok {
				last.addLiteral(only)
			} else {
				last.add(class)
			}
		default:
			last.addLiteral(text)
		}
	}
	return newPattern(segments), nil
}

// newPattern packs segments into a Pattern. Their offsets fit into uint16, because MaxSize bounds
// the pattern.
func newPattern(segments []segment) *Pattern {
	p := &Pattern{segments: make([]packedSegment, len(segments)), prefix: segments[0].prefix()}
	var text strings.Builder
	for i := range segments {
		s := &segments[i]
		if len(s.elements) == 0 {
			from := text.Len()
			text.WriteString(s.literal)
			p.segments[i] = packedSegment{from: uint16(from), to: uint16(text.Len()), literal: true}
		} else {
			from := len(p.elements)
			p.elements = append(p.elements, s.elements...)
			p.segments[i] = packedSegment{from: uint16(from), to: uint16(len(p.elements))}
		}
	}
	p.text, p.elements = text.String(), slices.Clip(p.elements)
	last := len(segments) - 1
	p.endsCost = segments[0].cost()
	if last > 0 {
		p.endsCost += segments[last].cost()
		for i := range segments[1:last] {
			p.middleCost = max(p.middleCost, p.addMiddle(1+i))
		}
	}
	return p
}

// addMiddle makes the search of a segment between two stars, if it has elements and there is room.
// It returns how many comparisons the segment takes at each byte of a key.
func (p *Pattern) addMiddle(i int) int {
	s := p.segment(i)
	if n := len(s.elements); n == 0 || n > maxSearched || len(p.searches) == maxSearches {
		return s.cost()
	}
	made := newSearch(s.elements)
	p.searches = append(p.searches, made)
	p.segments[i].search = uint8(len(p.searches))
	return made.cost(s.elements)
}

// segment returns segment i.
func (p *Pattern) segment(i int) segment {
	packed := p.segments[i]
	if packed.literal {
		return segment{literal: p.text[packed.from:packed.to]}
	}
	return segment{elements: p.elements[packed.from:packed.to]}
}

// compileClass compiles a class after its '['. rest is the text after its ']'. A ']' that comes
// first is a character of the class, as in the original (Rust's crate glob).
func compileClass(pattern string) (class element, rest string, err error) {
	pattern, class.negated = strings.CutPrefix(pattern, "!")
	for {
		end := strings.IndexByte(pattern, ']')
		if end == 0 && len(class.ranges) == 0 {
			if end = strings.IndexByte(pattern[1:], ']'); end >= 0 {
				end++
			}
		}
		if end < 0 {
			return element{}, "", ErrSyntax
		}
		if end == 0 {
			return class, pattern[1:], nil
		}
		low, size := utf8.DecodeRuneInString(pattern)
		pattern = pattern[size:]
		high := low
		if pattern[0] == '-' && pattern[1] != ']' {
			// the class's ']' is still ahead, so both bytes exist
			high, size = utf8.DecodeRuneInString(pattern[1:])
			pattern = pattern[1+size:]
		}
		class.ranges = append(class.ranges, [2]rune{low, high})
	}
}

// singleCharacter returns the character of an element that matches exactly one.
func (e *element) singleCharacter() (string, bool) {
	if e.negated || len(e.ranges) != 1 || e.ranges[0][0] != e.ranges[0][1] {
		return "", false
	}
	return string(e.ranges[0][0]), true
}

func (e *element) matches(character rune) bool {
	if len(e.ranges) == 0 {
		return true
	}
	for _, r := range e.ranges {
		if r[0] <= character && character <= r[1] {
			return !e.negated
		}
	}
	return e.negated
}

// cost returns how many comparisons it takes at most to match the segment at one position. A
// literal segment costs 0.
func (s *segment) cost() (comparisons int) {
	for i := range s.elements {
		comparisons += max(1, len(s.elements[i].ranges))
	}
	return comparisons
}

func (s *segment) isEmpty() bool { return s.literal == "" && len(s.elements) == 0 }

func (s *segment) addLiteral(text string) {
	if len(s.elements) == 0 {
		s.literal += text
		return
	}
	character, _ := utf8.DecodeRuneInString(text)
	s.elements = append(s.elements, element{ranges: [][2]rune{{character, character}}})
}

// add appends an element. It converts the segment's literal to elements first.
func (s *segment) add(e element) {
	for _, character := range s.literal {
		s.elements = append(s.elements, element{ranges: [][2]rune{{character, character}}})
	}
	s.literal, s.elements = "", append(s.elements, e)
}

// prefix returns the literal text with which every match of the segment begins.
func (s *segment) prefix() string {
	prefix := s.literal
	for i := range s.elements {
		only, ok := s.elements[i].singleCharacter()
		if !ok {
			break
		}
		prefix += only
	}
	return prefix
}

// match reports whether a text begins with a match of the segment, and returns the size of the
// match in bytes.
func (s *segment) match(text string) (size int, ok bool) {
	if len(s.elements) == 0 {
		return len(s.literal), strings.HasPrefix(text, s.literal)
	}
	for i := range s.elements {
		character, n := utf8.DecodeRuneInString(text[size:])
		if n == 0 || !s.elements[i].matches(character) {
			return 0, false
		}
		size += n
	}
	return size, true
}

// find returns what follows the first match of the segment in a text.
func (s *segment) find(text string) (rest string, ok bool) {
	if len(s.elements) == 0 {
		at := index(text, s.literal)
		if at < 0 {
			return "", false
		}
		return text[at+len(s.literal):], true
	}
	for text != "" {
		if size, ok := s.match(text); ok {
			return text[size:], true
		}
		_, n := utf8.DecodeRuneInString(text)
		text = text[n:]
	}
	return "", false
}

// maxNaive bounds the product of the sizes for which strings.Index is used. Its time grows with
// this product for texts such as aaaa…b.
const maxNaive = 16 << 10

// index is strings.Index, in a time that grows with the sum of the sizes, and not with their
// product (Knuth, Morris and Pratt 1977).
func index(text, literal string) int {
	if len(text)*len(literal) <= maxNaive {
		return strings.Index(text, literal)
	}
	if len(literal) > MaxSize {
		return strings.Index(text, literal) // Compile makes no such pattern
	}
	// border[i] is the size of the longest text that literal[:i+1] begins and ends with, without
	// being the whole.
	var border [MaxSize]uint16
	for i, k := 1, 0; i < len(literal); i++ {
		for k > 0 && literal[i] != literal[k] {
			k = int(border[k-1])
		}
		if literal[i] == literal[k] {
			k++
		}
		border[i] = uint16(k)
	}
	for i, k := 0, 0; i < len(text); i++ {
		for k > 0 && text[i] != literal[k] {
			k = int(border[k-1])
		}
		if text[i] == literal[k] {
			k++
		}
		if k == len(literal) {
			return i + 1 - k
		}
	}
	return -1
}

// matchEnd reports whether a text that is valid UTF-8 ends with a match of the segment.
func (s *segment) matchEnd(text string) bool {
	if len(s.elements) == 0 {
		return strings.HasSuffix(text, s.literal)
	}
	at := len(text)
	for range s.elements {
		if at == 0 {
			return false
		}
		_, n := utf8.DecodeLastRuneInString(text[:at])
		at -= n
	}
	_, ok := s.match(text[at:])
	return ok
}

// Prefix returns the literal text with which all matching keys begin. It may be empty.
func (p *Pattern) Prefix() string { return p.prefix }

// MatchesNothing reports whether the pattern is not valid UTF-8, so that no key matches it.
func (p *Pattern) MatchesNothing() bool { return p.matchesNothing }

// Steps returns an upper bound on the comparisons that it takes to match a key of size bytes. A
// search counts as one comparison for each byte.
func (p *Pattern) Steps(size int) int { return (size+1)*max(1, p.middleCost) + p.endsCost }

// Weight returns an upper bound on the time to match a long key, relative to a pattern of stars and
// literals, which has the weight 1. A pattern with '?' and classes has it, too, unless Match makes
// comparisons beside its searches.
func (p *Pattern) Weight() int {
	const (
		// weight of one comparison at each byte of the key; a search has weight 1
		perComparison = 8
		// number of comparisons at one position that take as long as a search for a literal
		endsPerUnit = 100
	)
	return max(1, perComparison*p.middleCost, p.endsCost/endsPerUnit)
}

// Memory returns an estimate of the memory of the compiled pattern, in bytes, without its text and
// the ranges of classes. The state machine uses it, so it is the same in all builds.
func (p *Pattern) Memory() int {
	const elementBytes = 64 // for each element, whatever its size in a build
	return elementBytes*len(p.elements) + searchBytes*len(p.searches)
}

// Match reports whether the pattern matches the whole key. It matches no key that is not valid
// UTF-8.
func (p *Pattern) Match(key string) bool {
	return p.MatchText(key) && utf8.ValidString(key)
}

// MatchText is Match for a key that the caller knows to be valid UTF-8.
func (p *Pattern) MatchText(key string) bool {
	if p.matchesNothing || !strings.HasPrefix(key, p.prefix) {
		return false
	}
	first := p.segment(0)
	size, ok := first.match(key)
	if !ok {
		return false
	}
	rest, last := key[size:], len(p.segments)-1
	if last == 0 {
		return rest == ""
	}
	for i := range p.segments[1:last] {
		// the leftmost match leaves the longest rest for the later segments
		s := p.segment(1 + i)
		if number := p.segments[1+i].search; number > 0 {
			rest, ok = p.searches[number-1].find(rest, s.elements)
		} else {
			rest, ok = s.find(rest)
		}
		if !ok {
			return false
		}
	}
	s := p.segment(last)
	return s.matchEnd(rest)
}
