package sim

import (
	"log/slog"
	"testing"
	"time"

	"holdfast/test/history"

	"github.com/hashicorp/raft"
)

// Two requests that reached all nodes are executed in their order, unless a majority of the nodes ended before they were: what these held is lost, and
// what the broker still has for another node comes later.
func TestOrderIsCheckedWhileFewNodesEnd(t *testing.T) {
	for name, test := range map[string]struct {
		ended  []string // within the time of the requests
		before []string
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
				return &history.Op{Call: 2 * time.Second, Replied: 4 * time.Second, Copies: []history.Sending{{Receivers: []string{"h-n1-in", "h-n2-in", "h-n3-in"}}}}
			}
			if got := s.sameWay(op(), op()); got != test.want {
				t.Errorf("checked: %t", got)
			}
		})
	}
}

// One member may lose its disk if each member knows that all vote.
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

// A request that an earlier leader executed counts as unanswered if the service has answered others for a time without a pause.
func TestUnansweredNeedsTimeInWhichOthersAreAnswered(t *testing.T) {
	const ms = time.Millisecond
	stretch := func(from, to time.Duration) (replies []time.Duration) {
		for at := from; at <= to; at += 100 * ms {
			replies = append(replies, at)
		}
		return replies
	}
	for name, test := range map[string]struct {
		replies []time.Duration
		want    bool
	}{
		"no replies":              {nil, false},
		"all the time":            {stretch(0, 10*time.Second), true},
		"just long enough":        {stretch(2000*ms, 4000*ms), true},
		"two times, too short":    {append(stretch(1000*ms, 2500*ms), stretch(3500*ms, 5000*ms)...), false},
		"mostly before the range": {stretch(0, 2500*ms), false},
		"mostly after the range":  {stretch(4500*ms, 9*time.Second), false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeliveries()
			for _, at := range test.replies {
				d.publish("clients/c/services/statestore/_any_/command/invoke/response", []byte{byte(at)}, at)
			}
			if got := d.served(2*time.Second, time.Second, 6*time.Second); got != test.want {
				t.Errorf("served: %t", got)
			}
		})
	}
}
