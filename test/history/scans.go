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

// scans returns the answered pages of each scan, in their order. The first page that was not
// answered ends a scan.
func (j *judge) scans() (scans [][]page) {
	type scanID struct {
		client string
		number int
	}
	all := make(map[scanID][]page)
	for _, o := range j.history.Ops {
		if o.Verb == Scan {
			id := scanID{o.Client, o.ScanNumber}
			all[id] = append(all[id], page{op: o})
		}
	}
	for _, pages := range all {
		slices.SortFunc(pages,
			func(a, b page) int { return cmp.Compare(a.op.Sequence, b.op.Sequence) })
		if end := slices.IndexFunc(pages,
			func(p page) bool {
				return !p.op.Known ||
					p.op.Reply.Kind != resp.ReplyPage
			}); end >= 0 {
			pages = pages[:end]
		}
		for i := range pages {
			for _, key := range pages[i].op.Reply.Keys {
				pages[i].keys = append(pages[i].keys, string(key))
			}
		}
		if len(pages) > 0 {
			scans = append(scans, pages)
		}
	}
	slices.SortFunc(scans, func(a,
		b []page,
	) int {
		return cmp.Compare(a[0].op.Number, b[0].op.Number)
	})
	return scans
}

// checkScans: all pages together have the keys in the order of their bytes, none twice, and none
// that cannot have been there. Each page has all keys of its range that were there while it was
// read; the range begins after the last key of the page before and ends with the page's own last
// key. The range of the last page has no end. A scan that came to its end has all keys that were
// there throughout.
func (j *judge) checkScans() {
	keys := make(map[string][]*Op)
	for key, ops := range j.history.inKeyOrder() {
		if family(key) == "scan" {
			keys[key] = slices.DeleteFunc(slices.Clone(ops),
				func(o *Op) bool { return o.Verb == Scan })
		}
	}
	for _, pages := range j.scans() {
		j.findings.Scans++
		j.findings.Pages += len(pages)
		found, last, token := make(map[string]bool), "", ""
		for _, p := range pages {
			if p.op.After != token {
				j.violation("scan", "%s goes on with another token than the page before had: %q",
					p.op, token)
			}
			token = string(p.op.Reply.Next)
			begins := last
			for _, key := range p.keys {
				if key <= last {
					j.violation("scan", "%s returns %q after %q", p.op, key, last)
				}
				found[key], last = true, key
				if !mayExist(keys[key], p.op) {
					j.violation("scan", "%s returns %q, which was not there", p.op, key)
				}
			}
			for key, ops := range keys {
				if key <= begins || token != "" && key > last || slices.Contains(p.keys, key) {
					continue
				}
				if set := j.existsThroughout(ops, p.op, p.op); set != nil {
					j.violation("scan", "%s does not return %q although %s", p.op, key, set)
				}
			}
		}
		if token != "" {
			continue
		}
		first, end := pages[0].op, pages[len(pages)-1].op
		for key, ops := range keys {
			if set := j.existsThroughout(ops, first, end); set != nil && !found[key] {
				j.violation("scan", "%s to %s do not return %q although %s", first, end, key, set)
			}
		}
	}
}

// mayExist reports whether a key with these operations may have existed at some moment while a page
// was read.
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

// existsThroughout returns a SET because of which a key surely existed from the first page of a
// scan to its last, or nil.
func (j *judge) existsThroughout(ops []*Op, first, last *Op) *Op {
	at := slices.IndexFunc(ops, func(set *Op) bool {
		before := set.Replied <= first.Call || set.Client == first.Client &&
			set.Sequence < first.Sequence && j.inOrder(set, first)
		return set.Verb == Set && set.Applied() && before &&
			!slices.ContainsFunc(ops, func(d *Op) bool {
				return d.Verb == Del && (!d.Known || d.Applied() && d.Replied > set.Call) &&
					d.Call < last.Replied
			})
	})
	if at < 0 {
		return nil
	}
	return ops[at]
}

// inOrder reports whether two requests of a client surely reached the leader in the order of
// sending.
func (j *judge) inOrder(a, b *Op) bool {
	return a.SentOnce() && b.SentOnce() && j.conditions.ArrivedInOrder != nil &&
		j.conditions.ArrivedInOrder(a, b)
}
