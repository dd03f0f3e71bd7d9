package pending

import (
	"testing"

	"holdfast/fsm"
	"holdfast/mqttfront/wire"
)

// KeepFirst keeps the earlier copy and merges the later one into it, in whichever order the store returns them.
func TestEarlierCopyIsKept(t *testing.T) {
	for name, test := range map[string]struct {
		returned []int // the order in which the store returns copies 1 and 2; copy 2 was added later
		dropped  []int // the copy that KeepFirst returns at each step, 0 for nil
	}{
		"the first comes back first":  {[]int{1, 2}, []int{0, 2}},
		"the second comes back first": {[]int{2, 1}, []int{0, 2}},
		"both again":                  {[]int{1, 2, 1}, []int{0, 2, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewBuffer(100, 1<<20)
			id := fsm.RequestID{1}
			copies := []*Request{{Request: wire.Request{Command: fsm.Command{ID: id, Lifetime: 1}}}, {Request: wire.Request{Command: fsm.Command{ID: id, Lifetime: 2}}}}
			for _, r := range copies {
				p.Add(r)
				r.state = StateExecuting
			}
			for i, number := range test.returned {
				r := copies[number-1]
				r.MarkHeld()
				dropped := p.KeepFirst(r)
				if (dropped == nil) != (test.dropped[i] == 0) || dropped != nil && dropped != copies[test.dropped[i]-1] {
					t.Fatalf("step %d: dropped %v", i, dropped)
				}
				if dropped != nil {
					p.Remove(dropped)
				}
			}
			if p.byID[id] != copies[0] || copies[0].Command.Lifetime != 2 || p.Len() != 1 {
				t.Error("the earlier copy was not kept alone, with the longer lifetime")
			}
		})
	}
}

// If there is no room for a request of a client, its later ones are not taken either: they would be executed before it.
func TestMergeTakesNothingBehindARequestWithoutRoom(t *testing.T) {
	p := NewBuffer(100, 1000)
	request := func(id byte, client string, size int) *Request {
		r := &Request{Request: wire.Request{Command: fsm.Command{ID: fsm.RequestID{id}}}}
		r.Command.Principal.ClientID, r.Size = client, size
		return r
	}
	p.Add(request(1, "other", 500))
	there := []*Request{request(2, "c", 800), request(3, "c", 10), request(4, "d", 10)}
	added, dropped := p.Merge(map[string][]*Request{"n2": there}, (*Request).IsOpen)
	if len(added) != 1 || added[0].Command.ID != (fsm.RequestID{4}) || dropped != 2 {
		t.Errorf("%d added, %d dropped", len(added), dropped)
	}
}
