package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/test/chaos/record"
	"holdfast/test/chaos/report"
	"holdfast/test/history"
)

const (
	// recoveryTime is how soon service has to be back after the last fault.
	recoveryTime = 10 * time.Second
	// maxResident is how much memory a node may use.
	maxResident = 512 << 20
	// maxUnderWay is how many requests a node may execute and answer at once.
	maxUnderWay = 16_384
	// maxUnsent is how many notifications may wait to be published.
	maxUnsent = 1_000_000
	// patience bounds each search for an order of the operations on one key or bank.
	patience = 20 * time.Second
)

// judge checks the history and the records in the folder of a run, old or just ended, against the
// promises, and writes the report.
func judge(folder string) (findings *history.Findings, err error) {
	var run record.Run
	if err := record.Read(folder, "run.json", &run); err != nil {
		return nil, err
	}
	file, err := os.Open(filepath.Join(folder, "history", "history.jsonl"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	h, err := history.Load(file)
	if err != nil {
		return nil, err
	}
	addGaps(h, run.Faults)
	findings = history.Check(h, conditions(&run))
	for _, text := range run.Failures {
		findings.Violations = append(findings.Violations,
			history.Violation{Check: "harness", Text: text})
	}
	findings.Violations = append(findings.Violations, ofNodes(&run, h)...)
	if err := findings.WritePicture(filepath.Join(folder, "linearizability.html")); err != nil {
		return nil, err
	}
	r := report.New(&run, h, findings)
	if err := r.Write(folder); err != nil {
		return nil, err
	}
	if len(findings.Violations) > 0 {
		if err := markViolated(folder); err != nil {
			return nil, err
		}
	}
	fmt.Print(r.Summary())
	fmt.Printf("report: %s\n", filepath.Join(folder, "report.html"))
	return findings, nil
}

// addGaps notes for each oldPersistence fault that every client may have missed notifications (a
// gap). The broker came back with old sessions, and had lost what it acknowledged after it had
// saved them. Its clients cannot notice that, because their sessions are present.
func addGaps(h *history.History, faults []record.Fault) {
	clients := make(map[string]bool)
	for _, o := range h.Ops {
		clients[o.Client] = true
	}
	for _, f := range faults {
		for client := range clients {
			if f.Kind == oldPersistence {
				h.AddGap(client, time.Duration(f.From))
				h.AddGap(client, time.Duration(f.To))
			}
		}
	}
}

// conditions returns what the checks have to know of a run.
func conditions(run *record.Run) history.Conditions {
	c := history.Conditions{
		QuotaTight: func(o *history.Op) bool { return during(run.Faults, "disk full", o) },
		NotificationsComplete: run.NotificationsComplete &&
			run.Counters[lostNotifications] == 0, Patience: patience,
	}
	if run.Counters[lostRequests] == 0 && run.NotificationsComplete {
		c.ArrivedInOrder = func(a, b *history.Op) bool { return arrivedInOrder(run.Faults, a, b) }
	}
	return c
}

// during reports whether an operation was under way during a fault of a kind that had an effect, or
// soon after it.
func during(faults []record.Fault, kind string, o *history.Op) bool {
	const margin = 10 * time.Second
	return slices.ContainsFunc(faults, func(f record.Fault) bool {
		return f.Kind == kind && f.Effect && o.Replied > time.Duration(f.From) &&
			o.Call < time.Duration(f.To)+margin
	})
}

// arrivedInOrder reports whether two requests of a client surely reached the leader in the order in
// which the client sent them. If the broker loses the cluster's session, or brings back an older
// one, it may deliver the first one later. Some faults can cause that.
func arrivedInOrder(faults []record.Fault, a, b *history.Op) bool {
	const margin = 5 * time.Second
	from, to := a.Call-margin, max(a.Replied, b.Replied)+margin
	return !slices.ContainsFunc(faults, func(f record.Fault) bool {
		loses := strings.Contains(f.Kind, "broker") || strings.HasPrefix(f.Kind, "member re") ||
			strings.HasPrefix(f.Kind, "flipped bit")
		return loses && time.Duration(f.From) < to && time.Duration(f.To) > from
	})
}

// ofNodes checks the nodes: the time until service was back, the hashes of the replicas, and the
// bounds on memory, requests and notifications.
func ofNodes(run *record.Run, h *history.History) (violations []history.Violation) {
	add := func(check, format string, arguments ...any) {
		violations = append(violations,
			history.Violation{Check: check, Text: fmt.Sprintf(format, arguments...)})
	}
	switch recovered, ever := report.Recovered(run, h); {
	case !ever:
		add("recovery", "service did not come back after the last fault")
	case recovered > recoveryTime:
		add("recovery", "service was back %v after the last fault", recovered)
	}
	hashes := make(map[string]bool)
	for _, hash := range run.Hashes {
		hashes[hash] = true
	}
	if len(run.Hashes) != run.Nodes || len(hashes) != 1 {
		add("replicas differ", "hashes at the end: %v", run.Hashes)
	}
	most, underWay := make(map[string]int64), make(map[string]int64)
	for _, s := range run.Samples {
		most[s.Node], underWay[s.Node] = max(most[s.Node], s.Resident),
			max(underWay[s.Node], s.UnderWay)
	}
	for node, requests := range underWay {
		if requests > maxUnderWay {
			add("bounds", "%s had %d requests under way", node, requests)
		}
	}
	for _, s := range run.Samples {
		if s.Unsent > maxUnsent {
			add("bounds", "%s had %d notifications to publish", s.Node, s.Unsent)
			break
		}
	}
	for node, resident := range most {
		if resident > maxResident {
			add("bounds", "%s used %d MiB of memory", node, resident>>20)
		}
	}
	return violations
}
