package role

import (
	"fmt"
	"testing"

	"holdfast/fsm"
)

// A client beyond its share is refused through the log; others are not, and the share is free again when the client has its replies.
func TestClientBeyondItsShareIsRefused(t *testing.T) {
	f, s := newNode(t, func(c *Config) { c.RequestsPerClient = 2 })
	o := serve(f)
	request := func(n int, client string) { arrive(f, del, fmt.Sprintf("%016d", n), "__srcId", client) }
	for n := range 3 {
		request(n, "greedy")
	}
	request(3, "modest")
	kinds := func() (kinds []fsm.Kind) {
		for i := range s.proposed {
			kinds = append(kinds, s.proposed[i].Kind)
		}
		return kinds
	}
	if got := fmt.Sprint(kinds()); got != fmt.Sprint([]fsm.Kind{fsm.KindDel, fsm.KindDel, fsm.KindReject, fsm.KindDel}) {
		t.Fatalf("proposed %s", got)
	}
	outcome := &fsm.Outcome{Index: 1, Commands: s.proposed, Results: make([]fsm.Result, len(s.proposed))}
	f.Applied(outcome, s.tags)
	o.deliver()
	if len(f.shares.byClient) != 0 || f.busy != 0 {
		t.Errorf("%v under way, %d busy", f.shares.byClient, f.busy)
	}
	if request(4, "greedy"); s.proposed[4].Kind != fsm.KindDel {
		t.Error("refused although nothing is under way")
	}
}

// One request always fits, and bytes count.
func TestShareOfBytes(t *testing.T) {
	shares := newClientShares(&Config{RequestsPerClient: 100, HoldBytes: 4000})
	if shares.full("c", 1_000_000) {
		t.Error("a single request does not fit")
	}
	shares.add("c", 600)
	if !shares.full("c", 500) || shares.full("c", 400) || shares.full("d", 500) {
		t.Error("bytes do not count")
	}
}
