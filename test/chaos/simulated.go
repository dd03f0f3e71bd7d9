package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// simulated maps each kind of fault of this harness to the simulation's kind. The value is empty if
// the simulation has none: either it lacks what the fault needs (a kernel, a real broker), or its
// clients do the same all the time.
func simulated() map[string]string {
	return map[string]string{
		"power failure of the leader": "power failure", "power failure of a node": "power failure",
		"power failure of a majority": "power failure", "power failure of all": "kill all",
		"kill -9 of the leader": "kill -9", "kill -9 of a node": "kill -9",
		"pause of the leader": "pause", "pause of a node": "pause",
		"partition: leader alone": "partition", "partition: halves": "partition",
		"partition: bridge": "partition", "partition: one-way": "partition",
		"partition: ring":                "partition",
		"leader cut off from the broker": "broker cut off",
		"node cut off from the broker":   "broker cut off", "loss of packets": "slow links",
		"slow links": "slow links", "late broker": "slow links",
		"leader late at the broker":              "slow links",
		"broker restart":                         "broker restart",
		"broker kill -9 without its persistence": "broker restart without queues",
		oldPersistence:                           "broker restart without queues",
		"broker pause":                           "broker silent",
		"clock jump":                             "clock jump", "clock skew": "clock jump",
		"clocks jump together": "clock jump",
		"disk full":            "disk nearly full", "slow disk": "slow disk",
		"fsync fails": "failing disk",
		"disk hangs":  "hanging disk", "flipped bit in the log": "flipped bit",
		"flipped bit in a snapshot": "flipped bit",
		"member removed and added":  "member removed", "member replaced": "wiped node",
		"rolling restart": "graceful stop", "snapshot storm": "snapshots",
		"leadership transfer":     "leadership transfer",
		"leader deposed unawares": "leader that is deposed and does not hear of it",
		"clients paused":          "clients away", "flood": "", "deaf client": "",
		"ten thousand watchers": "",
	}
}

// searchCommand returns the command that looks for a failure of this run in the simulation, whose
// runs can be repeated exactly. The command has the run's number of nodes, and the kinds of faults
// of its plan.
func searchCommand(nodes int, faults []fault) string {
	wanted := make(map[string]bool)
	for _, f := range faults {
		if kind := simulated()[f.kind]; kind != "" {
			wanted[kind] = true
		}
	}
	return fmt.Sprintf("make sim SEEDS=1000 NODES=%d KINDS=%q", nodes,
		strings.Join(slices.Sorted(maps.Keys(wanted)), ","))
}
