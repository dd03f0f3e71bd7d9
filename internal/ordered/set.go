// Package ordered holds a set that is ranged over in the order in which its elements were added. A
// Go map whose keys are pointers is ranged over in an order that depends on memory addresses, which
// no simulation can repeat.
package ordered

import (
	"cmp"
	"iter"
	"slices"
)

// Set is a set. The zero value is empty. It is not safe for concurrent use.
type Set[T comparable] struct {
	serials map[T]uint64 // the number of each element, in the order of Add
	last    uint64       // the number of the element that was added last
}

// Add adds an element. An element that is in the set already keeps its place.
func (s *Set[T]) Add(element T) {
	if _, ok := s.serials[element]; ok {
		return
	}
	if s.serials == nil {
		s.serials = make(map[T]uint64)
	}
	s.last++
	s.serials[element] = s.last
}

// Delete removes an element, if it is there.
func (s *Set[T]) Delete(element T) { delete(s.serials, element) }

// All returns the elements that are there at the call, in the order in which they were added. The
// set may change meanwhile.
func (s *Set[T]) All() iter.Seq[T] {
	elements := make([]T, 0, len(s.serials))
	for element := range s.serials {
		elements = append(elements, element)
	}
	slices.SortFunc(elements, func(a, b T) int { return cmp.Compare(s.serials[a], s.serials[b]) })
	return slices.Values(elements)
}
