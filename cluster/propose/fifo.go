package propose

// fifo is a queue that reuses its slice. It is not safe for concurrent use.
type fifo[T any] struct {
	items []T
	head  int // index in items of the first queued item
}

// keptItems bounds the capacity of the slice that an empty queue keeps.
const keptItems = 4096

func (f *fifo[T]) len() int { return len(f.items) - f.head }

// at returns a pointer to item i, where item 0 is the first queued one. The pointer is valid until
// the next push or drop.
func (f *fifo[T]) at(i int) *T { return &f.items[f.head+i] }

func (f *fifo[T]) push(item T) {
	if len(f.items) == cap(f.items) && f.head > len(f.items)/2 {
		// moves fewer items than were dropped: O(1) amortized
		left := copy(f.items, f.items[f.head:])
		clear(f.items[left:])
		f.items, f.head = f.items[:left], 0
	}
	f.items = append(f.items, item)
}

// drop removes the first count items.
func (f *fifo[T]) drop(count int) {
	clear(f.items[f.head : f.head+count])
	if f.head += count; f.head < len(f.items) {
		return
	}
	if f.items, f.head = f.items[:0], 0; cap(f.items) > keptItems {
		f.items = nil
	}
}
