// Package glob matches keys with patterns: the pattern language of the protocol (docs/protocol.md, SCAN). Access policies have a
// language of their own, which knows bytes and principals; see package policy. It is pure.
//
// The state machine calls it, so all members have to agree: what Compile, Match, Prefix, Weight and Memory return, and MaxWatchedKey, change only with a
// version of the log.
package glob

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// The errors of Compile.
var (
	// ErrSyntax says that a pattern is empty, or has a '[' that is not closed, a '[]' without characters, or a range that goes backwards.
	ErrSyntax = errors.New("pattern syntax error")
	// ErrTooLong says that a pattern is longer than MaxSize.
	ErrTooLong = errors.New("pattern too long")
)

// MaxSize is the size of the longest pattern in bytes. It bounds what it takes to compile one, and to match a key: see Steps.
const MaxSize = 1024

// MaxWatchedKey is the size of the longest key that a watch of a pattern is of, in bytes. It bounds what it takes to match a key with many patterns.
const MaxWatchedKey = 4096

// Pattern is a compiled pattern. It is immutable.
type Pattern struct {
	// segments are the parts between the stars. The first begins the key, and the last ends it. Without a star there is one, which is the whole key.
	segments []segment
	prefix   string
	// width is how many comparisons a byte of a key takes beyond a search for literals: the elements and ranges of the longest segment between two stars
	// that is not literal, 0 if there is none. ends is how many the first and the last segment take, which are compared at one place only.
	width, ends int
	invalid     bool
}

// segment matches a known number of characters. It is either literal or a list of elements.
type segment struct {
	literal  string
	elements []element
}

// element matches one character: any if it has no ranges and is not negated.
type element struct {
	ranges  [][2]rune // both ends inclusive
	negated bool
}

// Compile reads a pattern: '*' is any run of characters, '?' one character, [abc] and [a-z] one of these, [!a] any other one, and everything
// else is itself. A pattern that is not valid UTF-8 matches nothing. The error is ErrSyntax or ErrTooLong.
func Compile(pattern string) (*Pattern, error) {
	if pattern == "" {
		return nil, ErrSyntax
	}
	if len(pattern) > MaxSize {
		return nil, ErrTooLong
	}
	if !utf8.ValidString(pattern) {
		return &Pattern{invalid: true}, nil
	}
	p := &Pattern{segments: []segment{{}}}
	for pattern != "" {
		last := &p.segments[len(p.segments)-1]
		character, size := utf8.DecodeRuneInString(pattern)
		text := pattern[:size]
		pattern = pattern[size:]
		switch character {
		case '*':
			if n := len(p.segments); n == 1 || !last.isEmpty() {
				p.segments = append(p.segments, segment{})
			}
		case '?':
			last.add(element{})
		case '[':
			class, rest, err := compileClass(pattern)
			if err != nil {
				return nil, err
			}
			pattern = rest
			if only, ok := class.only(); ok {
				last.addLiteral(only)
			} else {
				last.add(class)
			}
		default:
			last.addLiteral(text)
		}
	}
	last := len(p.segments) - 1
	p.ends = p.segments[0].width()
	if last > 0 {
		p.ends += p.segments[last].width()
		for _, s := range p.segments[1:last] {
			p.width = max(p.width, s.width())
		}
	}
	p.prefix = p.segments[0].prefix()
	return p, nil
}

// compileClass reads what follows '[', up to and with the ']'.
func compileClass(pattern string) (class element, rest string, err error) {
	pattern, class.negated = strings.CutPrefix(pattern, "!")
	for {
		end := strings.IndexByte(pattern, ']')
		if end < 0 || end == 0 && len(class.ranges) == 0 {
			return element{}, "", ErrSyntax
		}
		if end == 0 {
			return class, pattern[1:], nil
		}
		low, size := utf8.DecodeRuneInString(pattern)
		pattern = pattern[size:]
		high := low
		if pattern[0] == '-' && pattern[1] != ']' { // a ']' follows
			high, size = utf8.DecodeRuneInString(pattern[1:])
			pattern = pattern[1+size:]
		}
		if high < low {
			return element{}, "", ErrSyntax
		}
		class.ranges = append(class.ranges, [2]rune{low, high})
	}
}

// only returns the character of a class that matches one.
func (e *element) only() (string, bool) {
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

// width returns how many comparisons it takes at most to match the segment at one place.
func (s *segment) width() (comparisons int) {
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

// add adds an element, before which a literal becomes elements, too.
func (s *segment) add(e element) {
	for _, character := range s.literal {
		s.elements = append(s.elements, element{ranges: [][2]rune{{character, character}}})
	}
	s.literal, s.elements = "", append(s.elements, e)
}

// prefix returns the text with which everything begins that the segment matches.
func (s *segment) prefix() string {
	prefix := s.literal
	for i := range s.elements {
		only, ok := s.elements[i].only()
		if !ok {
			break
		}
		prefix += only
	}
	return prefix
}

// match reports whether the text begins with the segment, and how many bytes that takes.
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

// find returns what follows the first place in the text that the segment matches.
func (s *segment) find(text string) (rest string, ok bool) {
	if len(s.elements) == 0 {
		at := strings.Index(text, s.literal)
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

// matchEnd reports whether the text ends with the segment.
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

// Prefix returns the text with which all keys begin that the pattern matches. It may be empty.
func (p *Pattern) Prefix() string { return p.prefix }

// MatchesNothing reports whether the pattern is not valid UTF-8, so that no key matches it.
func (p *Pattern) MatchesNothing() bool { return p.invalid }

// Steps returns how many comparisons it takes at most to match a key of a size in bytes.
func (p *Pattern) Steps(size int) int { return (size+1)*max(1, p.width) + p.ends }

// Weight says how long it takes at most to match a long key, in units of a pattern of stars and literals. It is at least 1.
func (p *Pattern) Weight() int {
	const (
		comparison = 8   // of each byte: literals are searched for at many bytes a step
		ends       = 100 // comparisons at one place take as long as the search for a literal
	)
	return max(1, comparison*p.width, p.ends/ends)
}

// Memory returns how many bytes the pattern takes, about, beyond its text.
func (p *Pattern) Memory() (bytes int) {
	const element = 64
	for i := range p.segments {
		bytes += element * len(p.segments[i].elements)
	}
	return bytes
}

// Match reports whether the pattern matches the whole key. It matches no key that is not valid UTF-8.
func (p *Pattern) Match(key string) bool {
	return p.MatchText(key) && utf8.ValidString(key)
}

// MatchText is Match without the check that the key is valid UTF-8.
func (p *Pattern) MatchText(key string) bool {
	if p.invalid || !strings.HasPrefix(key, p.prefix) {
		return false
	}
	size, ok := p.segments[0].match(key)
	if !ok {
		return false
	}
	rest, last := key[size:], len(p.segments)-1
	if last == 0 {
		return rest == ""
	}
	for i := range p.segments[1:last] { // the leftmost place leaves most for the others
		if rest, ok = p.segments[1+i].find(rest); !ok {
			return false
		}
	}
	return p.segments[last].matchEnd(rest)
}
