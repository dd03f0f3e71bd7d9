package fsm

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strings"

	"holdfast/internal/glob"
	"holdfast/internal/policy"
)

// KeyPage is one page of a SCAN. It is immutable.
type KeyPage struct {
	Keys []string // ascending
	Next string   // the continuation token; empty if there is no further page
}

// First returns the page with the first n keys only. The token of a shortened page goes on after the last one. n is at least 1.
func (p *KeyPage) First(n int) *KeyPage {
	if n >= len(p.Keys) {
		return p
	}
	return &KeyPage{Keys: p.Keys[:n], Next: continuationToken(p.Keys[n-1])}
}

// The bounds of a page. With them a SCAN holds up nobody: it runs while no entry is applied.
const (
	maxPageKeys   = 1000
	maxPageBytes  = 256 << 10 // of the keys
	maxPageVisits = 10_000    // keys looked at
	maxPageSteps  = 8 << 20   // of matching, as an upper bound
)

func checkScan(command *Command) ErrorCode {
	switch {
	case len(command.Key) > glob.MaxSize:
		return ErrorQuota
	case command.Unidentified:
		return ErrorNotAuthorized
	default:
		return NoError
	}
}

// scan answers a SCAN: the keys after the one in the token that match, and that the caller may read. Every page goes on behind at least one key
// that this one looked at, so that a scan ends.
func (m *Machine) scan(command *Command, result *Result) {
	pattern, err := glob.Compile(string(command.Key))
	if err != nil {
		result.fail(ErrorSyntax)
		return
	}
	after := ""
	if command.Value != nil {
		var valid bool
		if after, valid = readContinuationToken(command.Value); !valid {
			result.fail(ErrorInvalidToken)
			return
		}
	}
	page := &KeyPage{}
	if !pattern.MatchesNothing() {
		m.fillPage(page, pattern, after, m.keyReader(&command.Principal))
	}
	result.Code, result.Page = CodeKeys, page
}

// keyReader says what a principal may read.
type keyReader struct {
	rules int // patterns that mayRead compares a key with
	// mayRead reports whether the principal may read a key.
	mayRead func(key string) bool
}

func (m *Machine) keyReader(principal *policy.Principal) keyReader {
	if m.settings.Policy == nil {
		return keyReader{mayRead: func(string) bool { return true }}
	}
	grants := m.settings.Policy.Grants(principal, policy.Read)
	var scratch []byte
	return keyReader{rules: grants.Size(), mayRead: func(key string) bool {
		scratch = append(scratch[:0], key...)
		return grants.Allow(scratch)
	}}
}

// fillPage adds keys to a page until there are no more, or a bound is reached. Expired keys that are still there count as looked at.
func (m *Machine) fillPage(page *KeyPage, pattern *glob.Pattern, after string, reader keyReader) {
	visits, steps, bytes, last := 0, 0, 0, after
	first := max(pattern.Prefix(), after)
	m.values.byKey.Ascend(&record{data: first, keySize: uint32(len(first))}, func(r *record) bool {
		key := r.key()
		if !strings.HasPrefix(key, pattern.Prefix()) {
			return false
		}
		if key == after {
			return true
		}
		if visits == maxPageVisits || steps >= maxPageSteps {
			page.Next = continuationToken(last)
			return false
		}
		visits++
		steps += pattern.Steps(len(key))
		if r.deadline > m.now && pattern.Match(key) {
			steps += reader.rules * (len(key) + 1)
			if reader.mayRead(key) {
				if len(page.Keys) == maxPageKeys || len(page.Keys) > 0 && bytes+len(key) > maxPageBytes {
					page.Next = continuationToken(last)
					return false
				}
				page.Keys = append(page.Keys, key)
				bytes += len(key)
			}
		}
		last = key
		return true
	})
}

// tokenFormat is the first byte of a continuation token. The checksum of the key follows, then the key after which the next page begins. It names
// no member and nothing that a member keeps. Like a format on the disk, it changes only with its number, and old tokens stay valid.
const tokenFormat = 1

const tokenHeader = 1 + 4

func continuationToken(after string) string {
	b := make([]byte, 0, tokenHeader+len(after))
	b = append(b, tokenFormat)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum([]byte(after), castagnoli()))
	return base64.RawURLEncoding.EncodeToString(append(b, after...))
}

// readContinuationToken returns the key of a token, and whether the token is one that continuationToken makes.
func readContinuationToken(token []byte) (after string, valid bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(string(token))
	if err != nil || len(b) <= tokenHeader || b[0] != tokenFormat {
		return "", false
	}
	key := b[tokenHeader:]
	return string(key), binary.LittleEndian.Uint32(b[1:]) == crc32.Checksum(key, castagnoli())
}
