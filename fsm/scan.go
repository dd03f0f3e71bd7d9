package fsm

import (
	"errors"
	"strings"

	"holdfast/internal/glob"
	"holdfast/internal/policy"
)

// KeyPage is one page of a SCAN. It does not change after scan has returned it.
type KeyPage struct {
	Keys []string // ascending
	Next string   // the continuation token; empty if there is no further page

	sealer *sealer
}

// First returns a page with the first n keys only. If it drops keys, its token continues after key
// n. n is at least 1.
func (p *KeyPage) First(n int) *KeyPage {
	if n >= len(p.Keys) {
		return p
	}
	return &KeyPage{Keys: p.Keys[:n], Next: p.sealer.seal(p.Keys[n-1]), sealer: p.sealer}
}

// The bounds of a page. No entry is applied while a page is read, so a page must take milliseconds
// only. The bounds are checked before each key. So one key may exceed maxPageSteps: matching takes
// up to glob.MaxSize comparisons for each byte of the key, and the policy takes more.
const (
	maxPageKeys   = 1000      // keys in the page
	maxPageBytes  = 256 << 10 // bytes of the keys in the page
	maxPageVisits = 10_000    // keys that are examined
	maxPageSteps  = 2 << 20   // comparisons for the pattern and the policy, as an upper bound
)

// MaxContinuationToken is the size in bytes of the longest continuation token that scan accepts. A
// token is up to 145 bytes longer than its key. So a SCAN of keys that are nearly as long, which
// limits.keyBytes forbids by default, may return a token that scan refuses.
const MaxContinuationToken = 1 << 20

func (m *Machine) checkScan(command *Command) ErrorCode {
	switch {
	case command.Oversize, len(command.Key) > glob.MaxSize:
		return ErrorQuota
	case len(command.Value) > MaxContinuationToken:
		return ErrorInvalidContinuationToken
	case command.Unidentified:
		return ErrorNotAuthorized
	default:
		return NoError
	}
}

// scan executes a SCAN. It returns the keys after the token's key that match the pattern and that
// the caller may read. A page with a token has passed at least one key, so repeated SCANs come to
// an end.
func (m *Machine) scan(command *Command, result *Result) {
	pattern, err := glob.Compile(string(command.Key))
	switch {
	case errors.Is(err, glob.ErrTooLong):
		result.failQuota(LimitPatternBytes)
		return
	case err != nil:
		result.fail(ErrorSyntax)
		return
	}
	page := &KeyPage{sealer: newSealer(m.scanSecret)}
	cursor := ""
	if command.Value != nil {
		var valid bool
		if cursor, valid = page.sealer.open(string(command.Value)); !valid {
			result.fail(ErrorInvalidContinuationToken)
			return
		}
	}
	if !pattern.MatchesNothing() {
		m.fillPage(page, pattern, cursor, m.readFilterOf(&command.Principal))
	}
	result.Code, result.Page = CodeKeys, page
}

// readFilter decides which keys a principal may read.
type readFilter struct {
	stepsPerByte int // comparisons of mayRead for each byte of a key
	// mayRead reports whether the principal may read a key.
	mayRead func(key string) bool
}

func (m *Machine) readFilterOf(principal *policy.Principal) readFilter {
	if m.settings.Policy == nil {
		return readFilter{mayRead: func(string) bool { return true }}
	}
	grants := m.settings.Policy.Grants(principal, policy.Read)
	var scratch []byte
	return readFilter{stepsPerByte: grants.Steps(), mayRead: func(key string) bool {
		scratch = append(scratch[:0], key...)
		return grants.Allow(scratch)
	}}
}

// fillPage adds keys to a page until there are no more, or a bound is reached.
func (m *Machine) fillPage(page *KeyPage, pattern *glob.Pattern, cursor string, filter readFilter) {
	bytes := 0
	next := m.walkPage(pattern, cursor, func(r *record) (steps int, more bool) {
		key := r.key()
		steps = filter.stepsPerByte * (len(key) + 1)
		if !filter.mayRead(key) {
			return steps, true
		}
		if len(page.Keys) == maxPageKeys || len(page.Keys) > 0 && bytes+len(key) > maxPageBytes {
			return steps, false
		}
		page.Keys = append(page.Keys, key)
		bytes += len(key)
		return steps, true
	})
	if next != "" {
		page.Next = page.sealer.seal(next)
	}
	page.detach(bytes)
}

// walkPage calls take, in byte order, for each live key that matches the pattern and is greater
// than the cursor, until a bound is reached. A nil pattern matches all keys. take returns how many
// comparisons it made. If its second result is false, it did not take the key, and the walk ends.
// next is the last key that was visited and not refused by take: the cursor of the next page. It is
// empty if there are no more keys. An expired key that is not removed yet counts as a visit.
func (m *Machine) walkPage(pattern *glob.Pattern, cursor string,
	take func(*record) (steps int, more bool),
) (next string) {
	prefix := ""
	if pattern != nil {
		prefix = pattern.Prefix()
	}
	visits, steps, last := 0, 0, cursor
	first := max(prefix, cursor)
	m.values.byKey.Ascend(&record{data: first, keySize: uint32(len(first))}, func(r *record) bool {
		key := r.key()
		switch {
		case !strings.HasPrefix(key, prefix):
			return false
		case key == cursor: // it is in an earlier page; an empty cursor equals no key
			return true
		case visits == maxPageVisits, steps >= maxPageSteps:
			next = last
			return false
		}
		visits++
		if pattern != nil {
			steps += pattern.Steps(len(key))
		}
		if r.deadline > m.now && (pattern == nil || pattern.Match(key)) {
			cost, more := take(r)
			if steps += cost; !more {
				next = last
				return false
			}
		}
		last = key
		return true
	})
	return next
}

// detach copies the keys into one string of size bytes. Without that they would refer to records,
// and keep the values in memory.
func (p *KeyPage) detach(size int) {
	var all strings.Builder
	all.Grow(size)
	for _, key := range p.Keys {
		all.WriteString(key)
	}
	remaining := all.String()
	for i, key := range p.Keys {
		p.Keys[i], remaining = remaining[:len(key)], remaining[len(key):]
	}
}
