package policy

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// A glob is a compiled pattern. For every element but a star, the length that it consumes is known
// before it is compared. Matching therefore backtracks to one point only: the last star.
type glob []element

type elementKind uint8

const (
	literal  elementKind = iota
	anyByte              // '?'
	anyRun               // '*'
	class                // [...]
	clientID             // the token {principal.clientId}
	username             // the token {principal.username}
)

type element struct {
	kind    elementKind
	text    string    // literal
	negated bool      // class
	ranges  [][2]byte // class, both ends inclusive
}

var tokens = map[string]elementKind{
	"{principal.clientId}": clientID,
	"{principal.username}": username,
}

var errUnclosedClass = errors.New("has a '[' without its ']' (write '[[]' for a literal '[')")

func compileGlobs(patterns []string, withTokens bool) ([]glob, error) {
	globs := make([]glob, 0, len(patterns))
	for _, pattern := range patterns {
		g, err := compileGlob(pattern, withTokens)
		if err != nil {
			return nil, fmt.Errorf("%q %w", pattern, err)
		}
		globs = append(globs, g)
	}
	return globs, nil
}

func compileGlob(pattern string, withTokens bool) (glob, error) {
	var g glob
	for pattern != "" {
		if withTokens && strings.HasPrefix(pattern, "{principal.") {
			end := strings.IndexByte(pattern, '}')
			kind, known := tokens[pattern[:end+1]]
			if !known {
				return nil, errors.New(
					"has a token that is neither {principal.clientId} nor {principal.username}")
			}
			g, pattern = append(g, element{kind: kind}), pattern[end+1:]
			continue
		}
		switch pattern[0] {
		case '*':
			if len(g) == 0 || g[len(g)-1].kind != anyRun {
				g = append(g, element{kind: anyRun})
			}
			pattern = pattern[1:]
		case '?':
			g, pattern = append(g, element{kind: anyByte}), pattern[1:]
		case '[':
			e, rest, err := compileClass(pattern[1:])
			if err != nil {
				return nil, err
			}
			g, pattern = append(g, e), rest
		default:
			end := 1 + strings.IndexAny(pattern[1:]+"*", "*?[{")
			g, pattern = append(g, element{kind: literal, text: pattern[:end]}), pattern[end:]
		}
	}
	return g, nil
}

// compileClass reads what follows '[': an optional '!' or '^', then bytes and ranges; a ']' that
// comes first is a byte.
func compileClass(pattern string) (element, string, error) {
	e := element{kind: class}
	if pattern != "" && (pattern[0] == '!' || pattern[0] == '^') {
		e.negated, pattern = true, pattern[1:]
	}
	for first := true; ; first = false {
		if pattern == "" {
			return element{}, "", errUnclosedClass
		}
		low := pattern[0]
		if low == ']' && !first {
			return e, pattern[1:], nil
		}
		high := low
		pattern = pattern[1:]
		if len(pattern) >= 2 && pattern[0] == '-' && pattern[1] != ']' {
			high, pattern = pattern[1], pattern[2:]
		}
		if low > high {
			return element{}, "", fmt.Errorf("has the empty range %c-%c", low, high)
		}
		e.ranges = append(e.ranges, [2]byte{low, high})
	}
}

func (g glob) matches(text []byte, principal *Principal) bool {
	position, next := 0, 0
	starNext, starPosition := -1, 0
	for {
		if next < len(g) && g[next].kind == anyRun {
			starNext, starPosition = next+1, position
			next++
			continue
		}
		if next == len(g) && position == len(text) {
			return true
		}
		if next < len(g) {
			if length, ok := g[next].consumes(text[position:], principal); ok {
				position += length
				next++
				continue
			}
		}
		if starNext < 0 || starPosition == len(text) {
			return false
		}
		starPosition++
		position, next = starPosition, starNext
	}
}

// consumes reports whether the text begins with a match of the element, and returns the length of
// the match in bytes.
func (e *element) consumes(text []byte, principal *Principal) (int, bool) {
	if e.kind == anyByte || e.kind == class {
		if len(text) == 0 {
			return 0, false
		}
		return 1, e.kind == anyByte || e.contains(text[0])
	}
	want := e.literal(principal)
	return len(want), want != "" && bytes.HasPrefix(text, []byte(want))
}

// literal returns the text that the element stands for. It is empty for '?', '*' and classes, and
// for a token whose value is unknown.
func (e *element) literal(principal *Principal) string {
	switch e.kind {
	case clientID:
		return principal.ClientID
	case username:
		return principal.Username
	default:
		return e.text
	}
}

func (e *element) contains(b byte) bool {
	for _, r := range e.ranges {
		if r[0] <= b && b <= r[1] {
			return !e.negated
		}
	}
	return e.negated
}
