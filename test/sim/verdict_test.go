package sim

import (
	"log/slog"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/test/history"

	"github.com/hashicorp/raft"
)

// The order of two requests that reached all nodes is checked, unless a majority of the nodes ended while they were under way. Such nodes lose the requests
// that they held, and a request may come later from the broker's queue of another node.
func TestOrderIsCheckedWhileFewNodesEnd(t *testing.T) {
	for name, test := range map[string]struct {
		ended  []string // nodes that ended while the requests were under way
		before []string // nodes that ended earlier
		want   bool
	}{
		"none":                    {nil, nil, true},
		"one":                     {[]string{"n1"}, nil, true},
		"one, twice":              {[]string{"n1", "n1"}, nil, true},
		"two of three":            {[]string{"n1", "n2"}, nil, false},
		"two, one of them before": {[]string{"n1"}, []string{"n2"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &simulation{hosts: make([]*host, 3), broker: &broker{}, trace: newTrace(slog.LevelInfo), tunables: &tunables{}, deliveries: newDeliveries()}
			for _, host := range test.before {
				s.deliveries.end(host, time.Second)
			}
			for _, host := range test.ended {
				s.deliveries.end(host, 3*time.Second)
			}
			op := func() *history.Op {
				return &history.Op{Call: 2 * time.Second, Replied: 4 * time.Second, Sendings: []history.Sending{{Receivers: []string{"h-n1-in", "h-n2-in", "h-n3-in"}}}}
			}
			if got := s.arrivedInOrder(op(), op()); got != test.want {
				t.Errorf("checked: %t", got)
			}
		})
	}
}

// A disk may be damaged only if each member knows that all members vote. haveVotes says whether one of them does.
func TestDamageNeedsVotersThatAllKnow(t *testing.T) {
	ids := []raft.ServerID{"n1", "n2"}
	for name, test := range map[string]struct {
		servers []raft.Server
		want    bool
	}{
		"all vote":           {[]raft.Server{{ID: "n1"}, {ID: "n2"}}, true},
		"one does not vote":  {[]raft.Server{{ID: "n1"}, {ID: "n2", Suffrage: raft.Nonvoter}}, false},
		"one is missing":     {[]raft.Server{{ID: "n1"}}, false},
		"one is another now": {[]raft.Server{{ID: "n1"}, {ID: "n3"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := haveVotes(test.servers, ids); got != test.want {
				t.Errorf("%t", got)
			}
		})
	}
}

// A request counts as unanswered only if its publishing connection answered three requests that were sent later. Replies leave a connection in order, so
// its reply is then not just late.
func TestUnansweredNeedsOthersThatWereAnswered(t *testing.T) {
	const publishers = 2
	same, other := "c", "d"
	for shard(same, publishers) == shard(other, publishers) {
		other += "d"
	}
	for name, test := range map[string]struct {
		client        string
		call, replied time.Duration
		want          bool
	}{
		"sent later, and answered":         {same, 2 * time.Second, 3 * time.Second, true},
		"sent before":                      {same, time.Second / 2, 3 * time.Second, false},
		"answered too late":                {same, 2 * time.Second, 7 * time.Second, false},
		"by another publishing connection": {other, 2 * time.Second, 3 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeliveries()
			var ops []*history.Op
			for i := range 3 {
				o := &history.Op{Number: i + 1, Client: test.client, Call: test.call}
				ops = append(ops, o)
				d.publish("clients/c/services/statestore/_any_/command/invoke/response", []byte(o.Correlation()), test.replied)
			}
			if got := d.served(ops, same, publishers, time.Second, 6*time.Second); got != test.want {
				t.Errorf("served: %t", got)
			}
			if d.served(ops[:2], same, publishers, time.Second, 6*time.Second) {
				t.Error("two are enough")
			}
		})
	}
}

// A request may stay unanswered if it was refused more than ProposalAge after it was sent. A request that took effect must be answered, and so must one
// that got a repeated refusal.
func TestRefusalThatWaitedMayBeUnanswered(t *testing.T) {
	const sent, proposalAge = time.Second, time.Second / 2
	refusal, repeated := fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded}, fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded, Repeat: true}
	write := fsm.Command{Kind: fsm.KindSet, ID: fsm.RequestID{1}}
	for name, test := range map[string]struct {
		command fsm.Command
		result  fsm.Result
		applied time.Duration
		want    bool
	}{
		"a refusal that waited": {write.Refusal(false), refusal, 2 * time.Second, true},
		"a refusal in time":     {write.Refusal(false), refusal, sent + proposalAge, false},
		"a repeated refusal":    {write.Refusal(false), repeated, 2 * time.Second, false},
		"an effect":             {write, fsm.Result{Code: fsm.CodeOK}, 2 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeliveries()
			d.apply(&fsm.EntryOutcome{Index: 7, Commands: []fsm.Command{test.command}, Results: []fsm.Result{test.result}}, test.applied)
			if got := d.lastEntry(write.ID, time.Minute); got.index != 7 || got.mayBeUnanswered(sent, proposalAge) != test.want {
				t.Errorf("%+v", got)
			}
		})
	}
}
