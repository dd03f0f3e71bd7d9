package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// fault is a planned fault.
type fault struct {
	kind string
	// when it begins, since the call of disturb; the clients run by then, and the firewalls are set
	at    time.Duration
	lasts time.Duration
	seed  uint64 // seed of the generator that random returns
}

func (f *fault) String() string {
	return fmt.Sprintf("%v for %v: %s", f.at.Round(time.Millisecond),
		f.lasts.Round(time.Millisecond), f.kind)
}

// random returns the fault's own generator. It draws what the kind leaves open: machines, delays,
// offsets.
func (f *fault) random() *rand.Rand { return rand.New(rand.NewPCG(f.seed, 0)) }

// oldPersistence is the fault after which the broker starts with the database that it saved last.
// What it acknowledged after that save is lost.
const oldPersistence = "broker kill -9 with old persistence"

// faultWeights returns the relative weight of each kind of fault in drawPlan.
func faultWeights() map[string]int {
	return map[string]int{
		"power failure of the leader": 4, "power failure of a node": 3,
		"power failure of a majority": 2, "power failure of all": 1,
		"kill -9 of the leader": 3, "kill -9 of a node": 2,
		"pause of the leader": 3, "pause of a node": 2,
		"partition: leader alone": 4, "partition: halves": 2, "partition: bridge": 2,
		"partition: one-way": 2, "partition: ring": 2,
		"leader cut off from the broker": 3, "node cut off from the broker": 2,
		"loss of packets": 2, "slow links": 2, "late broker": 2, "leader late at the broker": 2,
		"broker restart": 2, "broker kill -9 without its persistence": 2, oldPersistence: 1,
		"broker pause": 1,
		"clock jump":   4, "clock skew": 2, "clocks jump together": 2,
		"disk full": 1, "slow disk": 2, "fsync fails": 2, "disk hangs": 1,
		"flipped bit in the log": 2, "flipped bit in a snapshot": 1,
		"member removed and added": 2, "member replaced": 2, "rolling restart": 1,
		"snapshot storm": 2, "leadership transfer": 3, "leader deposed unawares": 3,
		"clients paused": 2, "flood": 1, "deaf client": 1, "ten thousand watchers": 1,
	}
}

// drawPlan draws scenes of one to three faults each, with a calm after each scene. The faults of a
// scene begin within 3 s. only lists the kinds to draw from; if it is empty, all kinds are.
func drawPlan(seed uint64, duration time.Duration, only []string) (plan []fault) {
	r := rand.New(rand.NewPCG(seed, 2))
	var urn []string
	for kind, weight := range faultWeights() {
		if len(only) == 0 || slices.Contains(only, kind) {
			for range weight {
				urn = append(urn, kind)
			}
		}
	}
	slices.Sort(urn)
	between := func(low, high time.Duration) time.Duration {
		return low +
			time.Duration(r.Int64N(int64(high-low)))
	}
	for at := 5 * time.Second; ; {
		end := at
		for range 1 + r.IntN(3) {
			f := fault{
				kind: urn[r.IntN(len(urn))], at: at + between(0, 3*time.Second),
				lasts: between(2*time.Second, 12*time.Second), seed: r.Uint64(),
			}
			if f.at+f.lasts > duration {
				return plan
			}
			plan = append(plan, f)
			end = max(end, f.at+f.lasts)
		}
		at = end + between(4*time.Second, 10*time.Second)
	}
}

// smokePlan returns the plan of --smoke. The run fails if one of its faults has no effect.
func smokePlan() []fault {
	return []fault{
		{kind: "power failure of the leader", at: 8 * time.Second, lasts: 4 * time.Second},
		{kind: "partition: leader alone", at: 30 * time.Second, lasts: 12 * time.Second},
		{kind: "broker restart", at: 60 * time.Second, lasts: 2 * time.Second},
	}
}
