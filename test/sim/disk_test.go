package sim

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// DeleteRange accepts a range that is in part or wholly outside the log. Raft may read the first index of an empty log, 0, and delete from there after
// another goroutine has stored entries.
func TestDeleteRangeMayBeginBeforeTheLog(t *testing.T) {
	for _, c := range []struct {
		name                          string
		from, to, wantFirst, wantLast uint64
	}{
		{"all", 0, 9, 0, 0},
		{"the front", 0, 6, 7, 8},
		{"the end", 7, 20, 5, 6},
		{"nothing below the log", 0, 4, 5, 8},
		{"nothing above the log", 9, 12, 5, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := logStore{newMount(newDisk(rand.New(rand.NewPCG(1, 1)), time.Millisecond), func(err error) { t.Error(err) })}
				for index := uint64(5); index <= 8; index++ {
					if err := store.StoreLog(&raft.Log{Index: index, Term: 1}); err != nil {
						t.Fatal(err)
					}
				}
				if err := store.DeleteRange(c.from, c.to); err != nil {
					t.Fatal(err)
				}
				first, _ := store.FirstIndex()
				last, _ := store.LastIndex()
				if first != c.wantFirst || last != c.wantLast {
					t.Errorf("the log goes from %d to %d, want %d to %d", first, last, c.wantFirst, c.wantLast)
				}
				for index := uint64(4); index <= 9; index++ {
					has := store.GetLog(index, new(raft.Log)) == nil
					if want := first != 0 && first <= index && index <= last; has != want {
						t.Errorf("entry %d is there: %v, want %v", index, has, want)
					}
				}
			})
		})
	}
}
