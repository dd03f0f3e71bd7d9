package pending

import (
	"slices"
	"testing"
	"time"

	"holdfast/fsm"
)

// copied is one node's copy of a request. Its times count from the beginning of the test.
type copied struct {
	number  int
	at      time.Duration // when it arrived at the node; also its EstimatedSendTime
	current time.Duration // its BrokerReceivedAfter: the broker received it later than this
}

func listOf(began time.Time, copies ...copied) (list []*Request) {
	for _, c := range copies {
		r := &Request{Arrived: began.Add(c.at), EstimatedSendTime: began.Add(c.at), BrokerReceivedAfter: began.Add(c.current)}
		r.Command.ID = fsm.RequestID{1, byte(c.number)}
		list = append(list, r)
	}
	return list
}

func merged(lists ...[]*Request) (numbers []int) {
	for _, r := range mergeOrder(lists) {
		numbers = append(numbers, int(r.Command.ID[1]))
	}
	return numbers
}

// The order within a list counts even if the node's session lagged: its requests arrived late, but in the order in which the client sent them. Another
// node's list with gaps does not change that order.
func TestOrderOfASessionThatLagsIsKept(t *testing.T) {
	const pause, lag = 5 * time.Millisecond, 1700 * time.Millisecond
	began := time.Now()
	var own, other []copied
	for number := 67; number <= 85; number++ {
		sent := time.Duration(number-67) * pause
		late := sent
		if number >= 69 {
			late += lag
		}
		own = append(own, copied{number, late, 0})
		if number <= 68 || number == 82 || number == 83 {
			other = append(other, copied{number, sent, 0})
		}
	}
	for name, order := range map[string][]int{
		"own list first":   merged(listOf(began, own...), listOf(began, other...)),
		"other list first": merged(listOf(began, other...), listOf(began, own...)),
	} {
		t.Run(name, func(t *testing.T) {
			if !slices.IsSorted(order) || len(order) != len(own) {
				t.Errorf("%s: the order is %v", name, order)
			}
		})
	}
}

// The position of a copy does not count if the broker received it after some node had received the original: the client sent it again.
func TestCopyThatWasSentAgainShowsNoOrder(t *testing.T) {
	began := time.Now()
	own := listOf(began, copied{1, 0, 0}, copied{3, time.Second, 0}, copied{2, 3 * time.Second, 2 * time.Second}, copied{4, 4 * time.Second, 3 * time.Second})
	other := listOf(began, copied{1, 0, 0}, copied{2, 100 * time.Millisecond, 0}, copied{4, 4 * time.Second, 3 * time.Second})
	if order := merged(own, other); !slices.Equal(order, []int{1, 2, 3, 4}) {
		t.Errorf("the order is %v", order)
	}
}

// The BrokerReceivedAfter of a resumed session may be long ago. It then does not prove that a copy was sent again. If lists contradict each other, the copy is
// ignored that looks latest in comparison with the rest of its list.
func TestResentCopyIsSuspectedBeforeAnOriginal(t *testing.T) {
	const a, b, c, d, long = 1, 2, 3, 4, -time.Hour
	began := time.Now()
	restarted := listOf(began, copied{c, 3100 * time.Millisecond, long}, copied{a, 3100 * time.Millisecond, long}, copied{d, 3110 * time.Millisecond, long})
	other := listOf(began, copied{a, 0, 0}, copied{d, 10 * time.Millisecond, 0}, copied{b, 200 * time.Millisecond, 0}, copied{c, 2500 * time.Millisecond, 0})
	if order := merged(restarted, other); !slices.Equal(order, []int{a, d, b, c}) {
		t.Errorf("the order is %v", order)
	}
}

// A copy whose BrokerReceivedAfter proves that it was sent again is ignored, although the copies of another list look later, because that node's session lagged.
func TestResentCopyShowsNoOrderBesideASessionThatLags(t *testing.T) {
	const pause, lag = 5 * time.Millisecond, 1700 * time.Millisecond
	began := time.Now()
	var own []copied
	for number := 67; number <= 85; number++ {
		late := time.Duration(number-67) * pause
		if number >= 69 {
			late += lag
		}
		own = append(own, copied{number, late, 0})
	}
	other := []copied{{67, 0, 0}, {68, pause, 0}, {82, 15 * pause, 0}, {83, 16 * pause, 0}, {70, 3 * time.Second, 2 * time.Second}}
	if order := merged(listOf(began, own...), listOf(began, other...)); !slices.IsSorted(order) || len(order) != len(own) {
		t.Errorf("the order is %v", order)
	}
}

// Merge reorders the requests of this node's buffer if another node's list contradicts their order, even if it adds none, and whatever was merged before.
func TestMergeOrdersWhatItHolds(t *testing.T) {
	const a, c, d = 1, 3, 4
	began := time.Now()
	originals := func() []*Request {
		return listOf(began, copied{a, 0, 0}, copied{d, 10 * time.Millisecond, 0}, copied{c, 2500 * time.Millisecond, 0})
	}
	later := func() []*Request { // contradicts this node's list, but does not change the order, because its copies are later
		return listOf(began, copied{a, 8 * time.Second, -time.Hour}, copied{c, 9 * time.Second, -time.Hour}, copied{d, 9 * time.Second, -time.Hour})
	}
	for name, before := range map[string]func(here *Buffer){
		"at once":              func(*Buffer) {},
		"after another node's": func(here *Buffer) { here.Merge(map[string][]*Request{"n3": later()}, (*Request).IsOpen) },
		"after one of this node's": func(here *Buffer) {
			here.Merge(map[string][]*Request{"n2": later()}, (*Request).IsOpen)
			here.BeginMerging()
		},
	} {
		t.Run(name, func(t *testing.T) {
			here := NewBuffer(100, 1<<20)
			for _, r := range listOf(began, copied{c, 3100 * time.Millisecond, -time.Hour}, copied{a, 3100 * time.Millisecond, -time.Hour}, copied{d, 3110 * time.Millisecond, -time.Hour}) {
				here.Add(r)
			}
			before(&here)
			here.Merge(map[string][]*Request{"n2": originals()}, (*Request).IsOpen)
			var order []int
			for r := range here.All() {
				order = append(order, int(r.Command.ID[1]))
			}
			if !slices.Equal(order, []int{a, d, c}) {
				t.Errorf("the order is %v", order)
			}
		})
	}
}
