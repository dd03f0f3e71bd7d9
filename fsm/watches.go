package fsm

import (
	"cmp"
	"slices"

	"github.com/tidwall/btree"

	"holdfast/internal/glob"
	"holdfast/internal/policy"
)

// watch is a client's subscription to the changes of a key, or of all keys that match a pattern
// (KEYNOTIFY). It is immutable once it is in the trees.
type watch struct {
	watchID
	pattern    *watchedPattern // nil for a watch of one key
	dialect    Dialect
	index      uint64 // log index of the latest KEYNOTIFY
	renewed    int64  // cluster time of the latest KEYNOTIFY
	brokerTime int64  // Command.BrokerTime of the latest KEYNOTIFY; 0 is unknown
}

// watchID identifies a watch. A key and a pattern of the same text are different.
type watchID struct {
	key       string // or pattern
	isPattern bool
	clientID  string
}

// watchedPattern has the additional fields of a watch of a pattern.
type watchedPattern struct {
	*glob.Pattern
	// the client; at each change the policy decides whether it may read the key
	principal policy.Principal
}

// compare orders watches by their keys, those of a key before those of the pattern with the same
// text, and then by their clients.
func (id *watchID) compare(other *watchID) int {
	return cmp.Or(cmp.Compare(id.key, other.key), compareBools(id.isPattern, other.isPattern),
		cmp.Compare(id.clientID, other.clientID))
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// watches orders all watches by key, by client id, and by the time of their renewal.
type watches struct {
	byKey     *btree.BTreeG[*watch]
	byClient  *btree.BTreeG[*watch]
	byRenewal *btree.BTreeG[*watch]
	bytes     int64            // sum of the sizes of all watches
	perClient map[string]int64 // number of watches by client id
	patterns  patternIndex     // index of the watches of patterns

	// The result of the last lookup; nil if no watch matched, or the watches or the policy have
	// changed since.
	cachedKey  string
	cached     []Receiver
	cachedCost int
}

func (w *watch) size() int64 {
	size := len(w.key) + len(w.clientID)
	if w.pattern != nil {
		size += w.pattern.Memory() + len(w.pattern.principal.Username)
		for _, attribute := range w.pattern.principal.Attributes {
			size += len(attribute.Name) + len(attribute.Value)
		}
	}
	return int64(size)
}

// exceeded returns which limit an added watch would exceed: on the number of watches, on their
// bytes, on the watches of one client, or a bound of patternIndex. If it replaces a watch, only its
// additional bytes count.
func (w *watches) exceeded(limits *Limits, added *watch) Limit {
	old, exists := w.find(added.watchID)
	more := added.size()
	if exists {
		more -= old.size()
	}
	switch {
	case !exists && int64(w.byKey.Len()) >= limits.Watches:
		return LimitWatches
	case more > 0 && w.bytes+more > limits.WatchBytes:
		return LimitWatchBytes
	case exists:
		return NoLimit
	case limits.WatchesPerClient > 0 && w.perClient[added.clientID] >= limits.WatchesPerClient:
		return LimitWatchesPerClient
	case added.isPattern && w.patterns.full(added):
		return LimitPatterns
	default:
		return NoLimit
	}
}

func newWatches() watches {
	tree := func(compare func(a, b *watch) int) *btree.BTreeG[*watch] {
		return btree.NewBTreeGOptions(func(a, b *watch) bool { return compare(a, b) < 0 },
			btree.Options{NoLocks: true})
	}
	byKey := func(a, b *watch) int { return a.compare(&b.watchID) }
	return watches{
		byKey: tree(byKey),
		byClient: tree(func(a, b *watch) int {
			return cmp.Or(cmp.Compare(a.clientID, b.clientID),
				byKey(a, b))
		}),
		byRenewal: tree(func(a, b *watch) int {
			return cmp.Or(cmp.Compare(a.renewed, b.renewed),
				byKey(a, b))
		}),
		perClient: make(map[string]int64),
		patterns:  newPatternIndex(),
	}
}

func (w *watches) len() int { return w.byKey.Len() }

func (w *watches) find(id watchID) (*watch, bool) { return w.byKey.Get(&watch{watchID: id}) }

func (w *watches) put(added *watch) {
	if old, replaced := w.byKey.Set(added); replaced {
		w.unindex(old)
	}
	w.perClient[added.clientID]++
	w.bytes += added.size()
	w.cached = nil
	w.byClient.Set(added)
	w.byRenewal.Set(added)
	if added.isPattern {
		w.patterns.put(added)
	}
}

func (w *watches) delete(ended *watch) {
	w.byKey.Delete(ended)
	w.unindex(ended)
}

// unindex removes a watch from all indexes but byKey.
func (w *watches) unindex(ended *watch) {
	w.bytes -= ended.size()
	if w.perClient[ended.clientID]--; w.perClient[ended.clientID] == 0 {
		delete(w.perClient, ended.clientID)
	}
	w.cached = nil
	w.byClient.Delete(ended)
	w.byRenewal.Delete(ended)
	if ended.isPattern {
		w.patterns.delete(ended)
	}
}

// setPolicy puts a policy in force. For each change of a key, the policy decides which clients are
// notified; nil allows all.
func (w *watches) setPolicy(p *policy.Policy) {
	w.cached = nil
	w.patterns.setPolicy(p)
}

// receivers returns who is notified of a change of the key, in the order of their client ids, and
// an upper bound on the work to find them: that of appendMatching, and the steps of the policy.
// Later calls and events may share the slice, so it must not be changed.
func (w *watches) receivers(key string) ([]Receiver, int) {
	if w.byKey.Len() == 0 {
		return nil, 0
	}
	if w.cached != nil && w.cachedKey == key {
		return w.cached, w.cachedCost
	}
	receivers, cost := w.lookup(key)
	w.cachedKey, w.cached, w.cachedCost = key, receivers, cost
	return receivers, cost
}

// lookup is receivers without the cache: several calls may run at the same time.
//
// A client may watch the key by itself and by several patterns. It is notified once, in the dialect
// of its latest KEYNOTIFY. If only patterns match, the policy is asked once for each client, about
// the principal that its latest KEYNOTIFY had.
func (w *watches) lookup(key string) (receivers []Receiver, cost int) {
	own := w.ofKey(key)
	found, cost := w.patterns.appendMatching(own, key)
	if len(found) > len(own) {
		slices.SortStableFunc(found, func(a, b grantedWatch) int {
			return cmp.Or(cmp.Compare(a.clientID, b.clientID), cmp.Compare(b.index, a.index))
		})
	}
	if len(found) > 0 {
		receivers = make([]Receiver, 0, len(found))
	}
	for len(found) > 0 {
		latest := &found[0]
		end := slices.IndexFunc(found,
			func(other grantedWatch) bool { return other.clientID != latest.clientID })
		if end < 0 {
			end = len(found)
		}
		allowed := latest.grants == nil ||
			slices.ContainsFunc(found[:end],
				func(other grantedWatch) bool { return !other.isPattern })
		if !allowed {
			cost += latest.grants.Steps() * (len(key) + 1)
			allowed = latest.grants.Allow([]byte(key))
		}
		if allowed {
			receivers = append(receivers,
				Receiver{ClientID: latest.clientID, Dialect: latest.dialect})
		}
		found = found[end:]
	}
	return receivers, cost
}

// ofKey returns the watches of the key itself, in the order of their clients.
func (w *watches) ofKey(key string) (found []grantedWatch) {
	if w.byKey.Len() == w.patterns.count { // all watches are of patterns
		return nil
	}
	w.byKey.Ascend(&watch{watchID: watchID{key: key}}, func(candidate *watch) bool {
		if candidate.key != key || candidate.isPattern {
			return false
		}
		found = append(found, grantedWatch{watch: candidate})
		return true
	})
	return found
}

// ofClient returns the watches of one client or, if everyone is true, of all clients from this id
// on, in the order of clients and keys.
func (w *watches) ofClient(clientID string, everyone bool) []*watch {
	var found []*watch
	w.byClient.Ascend(&watch{watchID: watchID{clientID: clientID}}, func(candidate *watch) bool {
		if candidate.clientID != clientID && !everyone {
			return false
		}
		found = append(found, candidate)
		return true
	})
	return found
}
