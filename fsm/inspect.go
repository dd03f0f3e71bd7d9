package fsm

import (
	"math"
	"strings"
	"unicode/utf8"

	"holdfast/hlc"
	"holdfast/internal/glob"
)

// The methods of Machine in this file may run at the same time as Read and as each other, but not
// as Apply or Restore.

// KeyInfo is what operators see of a key.
type KeyInfo struct {
	Key     string
	Value   string
	Version hlc.Timestamp
	Token   *hlc.Timestamp // nil when there is none
	// TTL is how many milliseconds of cluster time are left; negative when the key does not expire.
	TTL int64
	// Watchers are the clients that watch the key, in the order of their ids. Only FindKey includes
	// clients that watch it by a pattern.
	Watchers []Receiver
}

// ListKeys returns at most limit keys with the prefix that come after the key after, in byte order.
// An empty after is before all keys. limit must be positive.
func (m *Machine) ListKeys(prefix, after string, limit int) []KeyInfo {
	var found []KeyInfo
	m.scanKeys(prefix, after, func(r *record) bool {
		found = append(found, m.keyInfo(r))
		return len(found) < limit
	})
	return found
}

// ListExpiring returns at most limit keys with the prefix that have a deadline, the earliest first.
// It examines at most visits keys with a deadline. all is true if it examined every one.
func (m *Machine) ListExpiring(prefix string, limit, visits int) (found []KeyInfo, all bool) {
	all = true
	m.values.byDeadline.Scan(func(r *record) bool {
		if visits--; visits < 0 || len(found) == limit {
			all = false
			return false
		}
		if r.deadline > m.now && strings.HasPrefix(r.key(), prefix) {
			found = append(found, m.keyInfo(r))
		}
		return true
	})
	return found, all
}

// CountKeys counts at most limit keys with the prefix that come after the key after, and their
// bytes. It returns the last key that it counted, from which the caller goes on, "" if none. The
// bytes are those of keys and values. limit must be positive.
func (m *Machine) CountKeys(prefix, after string, limit int) (count int, bytes int64, last string) {
	m.scanKeys(prefix, after, func(r *record) bool {
		count++
		bytes += int64(len(r.data))
		last = r.key()
		return count < limit
	})
	return count, bytes, last
}

// FindKey returns what operators see of one key. Its Watchers are those that would be notified of a
// change now.
func (m *Machine) FindKey(key string) (KeyInfo, bool) {
	found, ok := m.values.find([]byte(key))
	if !ok || found.deadline <= m.now {
		return KeyInfo{}, false
	}
	info := m.infoWithoutWatchers(found)
	info.Watchers, _ = m.watches.lookup(key)
	return info, true
}

// scanKeys calls visit, in byte order, for each key that has the prefix, comes after the key after,
// and has not expired. It ends when visit returns false. No key is empty, so an empty after is
// before all keys.
func (m *Machine) scanKeys(prefix, after string, visit func(*record) bool) {
	first := max(prefix, after)
	m.values.byKey.Ascend(&record{data: first, keySize: uint32(len(first))}, func(r *record) bool {
		switch {
		case !strings.HasPrefix(r.key(), prefix):
			return false
		case r.key() <= after && after != "", r.deadline <= m.now:
			return true
		}
		return visit(r)
	})
}

func (m *Machine) keyInfo(r *record) KeyInfo {
	info := m.infoWithoutWatchers(r)
	for _, w := range m.watches.ofKey(info.Key) {
		info.Watchers = append(info.Watchers, Receiver{ClientID: w.clientID, Dialect: w.dialect})
	}
	return info
}

// WatchInfo is what operators see of a watch.
type WatchInfo struct {
	Key      string // or the pattern
	Pattern  bool   // Key is a pattern
	ClientID string
	Dialect  Dialect
	Age      int64 // milliseconds of cluster time since it was last renewed
}

func (w *WatchInfo) id() watchID { return watchID{w.Key, w.Pattern, w.ClientID} }

// ListWatches returns at most limit watches that come after the watch after. It returns those whose
// key or pattern begins with prefix, of the client clientID or, if that is empty, of all clients.
// The order is that of the text, then keys before patterns, then client ids. Of after, only Key,
// Pattern and ClientID matter; the zero WatchInfo is before all watches. limit must be positive.
func (m *Machine) ListWatches(prefix, clientID string, after WatchInfo, limit int) []WatchInfo {
	var found []WatchInfo
	first := &watch{watchID: after.id()}
	if prefix > after.Key {
		first = &watch{watchID: watchID{key: prefix}}
	}
	tree := m.watches.byKey
	if clientID != "" { // no other client's watches are visited
		tree, first.clientID = m.watches.byClient, clientID
	}
	tree.Ascend(first, func(w *watch) bool {
		switch {
		case clientID != "" && w.clientID != clientID, !strings.HasPrefix(w.key, prefix):
			return false
		case w.watchID == after.id():
			return true
		}
		found = append(found, m.watchInfo(w))
		return len(found) < limit
	})
	return found
}

// HasWatches reports whether a client watches any key or pattern.
func (m *Machine) HasWatches(clientID string) (watches bool) {
	m.watches.byClient.Ascend(&watch{watchID: watchID{clientID: clientID}},
		func(first *watch) bool {
			watches = first.clientID == clientID
			return false
		})
	return watches
}

// WatchesNearlyFull reports whether the watches use four fifths of one of their limits.
func (m *Machine) WatchesNearlyFull() bool {
	limits, w := &m.settings.Limits, &m.watches
	const part, whole = 4, 5
	return int64(w.len())*whole >= limits.Watches*part || w.bytes*whole >= limits.WatchBytes*part ||
		w.patterns.weight*whole >= maxPatternWeight*part
}

// PatternWeight returns the sum of the weights of all watched patterns: an upper bound on what a
// byte of a key costs when the key changes.
func (m *Machine) PatternWeight() int { return m.watches.patterns.weight }

// FirstWatchAfter returns the first watch of the client whose id follows clientID in byte order,
// among those that watch anything. ok is false after the last one.
func (m *Machine) FirstWatchAfter(clientID string) (first WatchInfo, ok bool) {
	m.watches.byClient.Ascend(&watch{watchID: watchID{clientID: clientID + "\x00"}},
		func(w *watch) bool {
			first, ok = m.watchInfo(w), true
			return false
		})
	return first, ok
}

func (m *Machine) watchInfo(w *watch) WatchInfo {
	return WatchInfo{
		Key: w.key, Pattern: w.isPattern, ClientID: w.clientID, Dialect: w.dialect,
		Age: m.now - w.renewed,
	}
}

const (
	// maxRepeatVisits bounds the keys that Repeat visits for a watch of a pattern, and maxRepeated
	// the size of the value in bytes that it repeats.
	maxRepeatVisits = 20
	maxRepeated     = 4096
)

// Repeat returns a notification that tells the client of a watch what a key that it watches has
// now. It is no change, and has no version. If it finds no subscriber, the client is gone. ok is
// false in two cases: the value has more than maxRepeated bytes; or none of the first
// maxRepeatVisits keys with the pattern's prefix matches the pattern and may be read by the client.
// The cost does not depend on how many watches there are.
func (m *Machine) Repeat(w *WatchInfo) (event Event, ok bool) {
	// Index is one more than the last: a KEYNOTIFY up to now came before the notification.
	event = Event{
		Index: m.index + 1, Key: w.Key, At: m.now,
		Receivers: []Receiver{{ClientID: w.ClientID, Dialect: w.Dialect}},
	}
	if !w.Pattern {
		found, exists := m.values.find([]byte(w.Key))
		if exists = exists && found.deadline > m.now; exists {
			event.Value = found.value()
		}
		event.Deleted = !exists
		return event, len(event.Value) <= maxRepeated
	}
	watched, exists := m.watches.find(w.id())
	if !exists {
		return Event{}, false
	}
	granted, visits := m.watches.patterns.find(watched), 0
	m.scanKeys(granted.pattern.Prefix(), "", func(r *record) bool {
		visits++
		key := r.key()
		if len(key) <= glob.MaxWatchedKey && len(r.value()) <= maxRepeated &&
			utf8.ValidString(key) && granted.pattern.MatchText(key) &&
			fitsTopic(w.ClientID, key) &&
			(granted.grants == nil || granted.grants.Allow([]byte(key))) {
			event.Key, event.Value, ok = key, r.value(), true
		}
		return !ok && visits < maxRepeatVisits
	})
	return event, ok
}

// EndCommand returns the command that ends the watch, whatever its age.
func (w *WatchInfo) EndCommand() Command {
	command := Command{
		Kind: KindWatchEnd, Key: []byte(w.Key), Pattern: w.Pattern,
		NotificationIndex: anyAge, ChangedAt: math.MaxInt64,
	}
	command.Principal.ClientID = w.ClientID
	return command
}
