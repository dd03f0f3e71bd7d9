package fsm

import (
	"bytes"
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// keptReplies are the replies to the operations of a transaction whose outcome is remembered. They
// do not change.
type keptReplies struct {
	id     RequestID
	client uint64   // hash of the client id
	codes  string   // a Code for each operation
	values []string // values of the operations with CodeValue
}

// The bounds, in bytes, of the remembered replies of transactions. When one is reached,
// transactions are refused as overloaded until outcomes are forgotten. maxKeptValueBytes refuses
// only transactions with a GET, so that readers cannot keep others from writing. The last
// transaction that is let in may exceed a bound: the size of its replies is not known before.
const (
	maxKeptReplyBytes = 128 << 20 // bytes of everything but the values
	maxKeptValueBytes = 64 << 20
	// clientShareDivisor divides a bound: one client may use the clientShareDivisor-th part of it.
	clientShareDivisor = 4
)

// replyTable has the replies of the transactions in the dedup table, by request id.
type replyTable struct {
	byID   *btree.BTreeG[*keptReplies]
	values usage
	others usage // all but the values
}

// usage counts bytes, also by the hash of a client id.
type usage struct {
	bytes     int64
	perClient map[uint64]int64
}

func newReplyTable() replyTable {
	return replyTable{
		byID: btree.NewBTreeGOptions(func(a,
			b *keptReplies,
		) bool {
			return bytes.Compare(a.id[:], b.id[:]) < 0
		},
			btree.Options{NoLocks: true}),
		values: usage{perClient: make(map[uint64]int64)},
		others: usage{perClient: make(map[uint64]int64)},
	}
}

// add adds bytes, or subtracts them.
func (u *usage) add(client uint64, bytes int64) {
	u.bytes += bytes
	if u.perClient[client] += bytes; u.perClient[client] == 0 {
		delete(u.perClient, client)
	}
}

// isBelow reports whether all clients together use less than a bound, and the client less than its
// share of the bound.
func (u *usage) isBelow(client uint64, most int64) bool {
	return u.bytes < most && u.perClient[client] < most/clientShareDivisor
}

// newKeptReplies returns what is remembered of the results of operations, nil if there are none.
// The values are copied: a part of a string would keep all of it in memory.
func newKeptReplies(id RequestID, client uint64, results []Result) *keptReplies {
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

// results returns the results with which the transaction is answered when it arrives again.
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

// size returns the bytes that count against the bounds: those of the values, and those of
// everything else.
func (k *keptReplies) size() (values, others int64) {
	// bytes of a keptReplies with its place in the tree, and of a string
	const overhead, each = 128, 16
	for _, value := range k.values {
		values += each + int64(len(value))
	}
	return values, overhead + int64(len(k.codes))
}

// hasRoom reports whether the replies of a transaction of the client may be remembered.
func (t *replyTable) hasRoom(client uint64, operations []Command) bool {
	reads := slices.ContainsFunc(operations, func(c Command) bool { return c.Kind == KindGet })
	return t.others.isBelow(client, maxKeptReplyBytes) &&
		(!reads || t.values.isBelow(client, maxKeptValueBytes))
}

func (t *replyTable) put(added *keptReplies) {
	values, others := added.size()
	t.byID.Set(added)
	t.values.add(added.client, values)
	t.others.add(added.client, others)
}

func (t *replyTable) drop(id RequestID) {
	gone, ok := t.byID.Delete(&keptReplies{id: id})
	if !ok {
		return
	}
	values, others := gone.size()
	t.values.add(gone.client, -values)
	t.others.add(gone.client, -others)
}

// bytes returns the sum of the sizes of all replies.
func (t *replyTable) bytes() int64 { return t.values.bytes + t.others.bytes }

// find returns the replies of a transaction that is in the dedup table, nil if there are none.
func (t *replyTable) find(id RequestID) *keptReplies { return findReplies(t.byID, id) }

// findReplies returns the replies of a transaction, nil if there are none.
func findReplies(byID *btree.BTreeG[*keptReplies], id RequestID) *keptReplies {
	kept, _ := byID.Get(&keptReplies{id: id})
	return kept
}
