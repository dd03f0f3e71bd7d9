package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/test/sim/schedule"
)

// injectFaults injects the planned faults, each at its time, and returns when the last one has
// ended.
func (s *simulation) injectFaults() {
	began := s.trace.now()
	var acting sync.WaitGroup
	for i := range s.plan {
		f := &s.plan[i]
		if s.config.without(strconv.Itoa(i + 1)) {
			continue
		}
		s.sleep(began + f.at - s.trace.now())
		acting.Go(func() {
			s.trace.add("FAULT", "begins: %s", f)
			if s.inject(f) {
				s.recordEffect(string(f.kind))
			} else {
				s.trace.add("FAULT", "has no effect: %s", f)
			}
			s.trace.add("FAULT", "has ended: %s", f)
		})
	}
	acting.Wait()
}

// leader returns the host whose node leads, or nil.
func (s *simulation) leader() *host {
	for _, h := range s.hosts {
		if node := h.member(); node != nil && node.Status().Serving {
			return h
		}
	}
	return nil
}

// victims returns the hosts that a fault hits.
func (s *simulation) victims(f *fault) []*host {
	first := s.hosts[f.node]
	if leader := s.leader(); f.leader && leader != nil {
		first = leader
	}
	victims := []*host{first}
	for i := 0; len(victims) <= f.others && i < len(s.hosts); i++ {
		if h := s.hosts[(f.variant+i)%len(s.hosts)]; !slices.Contains(victims, h) {
			victims = append(victims, h)
		}
	}
	return victims
}

// inject does one fault from its beginning to its end, and reports whether it had any effect.
func (s *simulation) inject(f *fault) bool {
	victims := s.victims(f)
	if slices.ContainsFunc(victims, (*host).isAsleep) {
		return false
	}
	switch f.kind {
	case killNodes, powerFailure, killAll, stopNode, pauseNode, wipeNode, flipBit:
		return s.injectProcessFault(f, victims)
	case partition, slowLinks, resetLinks, brokerCut:
		return s.injectLinkFault(f, victims)
	case brokerRestart, brokerAmnesia, brokerBringsBack, brokerSilent, takeSession, takePublishing:
		return s.injectBrokerFault(f, victims[0])
	case diskSlow, diskHangs, diskFails, diskLow:
		return s.injectDiskFault(f, victims[0].disk)
	case clockJump:
		return s.setClocks(f, victims)
	case clientsAway:
		s.disconnectClients(f)
		return true
	default:
		return s.injectLeaderFault(f, victims[0])
	}
}

func (s *simulation) injectProcessFault(f *fault, victims []*host) bool {
	switch f.kind {
	case killAll:
		victims = slices.DeleteFunc(slices.Clone(s.hosts), (*host).isAsleep)
	case stopNode:
		victims[0].shutdown()
		s.sleep(f.lasts)
		victims[0].start()
		return true
	case pauseNode:
		s.pause(f, victims)
		return true
	case wipeNode, flipBit:
		return s.damageDisk(f, victims[0])
	}
	var dying sync.WaitGroup
	for _, h := range victims {
		dying.Go(func() { h.kill(f.kind == powerFailure) })
	}
	dying.Wait()
	s.sleep(f.lasts)
	for _, h := range victims {
		h.start()
	}
	return true
}

// pause stops hosts as SIGSTOP does: nothing comes in, nothing gets out, no write ends, and in a
// binary that can replay a run no goroutine of the node runs.
func (s *simulation) pause(f *fault, victims []*host) {
	for _, h := range victims {
		schedule.Stop(h.group, f.lasts)
		s.network.host(h.name).running.close()
		h.disk.locked(func(d *disk) { d.trouble = time.Now() })
		h.disk.hanging.close()
	}
	s.sleep(f.lasts)
	for _, h := range victims {
		// with another pause it may have been too long
		h.disk.locked(func(d *disk) { d.trouble = time.Now() })
		h.disk.hanging.open()
		s.network.host(h.name).running.open()
	}
}

// healthy reports whether every host runs an undamaged member, and every member's configuration
// lists exactly these members as voters. Then one disk may be lost, even if another voter lags. All
// configurations are checked, because a leader's may be stored nowhere else.
func (s *simulation) healthy() bool {
	if s.leader() == nil {
		return false
	}
	ids := make([]raft.ServerID, len(s.hosts))
	for i, h := range s.hosts {
		h.mu.Lock()
		damaged := h.damaged
		h.mu.Unlock()
		node := h.member()
		if node == nil || damaged || h.isAsleep() {
			return false
		}
		ids[i] = node.ID()
	}
	for _, h := range s.hosts {
		node := h.member()
		if node == nil || !haveVotes(node.Status().Servers, ids) {
			return false
		}
	}
	return true
}

// haveVotes reports whether the servers are those with the ids, and all vote.
func haveVotes(servers []raft.Server, ids []raft.ServerID) bool {
	return len(servers) == len(ids) && !slices.ContainsFunc(servers, func(server raft.Server) bool {
		return server.Suffrage != raft.Voter || !slices.Contains(ids, server.ID)
	})
}

// damageDisk empties a disk, or flips a bit on it. Only one machine at a time may lose data.
func (s *simulation) damageDisk(f *fault, h *host) bool {
	s.damaging.Lock()
	if !s.healthy() {
		s.damaging.Unlock()
		return false
	}
	leader := s.leader()
	h.hold()
	worst := f.kind == wipeNode && f.variant%2 == 0 && leader != nil && leader != h
	if worst { // the others lag, so that the leader and this one alone have the newest entries
		for _, other := range s.hosts {
			if other != h && other != leader {
				schedule.Stop(other.group, 2*time.Second)
			}
		}
		s.sleep(time.Second)
	}
	// a power failure may leave the end mark behind: two faults at once
	h.kill(f.silently && f.kind == wipeNode)
	what := "all that it had"
	if f.kind == wipeNode {
		h.wipe()
	} else if what = h.disk.flip(); what != "" {
		h.mu.Lock()
		h.damaged = true
		h.mu.Unlock()
	}
	s.trace.add(h.name, "the disk has lost: %q", what)
	h.release()
	s.damaging.Unlock()
	if worst { // the leader is away for a while, with the only copy of the newest entries
		h.start()
		leader.kill(f.silently)
		s.sleep(f.lasts)
		leader.start()
		return true
	}
	s.sleep(f.lasts / 4)
	h.start()
	return what != ""
}

// directions returns the pairs of nodes, from and to, between which a fault of this shape affects
// the traffic.
func (s *simulation) directions(f *fault, victims []*host) (pairs [][2]string) {
	names := make([]string, 0, len(s.hosts))
	for _, h := range s.hosts {
		names = append(names, h.name)
	}
	victim := victims[0].name
	other := names[f.variant%len(names)]
	half := names[:len(names)/2]
	for i, from := range names {
		for j, to := range names {
			if i == j {
				continue
			}
			cut := false
			switch f.shape {
			case isolated:
				cut = from == victim || to == victim
			case halves:
				cut = slices.Contains(half, from) != slices.Contains(half, to)
			case bridge:
				cut = slices.Contains(half, from) != slices.Contains(half, to) &&
					from != names[len(names)-1] && to != names[len(names)-1]
			case deaf:
				cut = to == victim
			case mute:
				cut = from == victim
			case ring:
				distance := (i - j + len(names)) % len(names)
				cut = distance > 1 && distance < len(names)-1
			case oneWay:
				cut = from == victim && to == other
			case pairwise:
				cut = from == victim && to == other || from == other && to == victim
			}
			if cut {
				pairs = append(pairs, [2]string{from, to})
			}
		}
	}
	return pairs
}

// links returns the links that a fault cuts or slows.
func (s *simulation) links(f *fault, victims []*host) (links []link) {
	for _, c := range f.classes {
		if c == classBroker {
			for _, h := range victims {
				links = append(links, link{h.name, "broker", c}, link{"broker", h.name, c})
			}
			continue
		}
		for _, pair := range s.directions(f, victims) {
			links = append(links, link{pair[0], pair[1], c})
		}
	}
	if f.kind == brokerCut {
		for _, h := range victims {
			if f.shape != deaf {
				links = append(links, link{h.name, "broker", classBroker})
			}
			if f.shape != mute {
				links = append(links, link{"broker", h.name, classBroker})
			}
		}
	}
	return links
}

func (s *simulation) injectLinkFault(f *fault, victims []*host) bool {
	links := s.links(f, victims)
	if len(links) == 0 && f.kind != resetLinks {
		return false
	}
	switch f.kind {
	case slowLinks:
		for _, l := range links {
			s.network.slow(l, f.delay)
		}
		s.sleep(f.lasts)
		for _, l := range links {
			s.network.slow(l, 0)
		}
	case resetLinks:
		random := rand.New(rand.NewPCG(s.seed, uint64(f.variant)))
		for until := s.trace.now() + f.lasts; s.trace.now() < until; {
			s.network.reset(func(c *conn) bool {
				return slices.Contains(f.classes,
					c.outgoing().class) && random.IntN(4) == 0
			})
			s.sleep(between(random, 50*time.Millisecond, time.Second))
		}
	default:
		s.cut(links, f.lasts)
	}
	return true
}

// unacknowledged is how long a connection between members survives a cut. Then the kernel gives it
// up, because nothing is acknowledged.
const unacknowledged = 3 * time.Second

// cut blocks links for a time.
func (s *simulation) cut(links []link, lasts time.Duration) {
	for _, l := range links {
		s.network.link(l).gate.close()
	}
	s.sleep(min(lasts, unacknowledged))
	if lasts > unacknowledged {
		s.network.reset(func(c *conn) bool {
			there := c.outgoing()
			return there.class != classBroker && slices.Contains(links, there)
		})
		s.sleep(lasts - unacknowledged)
	}
	for _, l := range links {
		s.network.link(l).gate.open()
	}
}

func (s *simulation) injectBrokerFault(f *fault, victim *host) bool {
	switch f.kind {
	case brokerSilent:
		s.network.host("broker").running.close()
		s.sleep(f.lasts)
		s.network.host("broker").running.open()
	case takeSession, takePublishing:
		id := requestSession
		if f.variant%4 == 0 {
			id = ownSession(victim)
		}
		if f.kind == takePublishing {
			id = fmt.Sprintf("%s-out-%d", clusterName,
				f.variant%s.tunables.front.PublishingConnections)
		}
		a, _, err := s.broker.attach(id, f.variant%2 == 0, time.Minute, 100)
		if err != nil {
			return false
		}
		s.sleep(f.lasts / 4)
		s.broker.detach(a)
	default:
		s.restarting.Lock()
		defer s.restarting.Unlock()
		s.broker.stop(f.kind != brokerAmnesia)
		if f.kind == brokerBringsBack {
			s.trace.add("FAULT", "brings %d requests back",
				s.broker.bringBack(requestSession, f.delay))
		}
		s.sleep(f.lasts)
		if err := s.broker.start(); err != nil {
			s.violation("simulation", "the broker does not start: %v", err)
		}
	}
	return true
}

func (s *simulation) injectDiskFault(f *fault, d *disk) bool {
	defer d.locked(func(d *disk) { d.trouble = time.Now() })
	d.locked(func(d *disk) { d.trouble = time.Now() })
	switch f.kind {
	case diskHangs:
		d.hanging.close()
		s.sleep(f.lasts)
		d.hanging.open()
		return true
	case diskFails:
		d.locked(func(d *disk) { d.failing = true })
		s.sleep(f.lasts / 4)
		d.locked(func(d *disk) { d.failing = false })
	case diskLow:
		d.locked(func(d *disk) { d.low = true })
		s.sleep(f.lasts)
		d.locked(func(d *disk) { d.low = false })
	default:
		d.locked(func(d *disk) { d.latency = f.delay })
		s.sleep(f.lasts)
		d.locked(func(d *disk) { d.latency = s.tunables.diskLatency })
	}
	return true
}

// clockSeen bounds the time until leaders know the clocks of all nodes that can answer, after a
// clock was set.
const clockSeen = 3 * time.Second

// resetClocks sets all clocks to the true time, and reports whether leaders have surely polled all
// nodes for their clocks since. If a node is away, they still use its last answer.
func (s *simulation) resetClocks() bool {
	for _, h := range s.hosts {
		h.offset.Store(0)
	}
	there := func() bool {
		return !slices.ContainsFunc(s.hosts,
			func(h *host) bool { return h.member() == nil || h.isAsleep() })
	}
	before := there()
	s.sleep(clockSeen)
	return before && there()
}

// setClocks sets the clocks of the victims. Unless the seed has drawn clockWild, at most one clock
// is wrong at any time.
func (s *simulation) setClocks(f *fault, victims []*host) bool {
	if !s.tunables.clockWild {
		s.clockLock.Lock()
		defer s.clockLock.Unlock()
		if !s.resetClocks() {
			return false
		}
	}
	for _, h := range victims {
		h.offset.Store(f.offset.Milliseconds())
	}
	s.sleep(f.lasts)
	if f.variant%2 == 0 {
		for _, h := range victims {
			h.offset.Store(0)
		}
	}
	return true
}

func (s *simulation) disconnectClients(f *fault) {
	var away sync.WaitGroup
	for i, c := range s.clients {
		if (f.variant>>(i%12))&3 == 0 {
			away.Go(func() { c.disconnect(f.lasts) })
		}
	}
	away.Wait()
}
