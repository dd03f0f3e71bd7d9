package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"holdfast/resp"
	"holdfast/test/chaos/record"
	"holdfast/test/history"
)

// A seed draws the same faults each time, and all kinds are drawn in the end.
func TestSeedDrawsTheSameFaults(t *testing.T) {
	drawn := make(map[string]bool)
	for seed := range uint64(60) {
		plan := drawPlan(seed, 5*time.Minute, nil)
		if !reflect.DeepEqual(plan, drawPlan(seed, 5*time.Minute, nil)) {
			t.Fatalf("seed %d draws something else each time", seed)
		}
		if len(plan) < 15 {
			t.Errorf("seed %d: %d faults", seed, len(plan))
		}
		for _, f := range plan {
			drawn[f.kind] = true
			if f.at+f.lasts > 5*time.Minute {
				t.Errorf("seed %d: %s is not over in time", seed, &f)
			}
		}
	}
	for kind := range faultWeights() {
		if !drawn[kind] {
			t.Errorf("%s is never drawn", kind)
		}
	}
	for _, f := range drawPlan(1, time.Minute, []string{"clock jump"}) {
		if f.kind != "clock jump" {
			t.Errorf("%s was not asked for", f.kind)
		}
	}
}

// After a violation the report prints a command that searches for the failure in the simulation.
// Its kinds of faults exist there, and each kind of this harness has an entry in simulated.
func TestSearchNamesKindsOfTheSimulation(t *testing.T) {
	source, err := os.ReadFile("../sim/plan.go")
	if err != nil {
		t.Fatal(err)
	}
	for kind := range faultWeights() {
		t.Run(kind, func(t *testing.T) {
			like, known := simulated()[kind]
			if !known || like != "" &&
				!strings.Contains(string(source), fmt.Sprintf("kind = %q", like)) {
				t.Errorf("the simulation has no kind %q", like)
			}
		})
	}
	got := searchCommand(3, []fault{
		{kind: "clock jump"},
		{kind: "clock skew"},
		{kind: "flood"},
		{kind: "broker pause"},
	})
	if want := `make sim SEEDS=1000 NODES=3 KINDS="broker silent,clock jump"`; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// Every kind of fault that a mutant or the smoke plan asks for can be drawn. injection.run knows
// every kind that can be drawn, except perhaps those that are skipped here.
func TestEveryKindOfFaultCanBeInjected(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	asked := faultWeights()
	for _, m := range selftests() {
		for _, kind := range m.faults {
			if asked[kind] == 0 {
				t.Errorf("%s asks for %s", m.name, kind)
			}
		}
	}
	for _, f := range smokePlan() {
		if asked[f.kind] == 0 {
			t.Errorf("the smoke asks for %s", f.kind)
		}
	}
	w := &world{loadIP: "127.0.0.1"}
	for range 3 {
		w.machines = append(w.machines,
			&machine{
				container: container{"no-such-container"}, firewall: newFirewall(),
				folder: t.TempDir(),
			})
	}
	for kind := range asked {
		f := &fault{kind: kind}
		in := &injection{world: w, fault: f, random: f.random()}
		if _, err := in.run(ctx, ctx); err != nil &&
			strings.Contains(err.Error(), "there is no fault") {
			t.Error(err)
		}
	}
}

// The packets of an address are dropped for as long as at least one fault wants that.
func TestNetworkRulesHoldWhileAFaultWantsThem(t *testing.T) {
	f := newFirewall()
	f.set(incoming, "198.18.0.1", 1)
	f.set(incoming, "198.18.0.1", 1)
	f.set(outgoing, "198.18.0.2", 1)
	f.set(incoming, "198.18.0.1", -1)
	f.loss = 7
	for _, want := range []string{
		"ip saddr 198.18.0.1 drop", "ip daddr 198.18.0.2 drop",
		"mod 100 < 7 drop",
	} {
		if !strings.Contains(f.rules(), want) {
			t.Errorf("no %q in %s", want, f.rules())
		}
	}
	f.set(incoming, "198.18.0.1", -1)
	if strings.Contains(f.rules(), "198.18.0.1") {
		t.Error("it is dropped for ever")
	}
}

// The order of two requests is not checked if a fault at about that time may have kept one of them
// from the leader's session.
func TestOrderCountsOnlyWithoutInterveningFaults(t *testing.T) {
	second := record.Duration(time.Second)
	a, b := &history.Op{Call: 30 * time.Second, Replied: 31 * time.Second},
		&history.Op{Replied: 32 * time.Second}
	for _, test := range []struct {
		fault record.Fault
		want  bool
	}{
		{record.Fault{Kind: "broker restart", From: 29 * second, To: 30 * second}, false},
		{record.Fault{Kind: "broker restart", From: 10 * second, To: 11 * second}, true},
		{record.Fault{Kind: "pause of the leader", From: 29 * second, To: 30 * second}, true},
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			if got := arrivedInOrder([]record.Fault{test.fault}, a, b); got != test.want {
				t.Errorf("%+v: %v", test.fault, got)
			}
		})
	}
}

// A counter of a run adds up the growth of its own series alone. A series that falls belongs to a
// new process.
func TestCounterCountsItsSeriesAlone(t *testing.T) {
	w := &world{run: record.Run{Counters: make(map[string]float64)}}
	last := make(map[string]float64)
	for _, metrics := range []map[string]float64{
		{
			`holdfast_requests_total{kind="set",result="dropped"}`: 2,
			`holdfast_requests_total{kind="set",result="done"}`:    7,
			`holdfast_notifications_total{result="sent"}`:          5,
		},
		{
			`holdfast_requests_total{kind="set",result="dropped"}`: 3,
			`holdfast_notifications_given_up_total`:                4,
		},
		{`holdfast_requests_total{kind="set",result="dropped"}`: 1}, // a new process
	} {
		w.addCounters(metrics, last)
	}
	if got := w.run.Counters; got[lostRequests] != 4 || got[lostNotifications] != 4 {
		t.Error(got)
	}
}

// A late recovery, replicas that differ, and too much memory are violations.
func TestFindingsOfNodesAreJudged(t *testing.T) {
	well := func() *record.Run {
		return &record.Run{
			Nodes: 2, Healed: record.Duration(time.Minute),
			Hashes: map[string]string{"n1": "a", "n2": "a"},
		}
	}
	h := history.New()
	h.Add(&history.Op{
		Verb: history.Set, Known: true, Reply: resp.Reply{Kind: resp.ReplyOK},
		Replied: 61 * time.Second,
	})
	if v := ofNodes(well(), h); len(v) != 0 {
		t.Error(v)
	}
	for want, change := range map[string]func(*record.Run){
		"recovery":        func(r *record.Run) { r.Healed = record.Duration(50 * time.Second) },
		"replicas differ": func(r *record.Run) { r.Hashes["n2"] = "b" },
		"bounds": func(r *record.Run) {
			r.Samples = []record.Sample{{
				Node:     "n1",
				Resident: 1 << 40,
			}}
		},
	} {
		t.Run(want, func(t *testing.T) {
			run := well()
			change(run)
			if v := ofNodes(run, h); len(v) != 1 || v[0].Check != want {
				t.Errorf("%v", v)
			}
		})
	}
}
