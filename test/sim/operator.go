package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster"
	"holdfast/cluster/offer"
	"holdfast/cluster/peer"
	"holdfast/fsm"
	"holdfast/internal/policy"
	"holdfast/test/sim/schedule"
)

// injectLeaderFault injects the faults that need a leader: what operators do, and faults that are
// aimed at leaders.
func (s *simulation) injectLeaderFault(f *fault, victim *host) bool {
	leader := s.leader()
	if leader == nil {
		return false
	}
	node := leader.member()
	if node == nil {
		return false
	}
	if victim == leader && (f.kind == demoteMember || f.kind == removeMember) {
		// a leader would transfer the leadership first, and would have to be asked again
		victim = s.hosts[(slices.Index(s.hosts, leader)+1)%len(s.hosts)]
	}
	ctx, cancel := context.WithTimeout(context.Background(), f.lasts+5*time.Second)
	defer cancel()
	switch f.kind {
	case transferLeader:
		return s.transfer(ctx, f, leader, node)
	case deposeLeader:
		return s.deposeAll(ctx, f)
	case stoppedWhenElected, stoppedWhenDialling:
		return s.trap(ctx, f, leader)
	case laggingBroker:
		s.lag(ctx, f)
	case deafBroker:
		s.deafen(f)
	case stallRequests:
		s.stallRequests(ctx, f, victim)
	case cutLeaders:
		s.isolateLeaders(ctx, f)
	case sleepsThrough, lateNode:
		if f.kind == sleepsThrough {
			victim = leader // it has requests in its socket
		} else if victim == leader {
			victim = s.hosts[(slices.Index(s.hosts, leader)+1)%len(s.hosts)]
		}
		return s.comeBackToLead(ctx, f, victim)
	case expireUnled:
		return s.expireWithoutLeader(f, leader)
	case rollIdentity:
		s.rollIdentity(f)
	case demoteAndJump:
		return s.demoteAndJump(f)
	case flapLeader:
		s.flap(ctx, f)
	case snapshotStorm:
		for range 3 {
			for _, h := range s.hosts {
				if member := h.member(); member != nil {
					s.succeeded("snapshot", member.Snapshots().Create())
				}
			}
			s.sleep(f.lasts / 3)
		}
	case changeSettings:
		s.changeSettings(f, victim)
	case demoteMember:
		if !s.succeeded("demote", node.Membership().Demote(ctx, victim.name)) {
			return false
		}
		s.sleep(f.lasts)
		s.promote(ctx, victim)
	case removeMember:
		return s.removeMember(ctx, node, victim)
	}
	return true
}

// transfer transfers the leadership. Sometimes it stops the target meanwhile, so that the transfer
// fails and the leader goes on.
func (s *simulation) transfer(ctx context.Context, f *fault, leader *host,
	node *cluster.Node,
) bool {
	target := s.hosts[f.node]
	if f.variant%3 > 0 || target == leader {
		return s.succeeded("transfer", node.Membership().Transfer(ctx, ""))
	}
	const stopped = 1500 * time.Millisecond
	schedule.StopAfter(target.group, 1+uint64(f.variant>>4)%512, stopped)
	s.succeeded("transfer", node.Membership().Transfer(ctx, target.name))
	return true
}

// flap transfers the leadership again and again, sometimes straight back. One goroutine of the
// leader may be slow meanwhile: it may do its next step only when the node leads again.
func (s *simulation) flap(ctx context.Context, f *fault) {
	const patience = 200 * time.Millisecond
	random := rand.New(rand.NewPCG(s.seed, uint64(f.variant)))
	for until := s.trace.now() + f.lasts; s.trace.now() < until; s.sleep(time.Second / 2) {
		leader := s.leader()
		if leader == nil {
			continue
		}
		node := leader.member()
		s.traps.set(&fault{
			kind: flapLeader, points: 1 + random.Uint64N(1<<random.IntN(8)),
			delay: between(random, 10*time.Millisecond, 400*time.Millisecond),
		})
		if random.IntN(2) == 0 {
			schedule.DelayAfter(leader.group, 1+random.Uint64N(1<<random.IntN(12)),
				between(random, 50*time.Millisecond, 2*time.Second))
		}
		if node == nil || !s.succeeded("transfer", node.Membership().Transfer(ctx, "")) ||
			f.variant%2 == 0 {
			continue
		}
		for deadline := s.trace.now() +
			patience; s.trace.now() < deadline; s.sleep(time.Millisecond) {
			if s.transferBack(ctx, leader) {
				break
			}
		}
	}
	s.traps.endFlapping()
}

// lag delays the traffic between nodes and broker, and changes the leader again and again
// meanwhile. So each leader ends with many replies and notifications unpublished, and with many
// requests that it has not acknowledged.
func (s *simulation) lag(ctx context.Context, f *fault) {
	random := rand.New(rand.NewPCG(s.seed, uint64(f.variant)))
	var slowed []link
	for _, h := range s.hosts {
		if f.variant%3 == 0 && h != s.hosts[f.node] {
			continue // only the link of node f.node is slow
		}
		slowed = append(slowed, link{h.name, "broker", classBroker},
			link{"broker", h.name, classBroker})
	}
	for _, l := range slowed {
		s.network.slow(l, f.delay)
	}
	for until := s.trace.now() +
		f.lasts; s.trace.now() < until; s.sleep(between(random, 300*time.Millisecond,
		2*time.Second)) {
		leader := s.leader()
		if leader == nil {
			continue
		}
		switch node := leader.member(); random.IntN(3) {
		case 0:
			if node != nil {
				s.succeeded("transfer", node.Membership().Transfer(ctx, ""))
			}
		case 1:
			schedule.Stop(leader.group, between(random, time.Second, 2900*time.Millisecond))
			s.sleep(time.Second)
		default:
			leader.kill(f.silently)
			s.sleep(between(random, 0, 300*time.Millisecond))
			leader.start()
		}
	}
	for _, l := range slowed {
		s.network.slow(l, 0)
	}
}

// transferBack makes the new leader transfer the leadership to a host's node, perhaps before it
// serves. It reports whether that worked.
func (s *simulation) transferBack(ctx context.Context, to *host) bool {
	for _, h := range s.hosts {
		if node := h.member(); h != to && node != nil && node.Status().Role == "leader" {
			return s.succeeded("transfer back", node.Membership().Transfer(ctx, to.name))
		}
	}
	return false
}

// deposeAll deposes three leaders, one after the other. A deposed leader can wrongly confirm its
// leadership during a short window only, so one attempt is not enough.
func (s *simulation) deposeAll(ctx context.Context, f *fault) (deposed bool) {
	const leaders = 3
	for range leaders {
		leader := s.leader()
		if leader == nil {
			s.sleep(f.delay)
			continue
		}
		if node := leader.member(); node != nil && s.depose(ctx, f, leader, node) {
			deposed = true
		}
	}
	return deposed
}

// depose makes another node the leader, and lets the old leader learn of it late. Raft's messages
// from the others to the old leader are slow, but not so slow that it gives up by itself. Its link
// with the broker is slow, too, and mostly it has just lost its connections to the broker.
func (s *simulation) depose(ctx context.Context, f *fault, leader *host, node *cluster.Node) bool {
	slowed := append(s.links(f, []*host{leader}), link{leader.name, "broker", classBroker},
		link{"broker", leader.name, classBroker})
	for _, l := range slowed {
		delay := f.delay * 2 / 3 // network.drawLatency draws 0.5 to 1.5 times this
		if l.class == classBroker {
			delay = f.delay / 10
		}
		s.network.slow(l, delay)
	}
	if f.variant%3 > 0 {
		s.network.reset(func(c *conn) bool {
			l := c.outgoing()
			return l.class == classBroker &&
				l.from == leader.name
		})
	}
	s.sleep(f.offset)
	deposed := s.succeeded("transfer", node.Membership().Transfer(ctx, ""))
	s.sleep(f.lasts)
	for _, l := range slowed {
		s.network.slow(l, 0)
	}
	return deposed
}

func (s *simulation) succeeded(what string, err error) bool {
	if err != nil {
		s.trace.add("OPERATOR", "%s: %v", what, err)
	}
	return err == nil
}

func (s *simulation) removeMember(ctx context.Context, node *cluster.Node, victim *host) bool {
	s.damaging.Lock()
	defer s.damaging.Unlock()
	if !s.healthy() {
		return false
	}
	mark := func(removed bool) {
		victim.mu.Lock()
		defer victim.mu.Unlock()
		victim.removed = removed
	}
	mark(true)
	err := node.Membership().Remove(ctx, victim.name)
	if errors.Is(err, peer.ErrRefused) || errors.Is(err, peer.ErrNotLeader) ||
		errors.Is(err, peer.ErrNotDone) {
		mark(false)
	}
	return s.succeeded("remove", err)
}

// promote makes a member a voter again.
func (s *simulation) promote(ctx context.Context, h *host) {
	leader := s.leader()
	if leader == nil {
		return
	}
	if node := leader.member(); node != nil {
		s.succeeded("promote", node.Membership().Add(ctx, raft.ServerAddress(h.address()), true))
	}
}

// rollIdentity changes the setting that says from where nodes take a client's id. It restarts one
// node after the other with it. Meanwhile nodes with either setting may lead.
func (s *simulation) rollIdentity(f *fault) {
	for i := range s.hosts {
		h := s.hosts[(f.node+i)%len(s.hosts)]
		if h.isAsleep() {
			continue
		}
		h.mu.Lock()
		h.stamped = !h.stamped
		h.mu.Unlock()
		h.shutdown()
		h.start()
		s.sleep(f.lasts / time.Duration(len(s.hosts)))
	}
}

// demoteAndJump sets the clock of one machine wrong while few other voters are left, sometimes only
// the leader. The cluster clock must not follow the wrong clock.
func (s *simulation) demoteAndJump(f *fault) bool {
	wrong := s.hosts[f.node]
	if !s.tunables.clockWild {
		s.clockLock.Lock()
		defer s.clockLock.Unlock()
		defer wrong.offset.Store(0)
		if !s.resetClocks() {
			return false
		}
	}
	leader := s.leader()
	if leader == nil {
		return false
	}
	var demoted []*host
	for i := range s.hosts {
		h := s.hosts[(f.variant+i)%len(s.hosts)]
		if len(demoted) < f.others && h != leader && (h != wrong || f.silently) &&
			s.asLeader("demote",
				func(ctx context.Context,
					node *cluster.Node,
				) error {
					return node.Membership().Demote(ctx, h.name)
				}) {
			demoted = append(demoted, h)
		}
	}
	wrong.offset.Store(f.offset.Milliseconds())
	slowed := link{
		s.hosts[(f.node+1)%len(s.hosts)].name, s.hosts[(f.node+2)%len(s.hosts)].name,
		classCall,
	}
	s.network.slow(slowed, f.delay)
	s.sleep(f.lasts / 2)
	// the next leader has to poll the clocks anew
	s.asLeader("transfer", func(ctx context.Context,
		node *cluster.Node,
	) error {
		return node.Membership().Transfer(ctx, "")
	})
	s.sleep(f.lasts / 2)
	s.network.slow(slowed, 0)
	for _, h := range demoted {
		for until := s.trace.now() + clockSeen; s.trace.now() < until &&
			!s.asLeader("promote", func(ctx context.Context, node *cluster.Node) error {
				return node.Membership().Add(ctx, raft.ServerAddress(h.address()), true)
			}); s.sleep(100 * time.Millisecond) {
		}
	}
	return len(demoted) > 0
}

// asLeader does something at the node that leads, if there is one, and reports whether it worked.
func (s *simulation) asLeader(what string, do func(context.Context, *cluster.Node) error) bool {
	leader := s.leader()
	if leader == nil {
		return false
	}
	node := leader.member()
	if node == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return s.succeeded(what, do(ctx, node))
}

// changeSettings offers other settings on one node for a time: limits, mirrors, or a policy that
// denies the guest everything.
func (s *simulation) changeSettings(f *fault, h *host) {
	node := h.member()
	if node == nil {
		return
	}
	wanted := offer.Offer{Settings: s.tunables.offer, KeepPolicy: true}
	switch f.variant % 4 {
	case 3:
		wanted.Settings.Mirrors = append([]fsm.Mirror{{Keys: "r/*", Topic: mirrorTopics +
			"other/"}}, wanted.Settings.Mirrors...)
	case 0:
		wanted.Settings.Limits.Watches += int64(1 + f.variant%7)
	case 1:
		wanted.Settings.Limits.DedupEntries += int64(f.variant % 50)
	default:
		shut, err := policy.Compile([]policy.Rule{{
			ClientIDs: []string{"[a-f]*", "[h-z]*"},
			Resources: []policy.Resource{{Access: policy.ReadWrite, Keys: []string{"*"}}},
		}})
		if err != nil {
			s.violation("simulation", "the policy does not compile: %v", err)
			return
		}
		wanted.Settings.Policy, wanted.KeepPolicy = shut, false
	}
	node.SetOffer(wanted)
	s.sleep(f.lasts)
	if node = h.member(); node != nil {
		node.SetOffer(offer.Offer{Settings: s.tunables.offer})
	}
}
