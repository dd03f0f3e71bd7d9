package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"holdfast/test/sim/schedule"
)

// Nodes receive the same messages at different times, or only some of them. These faults let a node lead that is behind the others, or that alone
// has everything.

// giveLead tries for a time to transfer the leadership to a host's node, and reports whether that node leads.
func (s *simulation) giveLead(ctx context.Context, to *host, within time.Duration) bool {
	const pause = 100 * time.Millisecond
	for until := s.trace.now() + within; s.trace.now() < until; s.sleep(pause) {
		leader := s.leader()
		if leader == to {
			return true
		}
		if leader == nil {
			continue
		}
		if node := leader.member(); node != nil {
			s.succeeded("transfer", node.Membership().Transfer(ctx, to.name))
		}
	}
	return false
}

// leadWithLateSession delays what the broker sends to one node, and lets that node lead. The late node executes requests long after the other nodes
// received them. It reports whether the late node led. There are three variants:
//   - stallRequests: the broker sends no requests to the late node until shortly after that node leads. The late node then gets requests that the old
//     leader has refused.
//   - loseBefore: the link from the broker to the late node is slow. Before the leader changes, the old leader receives nothing from the broker, and
//     the remaining nodes lose their sessions.
//   - loseWhileLeading: the link from the broker to the late node is slow. The other nodes lose their sessions while the late node leads.
func (s *simulation) leadWithLateSession(ctx context.Context, f *fault, leader, late *host) bool {
	const stallRequests, loseWhileLeading = 0, 2 // 1 is loseBefore
	if s.tunables.front.IngestAtLeader || !s.lagging.TryLock() {
		return false // there is one session only, or another node is late
	}
	defer s.lagging.Unlock()
	if late == leader && f.variant%3 != loseWhileLeading {
		late = s.hosts[(slices.Index(s.hosts, leader)+1)%len(s.hosts)]
	}
	random := rand.New(rand.NewPCG(s.seed, uint64(f.variant)))
	if f.variant%3 == stallRequests {
		s.broker.stall(ingestSession(late))
		defer s.broker.stall("")
		s.sleep(f.delay)
		led := s.giveLead(ctx, late, 2*time.Second)
		s.sleep(between(random, 0, 500*time.Millisecond))
		return led
	}
	slowed := link{"broker", late.name, classBroker}
	s.network.slow(slowed, f.delay)
	defer s.network.slow(slowed, 0)
	if f.variant%3 == loseWhileLeading {
		led := s.giveLead(ctx, late, 2*time.Second)
		s.loseSessions(random, f.lasts, late)
		return led
	}
	toOldLeader := &s.network.link(link{"broker", leader.name, classBroker}).gate
	toOldLeader.close() // the old leader must not execute what the new one will receive late
	s.loseSessions(random, between(random, 500*time.Millisecond, 1500*time.Millisecond), late, leader)
	led := s.giveLead(ctx, late, time.Second)
	s.sleep(f.lasts / 2)
	toOldLeader.open()
	return led
}

// expireWithoutLeader leaves the cluster without a leader until the requests of clients expire, and the running nodes forget them. One node is stopped
// meanwhile. It reads its copies of these requests from its socket after the next leader has executed later requests of the same clients. If the stopped
// node would drop such copies because its session is too old by then, or if it cannot be stopped, expireWithoutLeader does nothing and returns false.
func (s *simulation) expireWithoutLeader(f *fault, late *host) bool {
	stopped := f.lasts + f.delay
	if late.isAsleep() || !schedule.Replays || stopped > s.tunables.front.SessionExpiry-time.Second {
		return false
	}
	var links []link
	alone := 0
	for _, h := range s.hosts {
		if h == late || alone == (len(s.hosts)-1)/2 { // those that are left are no majority
			continue
		}
		alone++
		cut := *f
		cut.shape, cut.classes = isolated, []class{classRaft, classCall}
		links = append(links, s.links(&cut, []*host{h})...)
	}
	for _, l := range links {
		s.network.link(l).gate.close()
	}
	late.setAsleep(true)
	schedule.Stop(late.group, stopped)
	late.disk.locked(func(d *disk) { d.trouble = time.Now() })
	s.sleep(f.lasts)
	for _, l := range links {
		s.network.link(l).gate.open()
	}
	late.disk.locked(func(d *disk) { d.trouble = time.Now() })
	s.sleep(f.delay)
	late.setAsleep(false)
	s.sleep(2 * time.Second) // the leader asks the other nodes for held requests each second
	return true
}

// ingestSession returns the client id of the session by which a host's node receives requests, where each node has one.
func ingestSession(h *host) string { return clusterName + "-" + h.name + "-in" }

// loseSessions makes the broker forget the ingest sessions of all nodes except but, again and again. The nodes whose sessions it forgets receive only
// parts of what clients send.
func (s *simulation) loseSessions(random *rand.Rand, lasts time.Duration, but ...*host) {
	for until := s.trace.now() + lasts; s.trace.now() < until; s.sleep(between(random, 10*time.Millisecond, 300*time.Millisecond)) {
		for _, h := range s.hosts {
			if !slices.Contains(but, h) {
				s.broker.forget(ingestSession(h))
			}
		}
	}
}

// isolateLeaders slows all traffic with the broker, and cuts off each leader from the other nodes shortly after it began to lead, sometimes
// from the broker as well. What that leader published is still above the delivery watermark in the log, so its successor publishes it again.
// Half of the times the old leader leads again before the successor has published everything.
func (s *simulation) isolateLeaders(ctx context.Context, f *fault) {
	const longest = 4 * time.Second // longest wait until another node leads
	random := rand.New(rand.NewPCG(s.seed, uint64(f.variant)))
	for _, h := range s.hosts {
		s.network.slow(link{h.name, "broker", classBroker}, f.delay)
		s.network.slow(link{"broker", h.name, classBroker}, f.delay)
	}
	for until := s.trace.now() + f.lasts; s.trace.now() < until; s.sleep(between(random, 10*time.Millisecond, 600*time.Millisecond)) {
		leader := s.leader()
		if leader == nil {
			continue
		}
		cut := *f
		cut.shape, cut.classes = isolated, pick(random, []class{classRaft, classCall}, []class{classRaft, classCall, classBroker})
		links := s.links(&cut, []*host{leader})
		for _, l := range links {
			s.network.link(l).gate.close()
		}
		next := leader
		for deadline := s.trace.now() + longest; s.trace.now() < deadline && (next == nil || next == leader); next = s.leader() {
			s.sleep(10 * time.Millisecond)
		}
		for _, l := range links {
			s.network.link(l).gate.open()
		}
		if next != nil && next != leader && random.IntN(2) == 0 {
			s.sleep(between(random, 0, 4*f.delay))
			s.giveLead(ctx, leader, time.Second)
		}
	}
	for _, h := range s.hosts {
		s.network.slow(link{h.name, "broker", classBroker}, 0)
		s.network.slow(link{"broker", h.name, classBroker}, 0)
	}
}

// comeBackToLead keeps a node away while the broker queues its messages, and lets it lead when it is back. With lateNode it is killed and
// started again. With sleepsThrough it is stopped until the others have forgotten the outcomes of the requests that it will then read, and
// have compacted their logs.
func (s *simulation) comeBackToLead(ctx context.Context, f *fault, h *host) bool {
	if h.isAsleep() || f.kind == sleepsThrough && !schedule.Replays {
		return false
	}
	if f.kind == lateNode {
		h.kill(false)
		s.sleep(f.lasts)
		h.start()
	} else {
		h.setAsleep(true)
		schedule.Stop(h.group, f.lasts)
		h.disk.locked(func(d *disk) { d.trouble = time.Now() })
		s.sleep(f.lasts - time.Second)
		for _, other := range s.hosts {
			if node := other.member(); other != h && node != nil {
				s.succeeded("snapshot", node.Snapshots().Create())
			}
		}
		h.disk.locked(func(d *disk) { d.trouble = time.Now() }) // with an earlier hang of the disk the stop may exceed DiskDeadline: the node may exit then
		s.sleep(time.Second)
		h.setAsleep(false)
	}
	return s.giveLead(ctx, h, 3*time.Second)
}
