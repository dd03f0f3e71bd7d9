package fsm

import (
	"cmp"

	"github.com/tidwall/btree"
)

// watch is a client's subscription to the changes of a key (KEYNOTIFY). It is immutable once it is in the trees.
type watch struct {
	key        string
	clientID   string
	dialect    Dialect
	index      uint64 // log index of the latest KEYNOTIFY
	renewed    int64  // cluster time of the latest KEYNOTIFY
	brokerTime int64  // of the latest KEYNOTIFY; 0 is unknown
}

// watches orders all watches by key, by client id, and by the time of their renewal.
type watches struct {
	byKey     *btree.BTreeG[*watch]
	byClient  *btree.BTreeG[*watch]
	byRenewal *btree.BTreeG[*watch]
	bytes     int64            // of all keys and client ids
	perClient map[string]int64 // watches by client id; derived

	// The result of the last lookup; nil if it found no receiver, or the watches have changed since.
	latestKey string
	latest    []Receiver
}

func (w *watch) size() int64 { return int64(len(w.key) + len(w.clientID)) }

// full reports whether another watch would exceed a limit: on count, on bytes, or on watches of one client.
func (w *watches) full(limits *Limits, added *watch) bool {
	return int64(w.byKey.Len()) >= limits.Watches || w.bytes+added.size() > limits.WatchBytes ||
		(limits.WatchesPerClient > 0 && w.perClient[added.clientID] >= limits.WatchesPerClient)
}

func newWatches() watches {
	tree := func(compare func(a, b *watch) int) *btree.BTreeG[*watch] {
		return btree.NewBTreeGOptions(func(a, b *watch) bool { return compare(a, b) < 0 }, btree.Options{NoLocks: true})
	}
	byKey := func(a, b *watch) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.clientID, b.clientID))
	}
	return watches{
		byKey: tree(byKey),
		byClient: tree(func(a, b *watch) int {
			return cmp.Or(cmp.Compare(a.clientID, b.clientID), cmp.Compare(a.key, b.key))
		}),
		byRenewal: tree(func(a, b *watch) int { return cmp.Or(cmp.Compare(a.renewed, b.renewed), byKey(a, b)) }),
		perClient: make(map[string]int64),
	}
}

func (w *watches) len() int { return w.byKey.Len() }

func (w *watches) find(key []byte, clientID string) (*watch, bool) {
	return w.byKey.Get(&watch{key: string(key), clientID: clientID})
}

func (w *watches) put(added *watch) {
	if old, replaced := w.byKey.Set(added); replaced {
		w.byRenewal.Delete(old)
		w.bytes -= old.size()
		w.perClient[added.clientID]--
	}
	w.perClient[added.clientID]++
	w.bytes += added.size()
	w.latest = nil
	w.byClient.Set(added)
	w.byRenewal.Set(added)
}

func (w *watches) delete(ended *watch) {
	w.bytes -= ended.size()
	if w.perClient[ended.clientID]--; w.perClient[ended.clientID] == 0 {
		delete(w.perClient, ended.clientID)
	}
	w.latest = nil
	w.byKey.Delete(ended)
	w.byClient.Delete(ended)
	w.byRenewal.Delete(ended)
}

// receivers returns who watches the key, in the order of their client ids. The slice may be shared.
func (w *watches) receivers(key string) []Receiver {
	if w.byKey.Len() == 0 {
		return nil
	}
	if w.latest != nil && w.latestKey == key {
		return w.latest
	}
	var receivers []Receiver
	w.byKey.Ascend(&watch{key: key}, func(found *watch) bool {
		if found.key != key {
			return false
		}
		receivers = append(receivers, Receiver{ClientID: found.clientID, Dialect: found.dialect})
		return true
	})
	w.latestKey, w.latest = key, receivers
	return receivers
}

// ofClient returns the watches of one client, or of all clients from this id on, in the order of clients and keys.
func (w *watches) ofClient(clientID string, everyone bool) []*watch {
	var found []*watch
	w.byClient.Ascend(&watch{clientID: clientID}, func(candidate *watch) bool {
		if candidate.clientID != clientID && !everyone {
			return false
		}
		found = append(found, candidate)
		return true
	})
	return found
}
