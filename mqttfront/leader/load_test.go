package leader

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/fsm"
)

// A client beyond its share is refused through the log; others are not, and the share is free again
// when the client has its replies.
func TestClientBeyondItsShareIsRefused(t *testing.T) {
	f, s := newNode(t, func(c *Config) { c.RequestsPerClient = 2 })
	o := serve(f)
	request := func(n int, client string) {
		arrive(f, del, fmt.Sprintf("%016d", n), "__srcId",
			client)
	}
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
	if got := fmt.Sprint(kinds()); got != fmt.Sprint([]fsm.Kind{
		fsm.KindDel, fsm.KindDel,
		fsm.KindReject, fsm.KindDel,
	}) {
		t.Fatalf("proposed %s", got)
	}
	outcome := &fsm.EntryOutcome{
		Index: 1, Commands: s.proposed,
		Results: make([]fsm.Result, len(s.proposed)),
	}
	f.Applied(outcome, s.tags)
	o.deliver()
	if f.Busy() != 0 {
		t.Errorf("%d busy", f.Busy())
	}
	if request(4, "greedy"); s.proposed[4].Kind != fsm.KindDel {
		t.Error("refused although nothing is under way")
	}
}

// A client's share is bounded in bytes, too. A single request always fits.
func TestClientShareIsBoundedInBytes(t *testing.T) {
	shares := newClientShares(&Config{RequestsPerClient: 100, RequestBytes: 8000})
	if shares.full("c", 1, 1_000_000) {
		t.Error("a single request does not fit")
	}
	shares.add("c", 1, 600)
	if !shares.full("c", 1, 500) || shares.full("c", 1, 400) || shares.full("d", 1, 500) {
		t.Error("bytes do not count")
	}
	if shares.remove("c", 1, 600); len(shares.byClient) != 0 {
		t.Errorf("%v is left of a client that has nothing under way", shares.byClient)
	}
}

// † A transaction counts as many requests as it has operations. A single one always fits.
func TestTransactionsCountByTheirOperations(t *testing.T) {
	shares := newClientShares(&Config{RequestsPerClient: 100, RequestBytes: 1 << 30})
	if shares.full("c", 128, 0) {
		t.Error("a single transaction does not fit")
	}
	shares.add("c", 60, 0)
	if shares.full("c", 40, 0) || !shares.full("c", 41, 0) || shares.full("d", 128, 0) {
		t.Error("operations do not count")
	}
	if shares.remove("c", 60, 0); len(shares.byClient) != 0 {
		t.Errorf("%v is left of a client that has nothing under way", shares.byClient)
	}
	if none := (&clientShares{}); !none.full("c", 1, 0) {
		t.Error("the zero value has room")
	}
}

// SCANs have limits of their own, for each client and in all, because each takes milliseconds.
// SCANs beyond them are refused as overload. Other requests are not. A second pair of limits holds
// for pages that the broker does not have yet.
func TestScansHaveAShareOfTheirOwn(t *testing.T) {
	const scan = "*2\r\n$4\r\nSCAN\r\n$1\r\n*\r\n"
	f, s := newNode(t)
	o := serve(f)
	send := func(client string, n int) {
		for i := range n {
			arrive(f, scan, fmt.Sprintf("%16s", fmt.Sprint(client, i)), "__srcId", client)
		}
	}
	send("greedy", maxScansPerClient+100)
	if len(s.reads) != maxScansPerClient || len(o.outputs) != 100 ||
		o.outputs[0].Result.Error != fsm.ErrorOverloaded {
		t.Fatalf("%d read, %d answered", len(s.reads), len(o.outputs))
	}
	for client := range maxScans / maxScansPerClient {
		send(fmt.Sprint("client", client), maxScansPerClient)
	}
	if len(s.reads) != maxScans {
		t.Fatalf("%d read", len(s.reads))
	}
	arrive(f, get, "0123456789abcdef")
	if len(s.reads) != maxScans+1 {
		t.Error("a GET is refused")
	}
	answer := func() {
		for _, read := range s.reads {
			f.ReadDone(read, fsm.Result{Code: fsm.CodeKeys, Page: &fsm.KeyPage{}})
		}
		s.reads = nil
	}
	answer()
	o.deliver()
	refused := func() (count int) { // of what is sent and not delivered
		for _, output := range o.outputs {
			if output.Result.Error == fsm.ErrorOverloaded {
				count++
			}
		}
		return count
	}
	for range 2 * maxPagesPerClient {
		send("sequential", 1)
		answer()
	}
	if got := refused(); len(o.outputs) != 2*maxPagesPerClient || got != maxPagesPerClient {
		t.Errorf("while the broker takes no page, %d of %d SCANs of a client are refused", got,
			len(o.outputs))
	}
	for client := range 2 * maxPages {
		send(fmt.Sprint("other", client), 1)
		answer()
	}
	if pages := len(o.outputs) - refused(); pages != maxPages {
		t.Errorf("while the broker takes no page, %d pages are under way", pages)
	}
	o.deliver()
	if send("sequential", maxScansPerClient); len(s.reads) != maxScansPerClient ||
		len(o.outputs) != 0 {
		t.Errorf("when the broker has taken all pages, %d SCANs are read, %d refused", len(s.reads),
			len(o.outputs))
	}
}

// Nothing is kept for a client whose SCANs have ended.
func TestEndedScansLeaveNothingBehind(t *testing.T) {
	s := scans{byClient: make(map[string]scanCount)}
	var stage scanStage
	for _, to := range []scanStage{scanReading, scanDelivering, scanNone} {
		s.move("c", &stage, to)
	}
	if len(s.byClient) != 0 || s.all != (scanCount{}) {
		t.Errorf("%+v", s)
	}
}

// † A change of a long key counts for more where many patterns are watched: one client cannot keep
// all members busy with patterns.
func TestChangesCountByThePatternsTheyMeet(t *testing.T) {
	f, s := newNode(t, func(c *Config) { c.RequestsPerClient = 4096 })
	const patterns = 1000
	var commands []fsm.Command
	for client := range 10 {
		for i := range patterns / 10 {
			watch := fsm.Command{
				Kind: fsm.KindKeyNotify, Key: fmt.Appendf(nil, "*%d", i),
				Pattern: true, Principal: principal(fmt.Sprint(client)),
			}
			commands = append(commands, watch)
		}
	}
	for index, data := range [][]byte{
		fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{{
			Kind:  fsm.KindLeaderStart,
			Nonce: 1, Version: fsm.Version,
		}}}),
		fsm.AppendEntry(nil, &fsm.Entry{Term: 1, Number: 1, Commands: commands}),
	} {
		if _, err := s.machine.Apply(uint64(index+1), 1, data); err != nil {
			t.Fatal(err)
		}
	}
	serve(f)
	f.leader.testSomeWatches(time.Now())
	long := strings.Repeat("k", 4000)
	weight := 1 + 4000*patterns/stepsPerOperation
	for n := range 4096/weight + 2 {
		arrive(f, fmt.Sprintf("*2\r\n$3\r\nDEL\r\n$4000\r\n%s\r\n", long), fmt.Sprintf("%016d", n),
			"__srcId", "greedy")
	}
	refused := 0
	for i := range s.proposed {
		if s.proposed[i].Kind == fsm.KindReject {
			refused++
		}
	}
	if want := 2; refused != want {
		t.Errorf("%d of %d requests are refused, want %d; each counts as %d operations", refused,
			len(s.proposed), want, weight)
	}
	if arrive(f, del, "0123456789abcdef", "__srcId",
		"modest"); s.proposed[len(s.proposed)-1].Kind != fsm.KindDel {
		t.Error("another client is refused")
	}
}
