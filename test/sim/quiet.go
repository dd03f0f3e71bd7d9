package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster"
)

// watchBounds checks each second that no node exceeds the limits of its settings, until stop is
// closed.
func (s *simulation) watchBounds(stop <-chan struct{}) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	// The most that changeSettings adds to the limits.
	const moreWatches, moreOutcomes = 7, 50
	limits := &s.tunables.offer.Limits
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		for _, h := range s.hosts {
			status, ok := h.state()
			p := h.running()
			if !ok || p == nil {
				continue
			}
			for _, bound := range []struct {
				name         string
				value, limit int64
			}{
				{"outcomes remembered", int64(status.Remembered), limits.DedupEntries +
					moreOutcomes},
				{"watches", int64(status.Watches), limits.Watches + moreWatches},
				{
					"unpublished notifications", int64(status.Unpublished),
					limits.UnpublishedNotifications,
				},
				{
					"requests under way",
					int64(gathered(p.registry, "holdfast_requests_under_way", "")),
					int64(s.tunables.front.Executing),
				},
			} {
				if bound.value > bound.limit {
					s.violation("bounds", "%s: %d %s, more than %d", h.name, bound.value,
						bound.name, bound.limit)
				}
			}
		}
	}
}

// gathered returns the sum over the series of a metric. If label is not empty, only series with
// that label value count.
func gathered(registry *prometheus.Registry, name, label string) (sum float64) {
	families, err := registry.Gather()
	if err != nil {
		return 0 // it never fails for what the product registers
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			matches := label == ""
			for _, pair := range metric.GetLabel() {
				matches = matches || pair.GetValue() == label
			}
			if matches {
				sum += metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// metric returns the sum of a metric over all processes that ever ran.
func (s *simulation) metric(name, label string) (sum float64) {
	for _, registry := range s.registries {
		sum += gathered(registry, name, label)
	}
	return sum
}

// converge waits until all nodes are members that vote, and all replicas are the same.
func (s *simulation) converge() {
	const patience = 60 * time.Second
	if apart := s.until(patience, 500*time.Millisecond, s.promoteAndCompare); apart != "" {
		s.violation("convergence", "after %v: %s", patience, apart)
		return
	}
	s.trace.add("OPERATOR", "all nodes vote, and all replicas are compared")
}

// until calls wrong at intervals until it returns "", which means that nothing is wrong, or until
// patience has passed. It returns the last answer.
func (s *simulation) until(patience, interval time.Duration, wrong func() string) (last string) {
	for began := s.trace.now(); s.trace.now()-began < patience; s.sleep(interval) {
		if last = wrong(); last == "" {
			return ""
		}
	}
	return last
}

// leadingMember returns the member that leads, or why there is none.
func (s *simulation) leadingMember() (node *cluster.Node, missing string) {
	leader := s.leader()
	if leader == nil {
		return nil, "there is no leader"
	}
	if node = leader.member(); node == nil {
		return nil, "the leader has just ended"
	}
	return node, ""
}

// promoteAndCompare returns why the cluster has not converged yet, or "" if it has. It promotes a
// member that does not vote. If replicas differ at one index, it records a violation and returns
// "", so that converge does not wait.
func (s *simulation) promoteAndCompare() string {
	node, missing := s.leadingMember()
	if missing != "" {
		return missing
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	servers := node.Status().Servers
	if len(servers) != len(s.hosts) {
		return fmt.Sprintf("there are %d members: %v", len(servers), servers)
	}
	for _, server := range servers {
		if server.Suffrage == raft.Voter {
			continue
		}
		for _, h := range s.hosts {
			if member := h.member(); member != nil && member.ID() == server.ID {
				s.promote(ctx, h)
			}
		}
		return fmt.Sprintf("%s does not vote", server.ID)
	}
	verification, err := node.Verify(ctx)
	switch {
	case err != nil:
		return err.Error()
	case !verification.Complete:
		return fmt.Sprintf("not all replicas tell their hash: %v", verification.Hashes)
	case !verification.Agree:
		s.violation("replicas differ", "at %d: %v", verification.Index, verification.Hashes)
	}
	return ""
}

// finalReads reads all keys that were ever written. The checkers then find acknowledged values that
// are missing, and expired values that are still there.
func (s *simulation) finalReads(c *client) {
	const longestLife = 4 * time.Second
	s.sleep(2 * longestLife)
	unanswered := c.ReadAll()
	for _, o := range unanswered {
		s.violation("recovery", "a read at the end was not answered: %s", o)
	}
	s.sleep(3 * time.Second) // for what is still on its way to the clients
}
