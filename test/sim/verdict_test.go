package sim

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/test/history"
	"holdfast/test/workload"

	"github.com/hashicorp/raft"
)

// The order of two requests is checked if the cluster's session received both, and the broker kept
// it. That nodes end does not matter.
func TestOrderIsCheckedWhileTheBrokerKeepsTheSession(t *testing.T) {
	for name, test := range map[string]struct {
		receivers []string      // of the second request
		lost      time.Duration // when the broker lost the session; 0: never
		want      bool
	}{
		"both received":             {[]string{requestSession}, 0, true},
		"one was not received":      {nil, 0, false},
		"lost while both under way": {[]string{requestSession}, 3 * time.Second, false},
		"lost before":               {[]string{requestSession}, time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &simulation{broker: &broker{}, trace: newTrace(slog.LevelInfo)}
			if test.lost > 0 {
				s.broker.losses = []sessionLoss{{requestSession, s.trace.start.Add(test.lost)}}
			}
			op := func(receivers []string) *history.Op {
				return &history.Op{
					Call: 2 * time.Second, Replied: 4 * time.Second,
					Sendings: []history.Sending{{Receivers: receivers}},
				}
			}
			if got := s.arrivedInOrder(op([]string{requestSession}),
				op(test.receivers)); got != test.want {
				t.Errorf("checked: %t", got)
			}
		})
	}
}

// † A broker that is away for long after it forgot its sessions lost their notifications when it
// went, not when its clients noticed.
func TestGapBeginsWhenTheBrokerForgets(t *testing.T) {
	s := &simulation{
		broker: &broker{}, trace: newTrace(slog.LevelInfo),
		load: &workload.Load{History: history.New()},
	}
	s.broker.losses = []sessionLoss{{"watcher-0", s.trace.start.Add(3 * time.Second)}}
	s.addGaps()
	want := []history.Gap{{Client: "watcher-0", At: 3 * time.Second}}
	if !slices.Equal(s.load.History.Gaps, want) {
		t.Errorf("%v, want %v", s.load.History.Gaps, want)
	}
}

// A disk may be damaged only if each member knows that all members vote. haveVotes says whether one
// of them does.
func TestDamageNeedsVotersThatAllKnow(t *testing.T) {
	ids := []raft.ServerID{"n1", "n2"}
	for name, test := range map[string]struct {
		servers []raft.Server
		want    bool
	}{
		"all vote": {[]raft.Server{{ID: "n1"}, {ID: "n2"}}, true},
		"one does not vote": {
			[]raft.Server{{ID: "n1"}, {ID: "n2", Suffrage: raft.Nonvoter}},
			false,
		},
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

// A request counts as unanswered only if its publishing connection answered three SETs that were
// sent later. Replies leave a connection in order, so its reply is then not just late. A GET is
// read beside the log, and shows nothing.
func TestUnansweredNeedsOthersThatWereAnswered(t *testing.T) {
	const publishers = 2
	same, other, stamped := "c", "d", "register-"
	for shard(same, publishers) == shard(other, publishers) {
		other += "d"
	}
	for shard(same, publishers) != shard(stamped, publishers) || share(same, stamped, publishers) {
		stamped += "e" // by the id that the broker stamps it has another connection
	}
	set, get := history.Set, history.Get
	for name, test := range map[string]struct {
		verb          history.Verb
		client        string
		call, replied time.Duration
		want          bool
	}{
		"sent later, and answered": {set, same, 2 * time.Second, 3 * time.Second, true},
		"GETs":                     {get, same, 2 * time.Second, 3 * time.Second, false},
		"sent before":              {set, same, time.Second / 2, 3 * time.Second, false},
		"answered too late":        {set, same, 2 * time.Second, 7 * time.Second, false},
		"by another one where the broker stamps ids": {
			set, stamped, 2 * time.Second, 3 * time.Second, false,
		},
		"by another publishing connection": {set, other, 2 * time.Second, 3 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeliveries()
			var ops []*history.Op
			for i := range 3 {
				o := &history.Op{
					Number: i + 1, Verb: test.verb, Client: test.client,
					Call: test.call,
				}
				ops = append(ops, o)
				d.publish("clients/c/services/statestore/_any_/command/invoke/response",
					[]byte(o.Correlation()), test.replied)
			}
			if got := d.served(ops, same, publishers, time.Second,
				6*time.Second); got != test.want {
				t.Errorf("served: %t", got)
			}
			if d.served(ops[:2], same, publishers, time.Second, 6*time.Second) {
				t.Error("two are enough")
			}
		})
	}
}

// A request may stay unanswered if it was refused more than ProposalAge after it was sent. A
// request that took effect must be answered, and so must one that got a repeated refusal.
func TestRefusalThatWaitedMayBeUnanswered(t *testing.T) {
	const sent, proposalAge = time.Second, time.Second / 2
	refusal, repeated := fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded},
		fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded, Repeat: true}
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
			d.apply(&fsm.EntryOutcome{
				Index: 7, Commands: []fsm.Command{test.command},
				Results: []fsm.Result{test.result},
			}, test.applied)
			if got := d.lastEntry(write.ID, time.Minute); got.index != 7 ||
				got.mayBeUnanswered(sent, proposalAge) != test.want {
				t.Errorf("%+v", got)
			}
		})
	}
}
