package mqttfront

import "sort"

// tracker knows up to which log index everything that goes out is published. Outputs are added in the order of the log.
type tracker struct {
	entries []trackedEntry // ascending; the first has something left
	mark    uint64
}

type trackedEntry struct {
	index uint64
	left  int
}

// add notes an output of the entry at the index. 0 is for what is not in the log.
func (t *tracker) add(index uint64) {
	if index == 0 {
		return
	}
	if n := len(t.entries); n > 0 && t.entries[n-1].index >= index {
		at := sort.Search(n, func(i int) bool { return t.entries[i].index >= index })
		t.entries[at].left++
		return
	}
	t.entries = append(t.entries, trackedEntry{index: index, left: 1})
}

// done notes that an output is published, and reports whether the mark has moved.
func (t *tracker) done(index uint64) bool {
	if index == 0 {
		return false
	}
	at := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].index >= index })
	t.entries[at].left--
	moved := false
	for len(t.entries) > 0 && t.entries[0].left == 0 {
		t.mark, moved = t.entries[0].index, true
		t.entries = t.entries[1:]
	}
	return moved
}
