package fsm

import (
	"holdfast/hlc"
	"holdfast/internal/glob"
)

// The bounds of a page of Export. Those of walkPage (maxPageVisits, maxPageSteps) apply, too. No
// entry is applied while a page is read.
const (
	maxExportKeys  = 1000
	maxExportBytes = 1 << 20 // of keys and values; one key may have more
)

// Export returns a page of the keys that come after the key after and match a pattern, in byte
// order, without their watchers. A nil pattern matches all keys, also those that are not valid
// UTF-8, which no other pattern matches. next is the after of the next page, and empty at the end.
// A page may end before it is full. Export may run at the same time as Read and as itself, but not
// as Apply or Restore.
func (m *Machine) Export(pattern *glob.Pattern, after string) (keys []KeyInfo, next string) {
	if pattern != nil && pattern.MatchesNothing() {
		return nil, ""
	}
	bytes := 0
	next = m.walkPage(pattern, after, func(r *record) (steps int, more bool) {
		if len(keys) == maxExportKeys || len(keys) > 0 && bytes+len(r.data) > maxExportBytes {
			return 0, false
		}
		keys = append(keys, m.infoWithoutWatchers(r))
		bytes += len(r.data)
		return 0, true
	})
	return keys, next
}

// infoWithoutWatchers returns the KeyInfo of a key without its watchers.
func (m *Machine) infoWithoutWatchers(r *record) KeyInfo {
	info := KeyInfo{
		Key: r.key(), Value: r.value(), Version: r.version().Timestamp(hlc.StoreNodeID),
		Token: r.token(), TTL: -1,
	}
	if r.deadline != noDeadline {
		info.TTL = r.deadline - m.now
	}
	return info
}
