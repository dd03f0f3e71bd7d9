package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
)

// Each answered request counts under the name of its command and of its outcome.
func TestAnsweredCountsByCommandAndOutcome(t *testing.T) {
	for name, test := range map[string]struct {
		kind             fsm.Kind
		code             fsm.Code
		command, outcome string
	}{
		"a SET":                 {fsm.KindSet, fsm.CodeOK, "set", "done"},
		"a condition not met":   {fsm.KindSet, fsm.CodeNotApplied, "set", "not_applied"},
		"a GET of nothing":      {fsm.KindGet, fsm.CodeNull, "get", "missing"},
		"a DEL of nothing":      {fsm.KindDel, fsm.CodeMissing, "del", "missing"},
		"a VDEL":                {fsm.KindVDel, fsm.CodeDeleted, "vdel", "done"},
		"the end of a watch":    {fsm.KindKeyNotifyStop, fsm.CodeOK, "keynotify", "done"},
		"a transaction":         {fsm.KindTxn, fsm.CodeReplies, "txn", "done"},
		"what cannot be parsed": {0, fsm.CodeError, "invalid", "error"},
		"without a reply":       {fsm.KindSet, fsm.CodeNoReply, "set", "dropped"},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			m := New(registry)
			for range 2 {
				m.Answered(test.kind, &fsm.Result{Code: test.code})
			}
			if n := answered(t, registry, test.command, test.outcome); n != 2 {
				t.Errorf("counted %v times", n)
			}
		})
	}
}

// answered returns how many requests of a command and an outcome were counted, -1 if there is no
// such series.
func answered(t *testing.T, registry *prometheus.Registry, command, outcome string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "holdfast_requests_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := make(map[string]string)
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["command"] == command && labels["outcome"] == outcome {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return -1
}
