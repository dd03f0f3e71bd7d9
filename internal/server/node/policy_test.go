package node

import "testing"

// contentWatch reports a new content once, when two reads in a row have found it. So it reports no
// half-written file. Two reads with a failed read between them are not in a row.
func TestContentCountsWhenItIsSettled(t *testing.T) {
	const unreadable = "-"
	var w contentWatch
	for i, read := range []struct {
		content string
		changed bool
	}{
		{"a", false},
		{"a", true},
		{"a", false},
		{"a", false},
		{"half", false},
		{"whole", false},
		{"whole", true},
		{"whole", false},
		{"b", false},
		{unreadable, false},
		{"b", false},
		{"b", true},
		{"half", false},
		{"b", false},
		{"b", false},
		{"", false},
		{"", true},
		{"", false},
	} {
		if got := w.changed([]byte(read.content), read.content != unreadable); got != read.changed {
			t.Errorf("read %d of %q: changed is %t", i, read.content, got)
		}
	}
}
