package fsm

import (
	"cmp"
	"slices"
	"unicode/utf8"

	"holdfast/internal/glob"
	"holdfast/internal/policy"
)

// The bounds of watches of patterns. Each pattern counts by its weight (glob.Pattern.Weight), which
// is 1 for most. The bounds limit the cost of a change of a key, even if the key begins with the
// prefix of every pattern.
const (
	maxPatternWeight          = 10_000
	maxPatternWeightPerClient = 1_000
)

// patternIndex finds the watches of patterns that a key matches. The cost of a lookup grows with
// the patterns whose literal prefix the key begins with, and with the number of different prefix
// sizes. It does not grow with the other patterns.
type patternIndex struct {
	groups    map[string]prefixGroup // by prefix
	sizes     []prefixSize           // sizes of the prefixes, the longest first
	count     int                    // number of watches
	weight    int                    // sum of the weights of all watches
	perClient map[string]int         // sum of the weights by client id
	policy    *policy.Policy         // nil allows everything
}

// prefixSize is a size of prefixes, in bytes, and the number of groups with a prefix of that size.
type prefixSize struct{ size, groups int }

// prefixGroup has the watches of all patterns with one literal prefix, in the order of their ids.
type prefixGroup []grantedWatch

// grantedWatch is a watch with what the policy allows its client.
type grantedWatch struct {
	*watch
	// nil allows everything. It is nil for a watch of one key, which was checked when it was made
	grants *policy.Grants
}

func newPatternIndex() patternIndex {
	return patternIndex{groups: make(map[string]prefixGroup), perClient: make(map[string]int)}
}

// full reports whether another watch would exceed a bound.
func (x *patternIndex) full(added *watch) bool {
	weight := added.pattern.Weight()
	return x.weight+weight > maxPatternWeight || x.perClient[added.clientID]+
		weight > maxPatternWeightPerClient
}

// put adds a watch. No watch with its id is there.
func (x *patternIndex) put(added *watch) {
	prefix := added.pattern.Prefix()
	group, found := x.groups[prefix]
	if !found {
		x.countSize(len(prefix), 1)
	}
	at, _ := group.find(added)
	x.groups[prefix] = slices.Insert(group, at, x.granted(added))
	x.count++
	x.addWeight(added, added.pattern.Weight())
}

// delete removes a watch that is there.
func (x *patternIndex) delete(ended *watch) {
	prefix := ended.pattern.Prefix()
	group := x.groups[prefix]
	at, _ := group.find(ended)
	x.groups[prefix] = slices.Delete(group, at, at+1)
	if len(group) == 1 {
		delete(x.groups, prefix)
		x.countSize(len(prefix), -1)
	}
	x.count--
	x.addWeight(ended, -ended.pattern.Weight())
}

func (x *patternIndex) addWeight(w *watch, weight int) {
	x.weight += weight
	if x.perClient[w.clientID] += weight; x.perClient[w.clientID] == 0 {
		delete(x.perClient, w.clientID)
	}
}

// countSize adds to the number of groups with a prefix of the size.
func (x *patternIndex) countSize(size, groups int) {
	at, found := slices.BinarySearchFunc(x.sizes, size,
		func(s prefixSize, size int) int { return cmp.Compare(size, s.size) })
	if !found {
		x.sizes = slices.Insert(x.sizes, at, prefixSize{size: size})
	}
	if x.sizes[at].groups += groups; x.sizes[at].groups == 0 {
		x.sizes = slices.Delete(x.sizes, at, at+1)
	}
}

func (g prefixGroup) find(w *watch) (int, bool) {
	return slices.BinarySearchFunc(g, w,
		func(a grantedWatch, b *watch) int { return a.compare(&b.watchID) })
}

// find returns a watch that is there with what the policy allows its client.
func (x *patternIndex) find(w *watch) grantedWatch {
	group := x.groups[w.pattern.Prefix()]
	at, _ := group.find(w)
	return group[at]
}

// setPolicy puts a policy in force.
func (x *patternIndex) setPolicy(p *policy.Policy) {
	x.policy = p
	for _, group := range x.groups {
		for i := range group {
			group[i] = x.granted(group[i].watch)
		}
	}
}

func (x *patternIndex) granted(w *watch) grantedWatch {
	if x.policy == nil {
		return grantedWatch{watch: w}
	}
	grants := x.policy.Grants(&w.pattern.principal, policy.Read)
	return grantedWatch{w, &grants}
}

// appendMatching appends to found each watch whose pattern matches the key and whose client can be
// notified of the key. Those with the longest prefix come first. cost is an upper bound on the
// work: the sizes of the prefixes and, for each pattern whose prefix the key has,
// glob.Pattern.Weight for each byte of the key.
func (x *patternIndex) appendMatching(found []grantedWatch, key string) (all []grantedWatch,
	cost int,
) {
	if len(x.sizes) == 0 || len(key) > glob.MaxWatchedKey || !utf8.ValidString(key) {
		return found, 0
	}
	for _, prefix := range x.sizes {
		if prefix.size > len(key) {
			continue
		}
		cost += 1 + prefix.size
		group := x.groups[key[:prefix.size]]
		for i := range group {
			w := &group[i]
			cost += w.pattern.Weight() * (len(key) + 1)
			if w.pattern.MatchText(key) && fitsTopic(w.clientID, key) {
				found = append(found, *w)
			}
		}
	}
	return found, cost
}

// cost returns the cost of appendMatching for a key, without matching.
func (x *patternIndex) cost(key string) (cost int) {
	if len(key) > glob.MaxWatchedKey {
		return 0
	}
	for _, prefix := range x.sizes {
		if prefix.size > len(key) {
			continue
		}
		cost += 1 + prefix.size
		for _, w := range x.groups[key[:prefix.size]] {
			cost += w.pattern.Weight() * (len(key) + 1)
		}
	}
	return cost
}

// MatchCost returns an upper bound on the bytes that are compared to find the watches of patterns
// for a change, if the patterns have this weight in all (Machine.PatternWeight). It is 0 for a
// command that changes no key.
func (c *Command) MatchCost(patternWeight int) int {
	switch c.Kind {
	case KindSet, KindDel, KindVDel:
		return min(len(c.Key), glob.MaxWatchedKey) * patternWeight
	default:
		return 0
	}
}

// has reports whether a client watches any pattern.
func (x *patternIndex) has(clientID string) bool { return x.perClient[clientID] > 0 }
