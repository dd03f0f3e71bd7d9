package propose

import (
	"testing"

	"pgregory.net/rapid"
)

// Items are dropped in the order in which they were pushed, however much of its slice the queue
// keeps.
func TestQueueKeepsItsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var queue fifo[int]
		var model []int
		for n := range rapid.IntRange(1, 400).Draw(t, "steps") {
			if count := rapid.IntRange(0, 6).Draw(t, "drop"); count > 3 && count <= len(model) {
				queue.drop(count)
				model = model[count:]
			} else {
				queue.push(n)
				model = append(model, n)
			}
			if queue.len() != len(model) {
				t.Fatalf("%d items, want %d", queue.len(), len(model))
			}
			for i, want := range model {
				if got := *queue.at(i); got != want {
					t.Fatalf("item %d is %d, want %d", i, got, want)
				}
			}
		}
	})
}
