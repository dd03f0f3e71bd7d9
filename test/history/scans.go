package history

import (
	"cmp"
	"slices"

	"holdfast/resp"
)

// page is one page of a scan, with the keys that it returned.
type page struct {
	op   *Op
	keys []string
}

// scans returns the pages of each scan of which all were answered, in their order.
func (j *judge) scans() (scans [][]page) {
	type name struct {
		client string
		number int
	}
	all := make(map[name][]page)
	for _, o := range j.history.Ops {
		if o.Verb != Scan || !o.Known || o.Reply.Kind != resp.ReplyPage {
			continue
		}
		p := page{op: o}
		for _, key := range o.Reply.Keys {
			p.keys = append(p.keys, string(key))
		}
		all[name{o.Client, o.ScanNumber}] = append(all[name{o.Client, o.ScanNumber}], p)
	}
	for _, pages := range all {
		slices.SortFunc(pages, func(a, b page) int { return cmp.Compare(a.op.Sequence, b.op.Sequence) })
		if pages[0].op.After == "" && len(pages[len(pages)-1].op.Reply.Next) == 0 {
			scans = append(scans, pages)
		}
	}
	slices.SortFunc(scans, func(a, b []page) int { return cmp.Compare(a[0].op.Number, b[0].op.Number) })
	return scans
}

// checkScans: all pages together have each key that was there throughout, in the order of their bytes and none twice, and no key that cannot have
// been there.
func (j *judge) checkScans() {
	keys := make(map[string][]*Op)
	for key, ops := range j.history.byKey() {
		if family(key) == "scan" {
			keys[key] = slices.DeleteFunc(slices.Clone(ops), func(o *Op) bool { return o.Verb == Scan })
		}
	}
	for _, pages := range j.scans() {
		j.findings.Scans++
		j.findings.Pages += len(pages)
		found, last := make(map[string]bool), ""
		for _, p := range pages {
			for _, key := range p.keys {
				if key <= last {
					j.violation("scan", "%s returns %q after %q", p.op, key, last)
				}
				found[key], last = true, key
				if !mayExist(keys[key], p.op) {
					j.violation("scan", "%s returns %q, which was not there", p.op, key)
				}
			}
		}
		first, end := pages[0].op, pages[len(pages)-1].op
		for key, ops := range keys {
			if set := j.existsThroughout(ops, first, end); set != nil && !found[key] {
				j.violation("scan", "%s to %s do not return %q although %s", first, end, key, set)
			}
		}
	}
}

// mayExist reports whether a key with these operations may have existed at some moment of a page.
func mayExist(ops []*Op, page *Op) bool {
	return slices.ContainsFunc(ops, func(set *Op) bool {
		if set.Verb != Set || set.Call > page.Replied || set.Known && !set.Applied() {
			return false
		}
		return !set.Known || !slices.ContainsFunc(ops, func(d *Op) bool {
			return d.Verb == Del && d.Applied() && d.Call > set.Replied && d.Replied < page.Call
		})
	})
}

// existsThroughout returns a SET because of which a key surely existed from the first page of a scan to its last, or nil.
func (j *judge) existsThroughout(ops []*Op, first, last *Op) *Op {
	at := slices.IndexFunc(ops, func(set *Op) bool {
		before := set.Replied <= first.Call || set.Client == first.Client && set.Sequence < first.Sequence && j.inOrder(set, first)
		return set.Verb == Set && set.Applied() && before && !slices.ContainsFunc(ops, func(d *Op) bool {
			return d.Verb == Del && (!d.Known || d.Applied() && d.Replied > set.Call) && d.Call < last.Replied
		})
	})
	if at < 0 {
		return nil
	}
	return ops[at]
}

// inOrder reports whether two requests of a client have surely come to the leader in their order.
func (j *judge) inOrder(a, b *Op) bool {
	return a.Singly() && b.Singly() && j.conditions.SameWay != nil && j.conditions.SameWay(a, b)
}
