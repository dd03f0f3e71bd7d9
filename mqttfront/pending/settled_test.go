package pending

import (
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/wire"
)

// † A request of another node is settled if this node's own session cannot deliver it any more. That is so if the other node received it before the
// barrier. It is also so if it precedes an open request of its client that both nodes received, and this node may have lost it. A request that is
// not open on both nodes does not count for that: one node may hold the original, and the other a copy that the client sent later.
func TestRequestIsSettledBeforeABarrier(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	request := func(name byte, at time.Duration, state State) *Request {
		r := &Request{state: state, Arrived: start.Add(at), EstimatedSendTime: start.Add(at), Request: wire.Request{ResponseTopic: "clients/c/r", Command: fsm.Command{ID: fsm.RequestID{name}}}}
		if state == StateOutcomeKnown {
			r.outcomeIndex = 7
		}
		return r
	}
	const second = time.Second
	for name, test := range map[string]struct {
		here, there State // of the later request, which both nodes have
		barrier     time.Duration
		begun       time.Duration // this node may have lost what the broker received before
		elsewhere   bool          // the copy here came from another node
		later       time.Duration // how much later the other copy was sent
		want        bool
	}{
		"both copies are open, and this node began just before": {StatePending, StatePending, 0, -second, false, 0, true},
		"this node's session is old":                            {StatePending, StatePending, 0, -time.Minute, false, 0, false},
		"the request is done here":                              {StateOutcomeKnown, StatePending, 0, -second, false, 0, false},
		"the request is a copy here":                            {StateDuplicate, StatePending, 0, -second, false, 0, false},
		"the request is a copy there":                           {StatePending, StateDuplicate, 0, -second, false, 0, false},
		"this node has the request from another":                {StatePending, StatePending, 0, -second, true, 0, false},
		"the other copy was sent later":                         {StatePending, StatePending, 0, -second, false, 2 * second, false},
		"a barrier has passed":                                  {StateDuplicate, StateDuplicate, second, -time.Minute, false, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewBuffer(100, 1<<20)
			own := request('b', 20*time.Millisecond, test.here)
			own.FromPeer = test.elsewhere
			p.Add(own)
			missing, both := request('a', 10*time.Millisecond, StatePending), request('b', 20*time.Millisecond+test.later, test.there)
			kept := p.Settled([]*Request{missing, both}, start.Add(test.barrier), start.Add(test.begun), (*Request).IsOpen, func(*Request) bool { return false })
			if got := len(kept) > 0 && kept[0] == missing; got != test.want {
				t.Errorf("settled %v, want %v", got, test.want)
			}
		})
	}
}

// Settled also returns a request that has an outcome and is not settled otherwise: it needs no order any more.
func TestDoneIsReturnedUnsettled(t *testing.T) {
	p := NewBuffer(100, 1<<20)
	start := time.Unix(1_700_000_000, 0)
	open := &Request{Arrived: start.Add(time.Second)}
	done := &Request{Arrived: start.Add(2 * time.Second)}
	got := p.Settled([]*Request{open, done}, start, start, (*Request).IsOpen, func(r *Request) bool { return r == done })
	if len(got) != 1 || got[0] != done {
		t.Errorf("%d requests", len(got))
	}
}
