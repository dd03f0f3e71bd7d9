package outbox

import "sort"

// Watermark is the delivery watermark of a leadership: the log index up to which no notification is
// outstanding. Replies do not count: a request whose reply the broker does not have is not
// acknowledged, so it comes again. The zero value is ready for use. It is not safe for concurrent
// use.
//
// The caller adds no index below the watermark, and adds all notifications of an entry before the
// first Done of that entry. So the watermark never passes one that is not added yet. Each Done must
// match an Add: Done with an index that is not outstanding panics or counts for a later entry.
type Watermark struct {
	entries []markedEntry // by ascending index; the first has outstanding notifications
	index   uint64
}

type markedEntry struct {
	index uint64
	left  int // number of its outstanding notifications
}

// Index returns the watermark, 0 until a notification was published.
func (w *Watermark) Index() uint64 { return w.index }

// Add records an outstanding notification of the log entry at index. If an index is added late,
// after a higher one, and is not there yet, it counts for the next higher index that is there. Done
// finds the same place.
func (w *Watermark) Add(index uint64) {
	if n := len(w.entries); n > 0 && w.entries[n-1].index >= index {
		at := sort.Search(n, func(i int) bool { return w.entries[i].index >= index })
		w.entries[at].left++
		return
	}
	w.entries = append(w.entries, markedEntry{index: index, left: 1})
}

// Done records that a notification is not outstanding any more, and reports whether the watermark
// has moved. It ignores index 0, which is that of an output that was not added.
func (w *Watermark) Done(index uint64) bool {
	if index == 0 {
		return false
	}
	at := sort.Search(len(w.entries), func(i int) bool { return w.entries[i].index >= index })
	w.entries[at].left--
	moved := false
	for len(w.entries) > 0 && w.entries[0].left == 0 {
		w.index, moved = w.entries[0].index, true
		w.entries = w.entries[1:]
	}
	return moved
}
