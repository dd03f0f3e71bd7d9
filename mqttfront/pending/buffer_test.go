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

// naivePending is a list of requests; everything else is found by looking through it.
type naivePending []*Request

func (n naivePending) of(id fsm.RequestID) *Request {
	i := slices.IndexFunc(n, func(r *Request) bool { return r.Command.ID == id })
	if i < 0 || id.IsZero() {
		return nil
	}
	return n[i]
}

func (n naivePending) bytes() (bytes int) {
	for _, r := range n {
		bytes += r.Size
	}
	return bytes
}

// writing counts the executing writes of a client, or of all clients if it has no name.
func (n naivePending) writing(client string) (count int) {
	for _, r := range n {
		if r.state == StateExecuting && !r.Read && (client == "" || r.ClientKey() == client) {
			count++
		}
	}
	return count
}

// Requests of three clients come, are proposed, come back, get outcomes, are released and removed, in any order. Each id comes once at a time, as
// at a follower.
func TestPendingAgainstModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		p, now := NewBuffer(12, 900), time.Unix(1_700_000_000, 0)
		var model naivePending
		index, published := uint64(0), uint64(0)
		remove := func(q *Request) {
			p.EndWrite(q)
			if !p.Remove(q) || p.Remove(q) {
				t.Fatalf("seed %d: removed twice, or not at all", seed)
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
				if !full && model.of(q.Command.ID) == nil {
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
				for _, q := range want { // in the hands of the store when its outcome was published
					if p.AddOutcome(q); !slices.Contains(p.Released(published), q) {
						t.Fatalf("seed %d: not released", seed)
					}
					remove(q)
				}
			default:
				remove(one)
			}
			if got := slices.Collect(p.All()); !slices.Equal(got, model) || p.Len() != len(model) || p.bytes != model.bytes() {
				t.Fatalf("seed %d: %d requests, %d bytes; want %d, %d", seed, p.Len(), p.bytes, len(model), model.bytes())
			}
			for client, named := range map[string]bool{"a": true, "b": true, "c": true, "": false} {
				get := &Request{Request: wire.Request{Read: true}}
				if named {
					get.Command.Principal.ClientID = client
				}
				if free := p.NoConflictingWrite(get); free != (model.writing(client) == 0) {
					t.Fatalf("seed %d: no write of %q under way: %v", seed, client, free)
				}
			}
			if held := model.of(q.Command.ID); p.byID[q.Command.ID] != held {
				t.Fatalf("seed %d: another request counts for the id", seed)
			}
		}
	}
}

// Of two copies the first in the order stays, and stands for the other as well, whichever the store gives back first.
func TestKeepFirst(t *testing.T) {
	for name, test := range map[string]struct {
		given   []int // the copies, as they come back to be held; the second was taken in later
		dropped []int // then, 0 for none
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
			for i, number := range test.given {
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
				t.Error("the first one does not stand for both")
			}
		})
	}
}
