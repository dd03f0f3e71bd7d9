package history

import (
	"strings"
	"testing"

	"holdfast/resp"
)

// scanPage returns one page of the first scan of a client. Spaces separate the keys.
func scanPage(sequence int, call, replied float64, keys string, after, next string) *Op {
	return with(op("s", Scan, "scan/*", "", call, replied, "", 0), func(o *Op) {
		o.Sequence, o.ScanNumber, o.After = sequence, 1, after
		o.Reply = resp.Reply{Kind: resp.ReplyPage, Next: []byte(next)}
		for _, key := range strings.Fields(keys) {
			o.Reply.Keys = append(o.Reply.Keys, []byte(key))
		}
	})
}

// A scan must have each key that was there throughout, at most once and in order, and no key that
// cannot have been there.
func TestScansThatMissOrRepeatAreFound(t *testing.T) {
	set := func(key string, call, replied float64) *Op {
		return op("a", Set, key, "v"+key, call, replied, "OK", int64(100*replied)+
			int64(key[len(key)-1]))
	}
	del := func(key string, call, replied float64) *Op {
		return op("a", Del, key, "", call, replied,
			"1", 1)
	}
	lost := func(o *Op) *Op { return with(o, func(o *Op) { o.Known = false }) }
	own := with(op("s", Set, "scan/own", "v", 2, 9, "OK", 500), func(o *Op) { o.Sequence = 1 })
	for name, test := range map[string]struct {
		ops   []*Op
		wrong bool
	}{
		"all keys": {[]*Op{
			set("scan/a", 0, 1), set("scan/b", 0, 1),
			scanPage(1, 2, 3, "scan/a", "", "t"), scanPage(2, 4, 5, "scan/b", "t", ""),
		}, false},
		"a key is missing": {[]*Op{
			set("scan/a", 0, 1), set("scan/b", 0, 1),
			scanPage(1, 2, 3, "scan/a", "", "t"), scanPage(2, 4, 5, "", "t", ""),
		}, true},
		"a key comes twice": {[]*Op{
			set("scan/a", 0, 1),
			scanPage(1, 2, 3, "scan/a", "", "t"), scanPage(2, 4, 5, "scan/a", "t", ""),
		}, true},
		"not in order": {[]*Op{
			set("scan/a", 0, 1), set("scan/b", 0, 1),
			scanPage(1, 2, 3, "scan/b scan/a", "", ""),
		}, true},
		"a key that was never set": {[]*Op{scanPage(1, 2, 3, "scan/a", "", "")}, true},
		"a key that was deleted before": {[]*Op{
			set("scan/a", 0, 1), del("scan/a", 1.2, 1.5),
			scanPage(1, 2, 3, "scan/a", "", ""),
		}, true},
		"a key that is deleted meanwhile": {[]*Op{
			set("scan/a", 0, 1), del("scan/a", 2.2, 2.5),
			scanPage(1, 2, 3, "", "", ""),
		}, false},
		"deleted after the page": {[]*Op{
			set("scan/a", 0, 1),
			scanPage(1, 2, 3, "scan/a", "", "t"), del("scan/a", 3.2, 3.5),
			scanPage(2, 4, 5, "", "t", ""),
		}, false},
		"a deletion that may have been": {[]*Op{
			set("scan/a", 0, 1), lost(del("scan/a", 1.2, 0)),
			scanPage(1, 2, 3, "", "", ""),
		}, false},
		"a SET that may have been": {[]*Op{
			lost(set("scan/a", 0, 1)),
			scanPage(1, 2, 3, "scan/a", "", ""),
		}, false},
		"a SET after the page": {[]*Op{
			set("scan/a", 4, 5),
			scanPage(1, 2, 3, "scan/a", "", ""),
		}, true},
		"a scan that was not finished": {[]*Op{
			set("scan/a", 0, 1),
			scanPage(1, 2, 3, "", "", "t"),
		}, false},
		"twice in an unfinished scan": {[]*Op{
			set("scan/a", 0, 1),
			scanPage(1, 2, 3, "scan/a", "", "t"), scanPage(2, 4, 5, "scan/a", "t", "u"),
		}, true},
		"missing in an unfinished scan": {[]*Op{
			set("scan/a", 0, 1), set("scan/b", 0, 1),
			scanPage(1, 2, 3, "scan/b", "", "t"),
		}, true},
		"set before a later page": {[]*Op{
			set("scan/a", 0, 1),
			scanPage(1, 2, 3, "scan/a", "", "t"), set("scan/b", 3.1, 3.2),
			scanPage(2, 4, 5, "", "t", ""),
		}, true},
		"set before a later page, behind": {[]*Op{
			set("scan/b", 0, 1),
			scanPage(1, 2, 3, "scan/b", "", "t"), set("scan/a", 3.1, 3.2),
			scanPage(2, 4, 5, "", "t", ""),
		}, false},
		"another token": {[]*Op{
			scanPage(1, 2, 3, "", "", "t"),
			scanPage(2, 4, 5, "", "u", ""),
		}, true},
		"an own write before is missing": {[]*Op{own, scanPage(2, 3, 4, "", "", "")}, true},
		"an own write before is there": {
			[]*Op{own, scanPage(2, 3, 4, "scan/own", "", "")},
			false,
		},
		"an own write after it is missing": {[]*Op{own, scanPage(0, 3, 4, "", "", "")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var found []string
			for _, v := range Check(history(test.ops), conditions()).Violations {
				if v.Check != "scan" {
					t.Errorf("%s: %s", v.Check, v.Text)
					continue
				}
				found = append(found, v.Text)
			}
			if (len(found) > 0) != test.wrong {
				t.Errorf("found %q", found)
			}
		})
	}
}
