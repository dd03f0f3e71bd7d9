package fsm

import (
	"cmp"
	"slices"
	"strings"

	"holdfast/hlc"
)

// Owner is for whom a key counts: who wrote its present value. It is a user where the broker says
// which user a client is, and a client id elsewhere.
type Owner struct {
	Name   string // at most maxOwnerName bytes
	IsUser bool
}

// maxOwnerName bounds the names of owners: they stay with keys, and no quota counts them. Longer
// names that begin alike are one owner.
const maxOwnerName = 256

// owner returns for whom the keys count that the command writes.
func (c *Command) owner() Owner {
	owner := Owner{c.Principal.ClientID, false}
	if c.Principal.Username != "" {
		owner = Owner{c.Principal.Username, true}
	}
	if len(owner.Name) > maxOwnerName {
		owner.Name = strings.Clone(owner.Name[:maxOwnerName]) // not to keep the rest in memory
	}
	return owner
}

// owned is what an owner has. An owner without keys has none.
type owned struct {
	Owner
	keys  int64
	bytes int64   // of keys and values
	plain holding // of its keys without a fencing token
}

// holding says whose a key is, and which fencing token it has. It is immutable. Keys may share it.
type holding struct {
	owned *owned
	token hlc.Timestamp // zero is none
}

// owners has everyone who owns a key.
type owners map[Owner]*owned

// of returns what the owner has. If it has nothing, the result gets into o with its first key.
func (o owners) of(owner Owner) *owned {
	if known, ok := o[owner]; ok {
		return known
	}
	added := &owned{Owner: owner}
	added.plain.owned = added
	return added
}

// holding returns the holding of a key. found is the record of the key, or nil if there is none.
func (o owners) holding(owner Owner, token hlc.Timestamp, found *record) *holding {
	if found != nil && found.holding.token == token && found.holding.owned.Owner == owner {
		return found.holding
	}
	its := o.of(owner)
	if token.IsZero() {
		return &its.plain
	}
	if token.NodeID == hlc.StoreNodeID {
		token.NodeID = hlc.StoreNodeID // share the constant's memory
	}
	return &holding{its, token}
}

func (o owners) add(r *record) {
	its := r.holding.owned
	if its.keys == 0 {
		o[its.Owner] = its
	}
	its.keys++
	its.bytes += int64(len(r.data))
}

func (o owners) remove(r *record) {
	its := r.holding.owned
	its.keys--
	its.bytes -= int64(len(r.data))
	if its.keys == 0 {
		delete(o, its.Owner)
	}
}

// OwnerInfo is what operators see of an owner.
type OwnerInfo struct {
	Owner
	Keys  int64
	Bytes int64 // of keys and values
}

// ListOwners returns the owners with the most bytes, at most limit of them, the largest first. It
// looks at all owners, and keeps limit of them. limit must be positive.
func (m *Machine) ListOwners(limit int) (largest []OwnerInfo) {
	order := func(a, b OwnerInfo) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Keys, a.Keys),
			cmp.Compare(a.Name, b.Name), compareBools(a.IsUser, b.IsUser))
	}
	for _, its := range m.values.owners {
		if len(largest) == limit && its.bytes < largest[limit-1].Bytes {
			continue
		}
		info := OwnerInfo{its.Owner, its.keys, its.bytes}
		at, _ := slices.BinarySearchFunc(largest, info, order)
		largest = slices.Insert(largest, at, info)
		largest = largest[:min(len(largest), limit)]
	}
	return largest
}
