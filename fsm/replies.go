package fsm

import (
	"bytes"
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// keptReplies are the replies to the operations of a transaction whose outcome is remembered. They do not change.
type keptReplies struct {
	id     RequestID
	client uint64   // hash of the client id
	codes  string   // a Code for each operation
	values []string // of those with CodeValue
}

// The bounds of what is remembered of the replies of transactions, in bytes. When one is reached, transactions are refused as overloaded until outcomes
// are forgotten. The values that were read have a bound of their own, so that no reader keeps others from writing. One transaction may pass a bound.
const (
	maxReplies     = 64 << 20
	maxReplyShare  = maxReplies / 2 // of one client, of all but the values
	maxValues      = 64 << 20
	maxValuesShare = maxValues / 4 // of one client
)

// replyTable has the replies of transactions in the dedup table, by the id of their outcome.
type replyTable struct {
	byID    *btree.BTreeG[*keptReplies]
	replies usage // of all but the values
	values  usage
}

// usage counts bytes, also by the hash of a client id.
type usage struct {
	bytes     int64
	perClient map[uint64]int64
}

func newReplyTable() replyTable {
	return replyTable{
		byID:    btree.NewBTreeGOptions(func(a, b *keptReplies) bool { return bytes.Compare(a.id[:], b.id[:]) < 0 }, btree.Options{NoLocks: true}),
		replies: usage{perClient: make(map[uint64]int64)},
		values:  usage{perClient: make(map[uint64]int64)},
	}
}

// add adds bytes, or subtracts them.
func (u *usage) add(client uint64, bytes int64) {
	u.bytes += bytes
	if u.perClient[client] += bytes; u.perClient[client] == 0 {
		delete(u.perClient, client)
	}
}

func (u *usage) isBelow(client uint64, most, share int64) bool {
	return u.bytes < most && u.perClient[client] < share
}

// keep returns what is remembered of the results of operations, nil if there are none. The values are copied: they would keep whole records in memory.
func keep(id RequestID, client uint64, results []Result) *keptReplies {
	if len(results) == 0 {
		return nil
	}
	kept := &keptReplies{id: id, client: client}
	var codes strings.Builder
	for i := range results {
		codes.WriteByte(byte(results[i].Code))
		if results[i].Code == CodeValue {
			kept.values = append(kept.values, strings.Clone(results[i].Value))
		}
	}
	kept.codes = codes.String()
	return kept
}

// results returns the results for a copy of the transaction.
func (k *keptReplies) results(dialect Dialect) []Result {
	results, values := make([]Result, len(k.codes)), k.values
	for i := range results {
		results[i] = Result{Code: Code(k.codes[i]), Dialect: dialect}
		if results[i].Code == CodeValue {
			results[i].Value, values = values[0], values[1:]
		}
	}
	return results
}

// size returns what is counted of the replies, in bytes: of all but the values, and of the values.
func (k *keptReplies) size() (replies, values int64) {
	const overhead, each = 128, 16 // bytes of a keptReplies with its place in the tree, and of a string
	for _, value := range k.values {
		values += each + int64(len(value))
	}
	return overhead + int64(len(k.codes)), values
}

// room reports whether the replies of a transaction of the client may be remembered.
func (t *replyTable) room(client uint64, operations []Command) bool {
	reads := slices.ContainsFunc(operations, func(c Command) bool { return c.Kind == KindGet })
	return t.replies.isBelow(client, maxReplies, maxReplyShare) && (!reads || t.values.isBelow(client, maxValues, maxValuesShare))
}

func (t *replyTable) put(added *keptReplies) {
	replies, values := added.size()
	t.byID.Set(added)
	t.replies.add(added.client, replies)
	t.values.add(added.client, values)
}

func (t *replyTable) drop(id RequestID) {
	gone, ok := t.byID.Delete(&keptReplies{id: id})
	if !ok {
		return
	}
	replies, values := gone.size()
	t.replies.add(gone.client, -replies)
	t.values.add(gone.client, -values)
}

// bytes returns what is counted of all replies, in bytes.
func (t *replyTable) bytes() int64 { return t.replies.bytes + t.values.bytes }

// of returns the replies of a transaction that is in the dedup table.
func (t *replyTable) of(id RequestID) *keptReplies { return repliesOf(t.byID, id) }

// repliesOf returns the replies of a transaction, nil if there are none.
func repliesOf(byID *btree.BTreeG[*keptReplies], id RequestID) *keptReplies {
	kept, _ := byID.Get(&keptReplies{id: id})
	return kept
}
