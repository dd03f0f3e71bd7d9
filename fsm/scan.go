package fsm

import (
	"errors"
	"strings"

	"holdfast/internal/glob"
	"holdfast/internal/policy"
)

// KeyPage is one page of a SCAN. It is immutable.
type KeyPage struct {
	Keys []string // ascending
	Next string   // the continuation token; empty if there is no further page

	sealer *sealer
}

// First returns the page with the first n keys only. The token of a shortened page goes on after the last one. n is at least 1.
func (p *KeyPage) First(n int) *KeyPage {
	if n >= len(p.Keys) {
		return p
	}
	return &KeyPage{Keys: p.Keys[:n], Next: p.sealer.seal(p.Keys[n-1]), sealer: p.sealer}
}

// The bounds of a page. No entry is applied while a page is read, which takes a few milliseconds at most. Only a key of tens of kilobytes with a
// pattern that is made for it takes longer, up to glob.MaxSize steps for each of its bytes.
const (
	maxPageKeys   = 1000
	maxPageBytes  = 256 << 10 // of the keys
	maxPageVisits = 10_000    // keys looked at
	maxPageSteps  = 2 << 20   // of matching, as an upper bound
)

// MaxToken is the size of the longest continuation token, in bytes. Keys are not longer than 64 KiB by default; with longer ones a SCAN may not come
// to its end.
const MaxToken = 1 << 20

func (m *Machine) checkScan(command *Command) ErrorCode {
	switch {
	case m.scanSecret == 0: // as members answer that do not know it
		return ErrorUnknownCommand
	case command.Oversize, len(command.Key) > glob.MaxSize:
		return ErrorQuota
	case len(command.Value) > MaxToken:
		return ErrorInvalidToken
	case command.Unidentified:
		return ErrorNotAuthorized
	default:
		return NoError
	}
}

// scan answers a SCAN: the keys after the one in the token that match, and that the caller may read. A page that has a token looked at one key at
// least, behind which the next page begins, so a scan ends.
func (m *Machine) scan(command *Command, result *Result) {
	pattern, err := glob.Compile(string(command.Key))
	switch {
	case errors.Is(err, glob.ErrTooLong):
		result.fail(ErrorQuota)
		return
	case err != nil:
		result.fail(ErrorSyntax)
		return
	}
	page := &KeyPage{sealer: newSealer(m.scanSecret)}
	after := ""
	if command.Value != nil {
		var valid bool
		if after, valid = page.sealer.open(string(command.Value)); !valid {
			result.fail(ErrorInvalidToken)
			return
		}
	}
	if !pattern.MatchesNothing() {
		m.fillPage(page, pattern, after, m.keyReader(&command.Principal))
	}
	result.Code, result.Page = CodeKeys, page
}

// keyReader says what a principal may read.
type keyReader struct {
	steps int // of mayRead, for each byte of a key
	// mayRead reports whether the principal may read a key.
	mayRead func(key string) bool
}

func (m *Machine) keyReader(principal *policy.Principal) keyReader {
	if m.settings.Policy == nil {
		return keyReader{mayRead: func(string) bool { return true }}
	}
	grants := m.settings.Policy.Grants(principal, policy.Read)
	var scratch []byte
	return keyReader{steps: grants.Steps(), mayRead: func(key string) bool {
		scratch = append(scratch[:0], key...)
		return grants.Allow(scratch)
	}}
}

// fillPage adds keys to a page until there are no more, or a bound is reached.
func (m *Machine) fillPage(page *KeyPage, pattern *glob.Pattern, after string, reader keyReader) {
	bytes := 0
	next := m.walkPage(pattern, after, func(r *record) (steps int, more bool) {
		key := r.key()
		steps = reader.steps * (len(key) + 1)
		if !reader.mayRead(key) {
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

// walkPage calls take for the keys behind after that match a pattern and have not expired, in byte order, until take has no room for one or a bound is
// reached. A nil pattern is all keys. take returns what it costs beyond the match. next is the key behind which the next page begins, empty if there are
// no further keys. Expired keys that are still there count as looked at.
func (m *Machine) walkPage(pattern *glob.Pattern, after string, take func(*record) (steps int, more bool)) (next string) {
	prefix := ""
	if pattern != nil {
		prefix = pattern.Prefix()
	}
	visits, steps, last := 0, 0, after
	first := max(prefix, after)
	m.values.byKey.Ascend(&record{data: first, keySize: uint32(len(first))}, func(r *record) bool {
		key := r.key()
		switch {
		case !strings.HasPrefix(key, prefix):
			return false
		case key == after: // no key is empty
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

// detach copies the keys, which are size bytes: they are parts of records, and would keep the values in memory.
func (p *KeyPage) detach(size int) {
	var all strings.Builder
	all.Grow(size)
	for _, key := range p.Keys {
		all.WriteString(key)
	}
	rest := all.String()
	for i, key := range p.Keys {
		p.Keys[i], rest = rest[:len(key)], rest[len(key):]
	}
}
