package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// kind is a kind of fault.
type kind string

const (
	killNodes           kind = "kill -9"
	powerFailure        kind = "power failure"
	killAll             kind = "kill all"
	stopNode            kind = "graceful stop"
	pauseNode           kind = "pause"
	partition           kind = "partition"
	slowLinks           kind = "slow links"
	resetLinks          kind = "reset connections"
	brokerRestart       kind = "broker restart"
	brokerAmnesia       kind = "broker restart without queues"
	brokerSilent        kind = "broker silent"
	brokerCut           kind = "broker cut off"
	takeSession         kind = "session taken over"
	takePublishing      kind = "publishing connection taken over"
	diskSlow            kind = "slow disk"
	diskHangs           kind = "hanging disk"
	diskFails           kind = "failing disk"
	diskLow             kind = "disk nearly full"
	flipBit             kind = "flipped bit"
	clockJump           kind = "clock jump"
	wipeNode            kind = "wiped node"
	removeMember        kind = "member removed"
	demoteMember        kind = "member demoted"
	transferLeader      kind = "leadership transfer"
	flapLeader          kind = "flapping leadership"
	deposeLeader        kind = "leader that is deposed and does not hear of it"
	stallRequests       kind = "broker that holds requests back"
	deafBroker          kind = "replies that the broker does not acknowledge"
	brokerBringsBack    kind = "broker that brings acknowledged requests back"
	cutLeaders          kind = "leaders cut off one after the other"
	sleepsThrough       kind = "stopped until outcomes are forgotten"
	lateNode            kind = "late node that comes to lead"
	expireUnled         kind = "requests that expire while there is no leader"
	rollIdentity        kind = "identity settings rolled"
	demoteAndJump       kind = "members demoted while a clock is wrong"
	laggingBroker       kind = "leaders that change while the broker lags"
	stoppedWhenElected  kind = "stopped when it begins to lead"
	stoppedWhenDialling kind = "leader stopped on its way to the broker"
	snapshotStorm       kind = "snapshots"
	changeSettings      kind = "settings changed"
	clientsAway         kind = "clients away"
)

// fault is one thing that goes wrong. All faults are drawn before the run.
type fault struct {
	at      time.Duration
	lasts   time.Duration
	kind    kind
	node    int  // number of the node that it hits, from 0
	leader  bool // it hits the leader of that moment instead of node
	others  int  // how many more nodes it hits; of demoteAndJump: how many it demotes
	shape   shape
	classes []class
	delay   time.Duration // latency that it adds; of some kinds, the length of a stop or of a wait
	// of a clock; of deposeLeader: the time from the loss of the leader's broker connections to the
	// transfer
	offset time.Duration
	// how many synchronisation points (package schedule) a node passes before it stops
	points   uint64
	variant  int  // random bits, from which the fault chooses details
	silently bool // a node is lost as by a power failure: the other machines are not told
	// a node entered the code path of the fault's trap (stops.go); guarded by traps.mu
	sprung bool
}

// shape is how a partition divides the nodes.
type shape string

const (
	isolated shape = "isolated" // one node is cut off from all others
	halves   shape = "halves"   // two groups are cut off from each other
	// two groups are cut off from each other, and one node reaches both
	bridge   shape = "bridge"
	deaf     shape = "deaf"      // one node receives nothing, and can send
	mute     shape = "mute"      // one node can receive, and what it sends does not arrive
	ring     shape = "ring"      // each node reaches its two neighbours only
	oneWay   shape = "one pair"  // one direction between two nodes is cut
	pairwise shape = "pair only" // both directions between two nodes are cut
)

// String describes the fault for people.
func (f *fault) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%8.3f for %.3f s: %s", f.at.Seconds(), f.lasts.Seconds(), f.kind)
	switch {
	case f.leader:
		b.WriteString(" of the leader")
	default:
		fmt.Fprintf(&b, " of n%d", f.node+1)
	}
	if f.others > 0 {
		fmt.Fprintf(&b, " and %d more", f.others)
	}
	if f.shape != "" {
		fmt.Fprintf(&b, ", %s", f.shape)
	}
	if len(f.classes) > 0 {
		fmt.Fprintf(&b, ", %v", f.classes)
	}
	if f.delay > 0 {
		fmt.Fprintf(&b, ", by %v", f.delay)
	}
	if f.points > 0 {
		fmt.Fprintf(&b, ", after %d synchronisation points", f.points)
	}
	if f.offset != 0 {
		fmt.Fprintf(&b, ", by %v", f.offset)
	}
	return b.String()
}

// weight is how often a kind is drawn.
type weight struct {
	kind   kind
	weight int
}

func weights() []weight {
	return []weight{
		{killNodes, 10},
		{powerFailure, 4},
		{killAll, 2},
		{stopNode, 5},
		{pauseNode, 16},
		{partition, 12},
		{slowLinks, 12},
		{resetLinks, 6},
		{brokerRestart, 4},
		{brokerAmnesia, 2},
		{brokerSilent, 3},
		{brokerCut, 7},
		{takeSession, 2},
		{takePublishing, 3},
		{diskSlow, 4},
		{diskHangs, 2},
		{diskFails, 3},
		{diskLow, 1},
		{flipBit, 3},
		{clockJump, 8},
		{wipeNode, 8},
		{removeMember, 2},
		{demoteMember, 2},
		{transferLeader, 7},
		{flapLeader, 5},
		{deposeLeader, 10},
		{laggingBroker, 12},
		{stallRequests, 6},
		{deafBroker, 4},
		{brokerBringsBack, 4},
		{cutLeaders, 6},
		{sleepsThrough, 3},
		{lateNode, 5},
		{expireUnled, 3},
		{rollIdentity, 3},
		{demoteAndJump, 3},
		{stoppedWhenElected, 7},
		{stoppedWhenDialling, 7},
		{snapshotStorm, 4},
		{changeSettings, 4},
		{clientsAway, 4},
	}
}

// Kinds returns the kinds of faults.
func Kinds() (kinds []string) {
	for _, w := range weights() {
		kinds = append(kinds, string(w.kind))
	}
	return kinds
}

// drawPlan draws the faults and their times: from the kinds that are named, or from all if none is.
func drawPlan(r *rand.Rand, t *tunables, duration time.Duration, kinds []string) (plan []fault) {
	total, drawn := 0, weights()
	if len(kinds) > 0 {
		drawn = slices.DeleteFunc(drawn,
			func(w weight) bool { return !slices.Contains(kinds, string(w.kind)) })
	}
	for _, w := range drawn {
		total += w.weight
	}
	const calm = 2 * time.Second
	for at := calm; ; at += between(r, 500*time.Millisecond, 6*time.Second) {
		f := fault{
			at: at, lasts: between(r, 200*time.Millisecond, 6*time.Second), node: r.IntN(t.nodes),
			leader:  r.IntN(2) == 0,
			variant: r.IntN(1 << 16), silently: r.IntN(2) == 0,
		}
		if f.at+f.lasts > duration {
			return plan
		}
		long := r.IntN(6) == 0
		n := r.IntN(total)
		for _, w := range drawn {
			if n -= w.weight; n < 0 {
				f.kind = w.kind
				break
			}
		}
		f.draw(r, t)
		if long {
			f.prolong(r, duration)
		}
		plan = append(plan, f)
	}
}

// prolong makes some faults of a single machine longer. Meanwhile outcomes may be forgotten.
func (f *fault) prolong(r *rand.Rand, duration time.Duration) {
	longer := min(between(r, 15*time.Second, 40*time.Second), duration-f.at)
	if f.others == 0 && longer > f.lasts &&
		(f.kind == killNodes || f.kind == powerFailure || f.kind == brokerCut ||
			f.kind == stopNode) {
		f.lasts = longer
	}
}

// draw draws the fields that the fault's kind needs.
func (f *fault) draw(r *rand.Rand, t *tunables) {
	switch f.kind {
	case killNodes, powerFailure:
		f.others = pick(r, 0, 0, 0, r.IntN(t.nodes))
	case pauseNode:
		f.lasts = min(f.lasts, t.timing.DiskDeadline*7/10)
		f.others = pick(r, 0, 0, 1)
	case partition:
		f.shape = pick(r, isolated, isolated, halves, bridge, deaf, mute, ring, oneWay, pairwise)
		f.classes = pick(r, []class{classRaft, classCall}, []class{classRaft, classCall},
			[]class{classRaft}, []class{classCall})
	case slowLinks:
		f.shape = pick(r, isolated, deaf, mute, oneWay)
		f.classes = pick(r, []class{classRaft}, []class{classCall}, []class{classRaft, classCall},
			[]class{classBroker}, []class{classRaft, classCall, classBroker})
		f.delay = pick(r, 20*time.Millisecond, 200*time.Millisecond, 700*time.Millisecond,
			2*time.Second)
	case resetLinks:
		f.classes = pick(r, []class{classRaft}, []class{classCall}, []class{classBroker},
			[]class{classRaft, classCall, classBroker})
	case brokerCut:
		f.shape = pick(r, isolated, deaf, mute)
		f.others = pick(r, 0, 0, 1)
		f.lasts = between(r, 500*time.Millisecond, 2*t.front.SessionExpiry)
	case deposeLeader:
		f.leader, f.shape, f.classes = true, deaf, []class{classRaft}
		f.lasts = between(r, time.Second, 2*time.Second)
		f.delay = t.timing.LeaderLease * time.Duration(50+r.IntN(40)) / 100
		// from the loss of its broker connections to the transfer
		f.offset = between(r, 0, f.delay/2)
	case stallRequests:
		f.lasts = between(r, 500*time.Millisecond, t.front.SessionExpiry*5/4)
	case deafBroker:
		f.lasts = pick(r, between(r, time.Second, 3*t.front.SessionExpiry), t.outcomeLifetime()+
			between(r, time.Second, 4*time.Second))
	case brokerBringsBack:
		// how far the broker goes back
		f.delay = between(r, 100*time.Millisecond, t.front.SessionExpiry)
		f.lasts = between(r, 200*time.Millisecond, 2*time.Second)
	case cutLeaders:
		f.delay, f.lasts = between(r, 5*time.Millisecond, 400*time.Millisecond),
			between(r, 6*time.Second, 15*time.Second)
	case sleepsThrough:
		f.leader, f.lasts = false, t.outcomeLifetime()+between(r, time.Second, 4*time.Second)
	case lateNode:
		f.leader, f.lasts = false, t.front.SessionExpiry*time.Duration(30+r.IntN(60))/100
	case expireUnled:
		// from the end of the cut until the stopped node goes on
		f.leader, f.delay = false, between(r, 1500*time.Millisecond, 3*time.Second)
		// until the requests have expired in the queue
		f.lasts = time.Duration(t.expiry)*time.Second + between(r, 7*time.Second, 9*time.Second)
	case demoteAndJump:
		f.offset = time.Duration(1-2*r.IntN(2)) * between(r, 61*time.Second, 2*time.Minute)
		f.delay, f.others = pick(r, 0, 200*time.Millisecond, 2*time.Second), 1+
			r.IntN(max(1, t.nodes-2))
		f.lasts = between(r, 3*time.Second, 8*time.Second)
	case laggingBroker:
		f.delay, f.lasts = between(r, 20*time.Millisecond, 600*time.Millisecond),
			between(r, 3*time.Second, 8*time.Second)
	case stoppedWhenElected, stoppedWhenDialling:
		f.leader, f.lasts = true, between(r, 3*time.Second, 5*time.Second)
		// the length of the stop: longer than an election, shorter than a connection attempt
		f.delay = between(r, time.Second, 2900*time.Millisecond)
		f.points = 1 + r.Uint64N(1<<r.IntN(12))
	case diskHangs:
		f.lasts = t.timing.DiskDeadline + 2*time.Second
	case diskSlow:
		f.delay = pick(r, 10*time.Millisecond, 100*time.Millisecond, 500*time.Millisecond)
	case clockJump:
		f.offset = between(r, -2*time.Minute, 2*time.Minute)
		if t.clockWild {
			f.others = r.IntN(t.nodes)
		}
	case brokerRestart, brokerAmnesia, brokerSilent:
		f.lasts = pick(r, 50*time.Millisecond, time.Second, f.lasts, t.front.SessionExpiry+
			time.Second)
	}
}
