package ordered

import (
	"slices"
	"testing"
)

func TestSetKeepsTheOrderOfAdding(t *testing.T) {
	var s Set[*int]
	var want []*int
	for range 100 {
		element := new(int)
		s.Add(element)
		want = append(want, element)
	}
	s.Add(want[50])
	s.Delete(want[10])
	s.Delete(new(int))
	want = slices.Delete(want, 10, 11)
	if got := slices.Collect(s.All()); !slices.Equal(got, want) || len(got) != 99 {
		t.Errorf("%d elements, in another order than they were added", len(got))
	}
	for element := range s.All() {
		s.Delete(element)
	}
	if left := slices.Collect(s.All()); len(left) != 0 {
		t.Errorf("%d elements are left", len(left))
	}
}
