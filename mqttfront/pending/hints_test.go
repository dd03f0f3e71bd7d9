package pending

import (
	"math/rand/v2"
	"testing"
	"time"

	"holdfast/fsm"
)

// naiveHint is the model's hint of one request. Its fields are those of hint.
type naiveHint struct {
	known    bool // there is a hint
	end      End
	index    uint64
	arrivals int
	when     time.Time
}

func (n *naiveHint) forget(now time.Time) {
	memory := map[End]time.Duration{EndAnswered: AnsweredMemory, EndNoReply: unansweredMemory, EndExpired: unansweredMemory}[n.end]
	if n.known && now.Sub(n.when) > memory {
		*n = naiveHint{}
	}
	if now.Sub(n.when) > AnsweredMemory {
		n.index, n.arrivals = 0, 0
	}
}

// Hints (how a request ended last, and how many of its copies are still expected) agree with a simple model over random operations.
func TestHintsAgreeWithAModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		now := time.Unix(1_700_000_000, 0)
		var h Hints
		model := make([]naiveHint, 8)
		for step := range 400 {
			number := r.IntN(len(model))
			id, n := fsm.RequestID{byte(1 + number)}, &model[number]
			for i := range model {
				model[i].forget(now)
			}
			switch choice := r.IntN(20); {
			case choice < 8:
				end, index, early := End(r.IntN(3)), uint64(r.IntN(50)), r.IntN(3) > 0
				h.RecordEnd(id, end, index, early, now)
				n.known, n.end, n.index, n.when = true, end, max(n.index, index), now
				if early {
					n.arrivals++
				}
			case choice < 14:
				index, early := h.Consume(id, now)
				if early != (n.arrivals > 0) || early && index != n.index {
					t.Fatalf("seed %d, step %d: %d, %v, want %+v", seed, step, index, early, *n)
				}
				if early {
					n.arrivals--
				}
				if early && n.arrivals == 0 && n.end == EndAnswered {
					*n = naiveHint{}
				}
			case choice < 15:
				h.removeUnanswered(id)
				if n.end != EndAnswered {
					*n = naiveHint{}
				}
			case choice < 16 && r.IntN(4) == 0:
				h.ForgetArrivals()
				for i := range model {
					if model[i].arrivals = 0; model[i].end == EndAnswered {
						model[i] = naiveHint{}
					}
				}
			default:
				now = now.Add(time.Duration(r.IntN(3_000)) * time.Millisecond)
				if r.IntN(30) == 0 {
					now = now.Add(unansweredMemory / 2)
				}
				h.Forget(now)
				n.forget(now)
			}
			for _, end := range []End{EndNoReply, EndExpired} {
				var want time.Time
				if n.known && n.end == end {
					want = n.when
				}
				if got := h.EndedAt(id, end); !got.Equal(want) {
					t.Fatalf("seed %d, step %d: ended at %v, want %v", seed, step, got, want)
				}
			}
		}
	}
}

func TestHintsAreBounded(t *testing.T) {
	var h Hints
	now := time.Unix(1_700_000_000, 0)
	for i := range 3 * maxHints {
		id := fsm.RequestID{byte(i), byte(i >> 8), byte(i >> 16), 1}
		h.RecordEnd(id, EndAnswered, 1, true, now)
		id[3] = 2
		h.RecordEnd(id, EndNoReply, 1, false, now)
	}
	if len(h.byID) != 2*maxHints || len(h.order[0]) != maxHints || len(h.order[1]) != maxHints {
		t.Errorf("%d hints, %d and %d notes", len(h.byID), len(h.order[0]), len(h.order[1]))
	}
	h.Forget(now.Add(AnsweredMemory + 1))
	if len(h.byID) != maxHints {
		t.Errorf("%d hints after the first are too old", len(h.byID))
	}
	h.Forget(now.Add(unansweredMemory + 1))
	if len(h.byID) != 0 || len(h.order[1]) != 0 {
		t.Errorf("%d hints after all are too old", len(h.byID))
	}
}
