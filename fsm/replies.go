package fsm

import (
	"bytes"
	"strings"

	"github.com/tidwall/btree"
)

// keptReplies are the replies to the operations of a transaction whose outcome is remembered. They do not change.
type keptReplies struct {
	id      RequestID
	replies []keptReply
}

// keptReply is what is remembered of the result of an operation.
type keptReply struct {
	value string
	code  Code
}

// The bounds of what is remembered of the replies of transactions, in bytes. When they are reached, transactions are refused as overloaded until
// outcomes are forgotten. One transaction may pass them.
const (
	maxReplies          = 64 << 20
	maxRepliesPerClient = maxReplies / 4
)

// replies are the replies of transactions in the dedup table, by the id of their outcome.
type replies struct {
	byID      *btree.BTreeG[*keptReplies]
	bytes     int64
	perClient map[uint64]int64 // bytes, by the hash of the client id
}

func newReplies() replies {
	return replies{
		byID:      btree.NewBTreeGOptions(func(a, b *keptReplies) bool { return bytes.Compare(a.id[:], b.id[:]) < 0 }, btree.Options{NoLocks: true}),
		perClient: make(map[uint64]int64),
	}
}

// keep returns what is remembered of the results of operations. The values are copied: they would keep whole records in memory.
func keep(results []Result) []keptReply {
	if len(results) == 0 {
		return nil
	}
	kept := make([]keptReply, len(results))
	for i := range results {
		kept[i] = keptReply{strings.Clone(results[i].Value), results[i].Code}
	}
	return kept
}

func (k *keptReplies) size() int64 {
	const each = 24 // bytes of a keptReply
	size := int64(each * len(k.replies))
	for i := range k.replies {
		size += int64(len(k.replies[i].value))
	}
	return size
}

// room reports whether the replies of another transaction of the client may be remembered.
func (r *replies) room(client uint64) bool {
	return r.bytes < maxReplies && r.perClient[client] < maxRepliesPerClient
}

func (r *replies) put(client uint64, added *keptReplies) {
	r.byID.Set(added)
	r.bytes += added.size()
	r.perClient[client] += added.size()
}

func (r *replies) of(id RequestID) []keptReply { return repliesOf(r.byID, id) }

// repliesOf returns the replies of a transaction, nil if there are none.
func repliesOf(byID *btree.BTreeG[*keptReplies], id RequestID) []keptReply {
	kept, ok := byID.Get(&keptReplies{id: id})
	if !ok {
		return nil
	}
	return kept.replies
}

func (r *replies) drop(client uint64, id RequestID) {
	gone, ok := r.byID.Delete(&keptReplies{id: id})
	if !ok {
		return
	}
	r.bytes -= gone.size()
	if r.perClient[client] -= gone.size(); r.perClient[client] == 0 {
		delete(r.perClient, client)
	}
}
