package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"holdfast/test/sim/schedule"
)

// These faults change the leader while requests are on their way, or let a node lead that was away.

// giveLead tries for a time to transfer the leadership to a host's node, and reports whether that
// node leads.
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

// stallRequests lets the broker hold the requests back for a time. Half of the times the leadership
// goes to another node meanwhile.
func (s *simulation) stallRequests(ctx context.Context, f *fault, to *host) {
	s.broker.stall(requestSession)
	defer s.broker.stall("")
	s.sleep(f.lasts / 2)
	if f.variant%2 == 0 {
		s.giveLead(ctx, to, f.lasts)
	}
	s.sleep(f.lasts / 2)
}

// deafen lets the broker deliver the replies to a client and not acknowledge them, for a time, and
// then kills the leader. The requests of that client, and all that came behind them, are not
// acknowledged until the leader gives the replies up.
func (s *simulation) deafen(f *fault) {
	s.broker.setDeaf(s.clients[f.variant%len(s.clients)].ResponseTopic())
	s.sleep(f.lasts)
	s.broker.setDeaf("")
	if leader := s.leader(); leader != nil { // its connections would wait for ever
		leader.kill(f.silently)
		s.sleep(100 * time.Millisecond)
		leader.start()
	}
}

// expireWithoutLeader leaves the cluster without a leader until the requests of clients expire in
// the broker's queue. One node is stopped meanwhile; it may have read some of them from its socket.
// If the node cannot be stopped, expireWithoutLeader does nothing and returns false.
func (s *simulation) expireWithoutLeader(f *fault, late *host) bool {
	stopped := f.lasts + f.delay
	if late.isAsleep() || !schedule.Replays ||
		stopped > s.tunables.front.SessionExpiry-time.Second {
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
	return true
}

// requestSession is the client id of the session by which requests come.
const requestSession = clusterName + "-ingest"

// ownSession returns the client id of a node's own session.
func ownSession(h *host) string { return clusterName + "-" + h.name + "-in" }

// isolateLeaders slows all traffic with the broker, and cuts off each leader from the other nodes
// shortly after it began to lead, sometimes from the broker as well. What that leader published is
// still above the delivery watermark in the log, so its successor publishes it again. Half of the
// times the old leader leads again before the successor has published everything.
func (s *simulation) isolateLeaders(ctx context.Context, f *fault) {
	const longest = 4 * time.Second // longest wait until another node leads
	random := rand.New(rand.NewPCG(s.seed, uint64(f.variant)))
	for _, h := range s.hosts {
		s.network.slow(link{h.name, "broker", classBroker}, f.delay)
		s.network.slow(link{"broker", h.name, classBroker}, f.delay)
	}
	for until := s.trace.now() +
		f.lasts; s.trace.now() < until; s.sleep(between(random, 10*time.Millisecond,
		600*time.Millisecond)) {
		leader := s.leader()
		if leader == nil {
			continue
		}
		cut := *f
		cut.shape, cut.classes = isolated,
			pick(random, []class{classRaft, classCall}, []class{classRaft, classCall, classBroker})
		links := s.links(&cut, []*host{leader})
		for _, l := range links {
			s.network.link(l).gate.close()
		}
		next := leader
		for deadline := s.trace.now() + longest; s.trace.now() < deadline &&
			(next == nil || next == leader); next = s.leader() {
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

// comeBackToLead keeps a node away, and lets it lead when it is back. With lateNode it is another
// one than the leader, and is killed and started again. With sleepsThrough it is the leader: it is
// stopped until the others have forgotten the outcomes of the requests that it will then read from
// its socket, and have compacted their logs.
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
		// with an earlier hang of the disk the stop may exceed DiskDeadline: the node may exit then
		h.disk.locked(func(d *disk) { d.trouble = time.Now() })
		s.sleep(time.Second)
		h.setAsleep(false)
	}
	return s.giveLead(ctx, h, 3*time.Second)
}
