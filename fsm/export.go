package fsm

import (
	"strings"

	"holdfast/hlc"
	"holdfast/internal/glob"
)

// The bounds of a page of Export, beside those of a page of SCAN. No entry is applied while a page is read.
const (
	maxExportKeys  = 1000
	maxExportBytes = 1 << 20 // of keys and values; one key may have more
)

// Export returns a page of the keys behind after that match a pattern, in byte order, without their watchers. A nil pattern is all keys, also those
// that are not valid UTF-8, which no pattern matches. next is the after of the next page, and empty at the end: a page may end before it is full. It
// may run at the same time as Read and as itself, but not as Apply or Restore.
func (m *Machine) Export(pattern *glob.Pattern, after string) (keys []KeyInfo, next string) {
	prefix := ""
	if pattern != nil {
		if prefix = pattern.Prefix(); pattern.MatchesNothing() {
			return nil, ""
		}
	}
	visits, steps, bytes, last := 0, 0, 0, after
	first := max(prefix, after)
	m.values.byKey.Ascend(&record{data: first, keySize: uint32(len(first))}, func(r *record) bool {
		key := r.key()
		switch {
		case !strings.HasPrefix(key, prefix):
			return false
		case key == after && after != "":
			return true
		case visits == maxPageVisits, steps >= maxPageSteps, len(keys) == maxExportKeys, len(keys) > 0 && bytes+len(r.data) > maxExportBytes:
			next = last
			return false
		}
		visits++
		if pattern != nil {
			steps += pattern.Steps(len(key))
		}
		if r.deadline > m.now && (pattern == nil || pattern.Match(key)) {
			keys = append(keys, m.exported(r))
			bytes += len(r.data)
		}
		last = key
		return true
	})
	return keys, next
}

// exported returns what there is of a key without a look at the watches.
func (m *Machine) exported(r *record) KeyInfo {
	info := KeyInfo{Key: r.key(), Value: r.value(), Version: r.version().Timestamp(hlc.StoreNodeID), Token: r.token, TTL: -1}
	if r.deadline != noDeadline {
		info.TTL = r.deadline - m.now
	}
	return info
}
