package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster"
	"holdfast/internal/policy"
)

// actOnCluster does what an operator does.
func (s *simulation) actOnCluster(f *fault, victim *host) bool {
	leader := s.leader()
	if leader == nil {
		return false
	}
	node := leader.member()
	if node == nil {
		return false
	}
	if victim == leader && (f.kind == demoteMember || f.kind == removeMember) {
		victim = s.hosts[(slices.Index(s.hosts, leader)+1)%len(s.hosts)] // the leader hands over and has to be asked again
	}
	ctx, cancel := context.WithTimeout(context.Background(), f.lasts+5*time.Second)
	defer cancel()
	switch f.kind {
	case transferLeader:
		return s.done("transfer", node.HandOver(ctx, ""))
	case deposeLeader:
		return s.depose(ctx, f, leader, node)
	case flapLeader:
		s.flap(ctx, f)
	case snapshotStorm:
		for range 3 {
			for _, h := range s.hosts {
				if member := h.member(); member != nil {
					s.done("snapshot", member.TakeSnapshot())
				}
			}
			s.sleep(f.lasts / 3)
		}
	case changeSettings:
		s.changeSettings(f, victim)
	case demoteMember:
		if !s.done("demote", node.Demote(ctx, victim.name)) {
			return false
		}
		s.sleep(f.lasts)
		s.promote(ctx, victim)
	case removeMember:
		return s.removeMember(ctx, node, victim)
	}
	return true
}

// flap hands the leadership over again and again, at some times straight back.
func (s *simulation) flap(ctx context.Context, f *fault) {
	const patience = 200 * time.Millisecond
	for until := s.trace.now() + f.lasts; s.trace.now() < until; s.sleep(time.Second / 2) {
		leader := s.leader()
		if leader == nil {
			continue
		}
		node := leader.member()
		if node == nil || !s.done("transfer", node.HandOver(ctx, "")) || f.variant%2 == 0 {
			continue
		}
		for given := s.trace.now() + patience; s.trace.now() < given; s.sleep(time.Millisecond) {
			if s.handBack(ctx, leader) {
				break
			}
		}
	}
}

// handBack lets whoever leads hand over to a host's node, before it serves perhaps, and reports whether anybody did.
func (s *simulation) handBack(ctx context.Context, to *host) bool {
	for _, h := range s.hosts {
		if node := h.member(); h != to && node != nil && node.Status().Role == "leader" {
			return s.done("transfer back", node.HandOver(ctx, to.name))
		}
	}
	return false
}

// depose makes another node the leader, and lets the old one know late: what the others say to it is slow, though not so slow that it
// gives up by itself, and so is its way to the broker, to which it has just lost its connections.
func (s *simulation) depose(ctx context.Context, f *fault, leader *host, node *cluster.Node) bool {
	slowed := append(s.links(f, []*host{leader}), link{leader.name, "broker", classBroker}, link{"broker", leader.name, classBroker})
	for _, l := range slowed {
		delay := f.delay * 2 / 3 // and up to as much again
		if l.class == classBroker {
			delay = f.delay / 10
		}
		s.network.slow(l, delay)
	}
	if f.variant%3 > 0 {
		s.network.reset(func(c *conn) bool { l := c.outgoing(); return l.class == classBroker && l.from == leader.name })
	}
	s.sleep(f.offset)
	deposed := s.done("transfer", node.HandOver(ctx, ""))
	s.sleep(f.lasts)
	for _, l := range slowed {
		s.network.slow(l, 0)
	}
	return deposed
}

func (s *simulation) done(what string, err error) bool {
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
	err := node.RemoveMember(ctx, victim.name)
	if errors.Is(err, cluster.ErrRefused) || errors.Is(err, cluster.ErrNotLeader) || errors.Is(err, cluster.ErrNotDone) {
		mark(false)
	}
	return s.done("remove", err)
}

// promote makes a member a voter again.
func (s *simulation) promote(ctx context.Context, h *host) {
	leader := s.leader()
	if leader == nil {
		return
	}
	if node := leader.member(); node != nil {
		s.done("promote", node.AddMember(ctx, raft.ServerAddress(h.address()), true))
	}
}

// changeSettings offers other settings on one node for a time: limits, or a policy that shuts a guest out.
func (s *simulation) changeSettings(f *fault, h *host) {
	node := h.member()
	if node == nil {
		return
	}
	offer := cluster.Offer{Settings: s.tunables.offer, KeepPolicy: true}
	switch f.variant % 3 {
	case 0:
		offer.Settings.Limits.Watches += int64(1 + f.variant%7)
	case 1:
		offer.Settings.Limits.DedupEntries += int64(f.variant % 50)
	default:
		shut, err := policy.Compile([]policy.Rule{{
			ClientIDs: []string{"[a-f]*", "[h-z]*"},
			Resources: []policy.Resource{{Access: policy.ReadWrite, Keys: []string{"*"}}},
		}})
		if err != nil {
			s.violation("simulation", "the policy does not compile: %v", err)
			return
		}
		offer.Settings.Policy, offer.KeepPolicy = shut, false
	}
	node.SetOffer(offer)
	s.sleep(f.lasts)
	if node = h.member(); node != nil {
		node.SetOffer(cluster.Offer{Settings: s.tunables.offer})
	}
}
