package pending

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/internal/policy"
	"holdfast/mqttfront/wire"
)

// modelBuffer is a list of requests, in which everything is found by a search. State and outcome are those of the requests themselves, which the buffer
// sets.
type modelBuffer []*Request

func (n modelBuffer) byID(id fsm.RequestID) *Request {
	i := slices.IndexFunc(n, func(r *Request) bool { return r.Command.ID == id })
	if i < 0 || id.IsZero() {
		return nil
	}
	return n[i]
}

func (n modelBuffer) bytes() (bytes int) {
	for _, r := range n {
		bytes += r.Size
	}
	return bytes
}

// executingWrites counts the executing writes of a client, or of all clients if client is empty.
func (n modelBuffer) executingWrites(client string) (count int) {
	for _, r := range n {
		if r.state == StateExecuting && !r.Read && (client == "" || r.ClientKey() == client) {
			count++
		}
	}
	return count
}

// Random requests of three clients are added, executed, held again, answered, released and removed. At most one request has an id at a time, as at a
// follower.
func TestBufferMatchesModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		p, now := NewBuffer(12, 900), time.Unix(1_700_000_000, 0)
		var model modelBuffer
		index, published := uint64(0), uint64(0)
		remove := func(q *Request) {
			p.EndWrite(q)
			if !p.Remove(q) || p.Remove(q) {
				t.Fatalf("seed %d: Remove did not return true and then false", seed)
			}
			model = slices.DeleteFunc(model, func(m *Request) bool { return m == q })
		}
		for range 300 {
			q := &Request{Request: wire.Request{Size: 50 + r.IntN(100), Read: r.IntN(4) == 0, Command: fsm.Command{
				ID: fsm.RequestID{byte(r.IntN(20))}, Principal: policy.Principal{ClientID: []string{"a", "b", "c"}[r.IntN(3)]},
			}}}
			var one *Request
			if len(model) > 0 {
				one = model[r.IntN(len(model))]
			}
			switch choice := r.IntN(10); {
			case choice < 4:
				full := len(model) > 0 && (len(model) >= 12 || model.bytes()+q.Size > 900)
				if p.Full(q) != full {
					t.Fatalf("seed %d: full %v with %d requests, %d bytes", seed, !full, len(model), model.bytes())
				}
				if !full && model.byID(q.Command.ID) == nil {
					p.Add(q)
					model = append(model, q)
				}
			case one == nil:
			case choice < 5 && one.state.IsHeld():
				if one.state = StateExecuting; !one.Read {
					p.BeginWrite(one)
				}
			case choice < 6 && one.state == StateExecuting:
				one.MarkHeld()
				p.EndWrite(one)
			case choice < 8:
				index++
				p.Learn(one.Command.ID, EndAnswered, index, true, now)
			case choice < 9:
				published = min(index, published+uint64(r.IntN(4)))
				want := slices.DeleteFunc(slices.Clone(model), func(m *Request) bool {
					return !m.state.IsHeld() || m.outcome == 0 || m.outcome > published
				})
				for _, q := range p.Released(published) {
					if !slices.Contains(want, q) {
						t.Fatalf("seed %d: released with outcome %d, published up to %d", seed, q.outcome, published)
					}
					want = slices.DeleteFunc(want, func(m *Request) bool { return m == q })
					remove(q)
				}
				for _, q := range want { // not held when Released passed its outcome: AddOutcome makes it releasable again
					if p.AddOutcome(q); !slices.Contains(p.Released(published), q) {
						t.Fatalf("seed %d: a held request with a published outcome is not released", seed)
					}
					remove(q)
				}
			default:
				remove(one)
			}
			if got := slices.Collect(p.All()); !slices.Equal(got, model) || p.Len() != len(model) || p.bytes != model.bytes() {
				t.Fatalf("seed %d: %d requests, %d bytes; want %d, %d", seed, p.Len(), p.bytes, len(model), model.bytes())
			}
			for _, client := range []string{"a", "b", "c", ""} {
				get := &Request{Request: wire.Request{Read: true}}
				get.Command.Principal.ClientID = client
				if free := p.NoConflictingWrite(get); free != (model.executingWrites(client) == 0) {
					t.Fatalf("seed %d: NoConflictingWrite(%q) = %v", seed, client, free)
				}
			}
			if want := model.byID(q.Command.ID); p.byID[q.Command.ID] != want {
				t.Fatalf("seed %d: byID does not have the model's request", seed)
			}
		}
	}
}

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
