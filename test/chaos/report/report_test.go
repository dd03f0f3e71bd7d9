package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/plot/vg"

	"holdfast/resp"
	"holdfast/test/chaos/record"
	"holdfast/test/history"
)

func run() (*record.Run, *history.History) {
	second := record.Duration(time.Second)
	r := &record.Run{
		Seed: 7, Nodes: 3, Duration: 90 * second, Lasted: 60 * second, Healed: 14 * second,
		Command: "make chaos SEED=7",
		Faults: []record.Fault{
			{Kind: "clock jump", From: 12 * second, To: 14 * second},
			{
				Kind: "power failure of the leader", From: 11 * second, To: 13 * second,
				Effect: true,
			},
		},
		Leaders: []record.Leading{
			{At: second, Node: "n1", Term: 2},
			{At: 15 * second, Node: "n2", Term: 3},
		},
		Samples: []record.Sample{{At: second, Node: "n1", Resident: 100 << 20}},
	}
	h := history.New()
	for n := range 20 {
		at := time.Duration(n) * time.Second
		o := &history.Op{Client: "c", Verb: history.Set, Key: "r/1", Value: "x", Call: at}
		if n < 11 || n > 15 {
			o.Known, o.Replied, o.Reply = true, at+time.Millisecond, resp.Reply{Kind: resp.ReplyOK}
		}
		h.Add(o)
	}
	return r, h
}

// report.html needs no other file. It says whether promises were broken, and escapes what clients
// wrote.
func TestReportSaysFirstWhatWasBroken(t *testing.T) {
	r, h := run()
	for want, findings := range map[string]*history.Findings{
		"No promise was broken": {},
		"Promises were broken: 1": {Violations: []history.Violation{{
			Check: "fencing",
			Text:  "<b>",
		}}},
	} {
		t.Run(want, func(t *testing.T) {
			folder := t.TempDir()
			report := New(r, h, findings)
			if err := report.Write(folder); err != nil {
				t.Fatal(err)
			}
			page, err := os.ReadFile(filepath.Join(folder, "report.html"))
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range []string{
				want, "3 nodes, 1m30s of faults",
				"<td>11s</td><td>13s</td>", "make chaos SEED=7", "power failure of the leader",
				"data:image/png;base64,iVBOR",
			} {
				if !strings.Contains(string(page), part) {
					t.Errorf("%q is missing", part)
				}
			}
			if strings.Contains(string(page), "<pre><b>fencing</b>: <b>") {
				t.Error("what clients wrote is taken for HTML")
			}
			if at := strings.Index(string(page), want); at > strings.Index(string(page),
				"3 nodes, 1m30s of faults") {
				t.Error("the verdict is not at the top")
			}
			if unbroken := strings.Contains(report.Summary(),
				"no promise was broken"); unbroken != (len(findings.Violations) == 0) {
				t.Error(report.Summary())
			}
		})
	}
}

// A time without answers is found, with the faults at that time.
func TestTimesWithoutAnswersAreFound(t *testing.T) {
	r, h := run()
	windows := New(r, h, &history.Findings{}).windows()
	if len(windows) != 1 || windows[0].Lasted != 6*time.Second ||
		windows[0].Faults != "power failure of the leader, clock jump" {
		t.Errorf("%+v", windows)
	}
}

// Service is back with the first write that is acknowledged after the last fault.
func TestRecoveryIsTheFirstAcknowledgedWrite(t *testing.T) {
	r, h := run()
	if got, ever := Recovered(r, h); !ever || got != 2*time.Second+time.Millisecond {
		t.Error(got, ever)
	}
	r.Healed = r.Lasted
	if got, ever := Recovered(r, h); ever {
		t.Error(got)
	}
}

// Labels that would overlap are in different rows, and none extends past the right edge of the
// plot.
func TestOverlappingLabelsGetTheirOwnRows(t *testing.T) {
	r, _ := run()
	x := func(at record.Duration) vg.Length { return vg.Length(seconds(at)) }
	width := func(string) vg.Length { return 5 }
	list, rows := place(r.Faults, x, width, 60)
	if rows != 2 || list[0].row == list[1].row {
		t.Errorf("%d rows: %+v", rows, list)
	}
	if list, _ := place(r.Faults[:1], x, width, 14); list[0].label != 9 {
		t.Errorf("a label that is 5 wide begins at %v, and the field ends at 14", list[0].label)
	}
	if _, rows := place(r.Faults[:1], x, width, 60); rows != 1 {
		t.Errorf("%d rows for one", rows)
	}
}
