package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"holdfast/cluster/peer"
	"holdfast/cluster/raftlog"
)

// stabilization is how long a new member has to be healthy before it votes.
const stabilization = 2 * time.Second

// pilot makes non-voters voters when they have caught up: raft-autopilot, with what it needs to know of the members. It runs
// on the leader. It removes nobody: a member that is away may come back.
type pilot struct {
	config  autopilot.Config
	servers func() []raft.Server
	// isSelf and answers report whether a member is this node, and whether it answered the last poll.
	isSelf, answers func(raft.ServerID) bool
	// poll asks all members, this one included.
	poll   func(ctx context.Context) map[raft.ServerID]peer.Answer
	health func(*autopilot.State)
}

// runAutopilot runs until the context ends.
func (n *Node) runAutopilot(ctx context.Context) error {
	p := pilot{
		config: autopilot.Config{
			LastContactThreshold: max(peer.PollInterval, 2*n.config.Timing.Heartbeat), MaxTrailingLogs: 2 * n.config.TrailingEntries,
			ServerStabilizationTime: stabilization,
		},
		servers: n.servers,
		isSelf:  func(id raft.ServerID) bool { return id == n.config.ID },
		answers: func(id raft.ServerID) bool { _, ok := n.peers.Of(id); return ok },
		poll: func(ctx context.Context) map[raft.ServerID]peer.Answer {
			answered := n.peers.Poll(ctx, peer.PollInterval)
			answered[n.config.ID] = peer.Answer{Status: n.ownStatus()}
			return answered
		},
		health: n.health.Store,
	}
	runner := autopilot.New(pilotRaft{n.raft, n.pinnedNonVoter}, p,
		autopilot.WithLogger(raftlog.Logger(n.world.Log)), autopilot.WithPromoter(&promoter{pinned: n.pinnedNonVoter}),
		autopilot.WithUpdateInterval(peer.PollInterval), autopilot.WithReconcileInterval(peer.PollInterval))
	runner.Start(ctx)
	<-ctx.Done()
	<-runner.Stop()
	return nil
}

// pilotRaft makes a voter only of who is a non-voter at that moment: autopilot's own picture is a second old, and a member that
// was removed or demoted meanwhile would come back.
type pilotRaft struct {
	*raft.Raft
	pinned func(raft.ServerID) bool // to stay a non-voter
}

// AddVoter implements autopilot.Raft.
func (r pilotRaft) AddVoter(id raft.ServerID, address raft.ServerAddress, _ uint64, timeout time.Duration) raft.IndexFuture {
	future := r.GetConfiguration()
	if err := future.Error(); err != nil {
		return refusedChange{err}
	}
	server, member := peer.Find(future.Configuration().Servers, id)
	if !member || server.Suffrage != raft.Nonvoter || r.pinned(id) {
		return refusedChange{fmt.Errorf("%w: %s is not to be made a voter any more", peer.ErrRefused, id)}
	}
	return r.Raft.AddVoter(id, address, future.Index(), timeout)
}

// refusedChange is a change that was not made.
type refusedChange struct{ err error }

// Error implements raft.Future.
func (f refusedChange) Error() error { return f.err }

// Index implements raft.IndexFuture.
func (refusedChange) Index() uint64 { return 0 }

// AutopilotConfig implements autopilot.ApplicationIntegration.
func (p pilot) AutopilotConfig() *autopilot.Config {
	config := p.config
	return &config
}

// NotifyState implements autopilot.ApplicationIntegration.
func (p pilot) NotifyState(state *autopilot.State) { p.health(state) }

// FetchServerStats implements autopilot.ApplicationIntegration.
func (p pilot) FetchServerStats(ctx context.Context, _ map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	answered := p.poll(ctx)
	stats := make(map[raft.ServerID]*autopilot.ServerStats, len(answered))
	for id := range answered {
		stats[id] = &autopilot.ServerStats{
			LastContact: answered[id].Contact, LastTerm: answered[id].LastTerm, LastIndex: answered[id].LastIndex,
		}
	}
	return stats
}

// KnownServers implements autopilot.ApplicationIntegration.
func (p pilot) KnownServers() map[raft.ServerID]*autopilot.Server {
	known := make(map[raft.ServerID]*autopilot.Server)
	for _, server := range p.servers() {
		status := autopilot.NodeFailed
		if p.isSelf(server.ID) || p.answers(server.ID) {
			status = autopilot.NodeAlive
		}
		known[server.ID] = &autopilot.Server{
			ID: server.ID, Name: peer.NodeName(server.ID), Address: server.Address, NodeStatus: status, RaftVersion: raft.ProtocolVersionMax,
			IsLeader: p.isSelf(server.ID),
		}
	}
	return known
}

// RemoveFailedServer implements autopilot.ApplicationIntegration. It is never called: see AutopilotConfig.
func (pilot) RemoveFailedServer(*autopilot.Server) {}

// promoter leaves alone who is to stay a non-voter.
type promoter struct {
	autopilot.StablePromoter
	pinned func(raft.ServerID) bool
}

// CalculatePromotionsAndDemotions implements autopilot.Promoter.
func (p *promoter) CalculatePromotionsAndDemotions(config *autopilot.Config, state *autopilot.State) autopilot.RaftChanges {
	changes := p.StablePromoter.CalculatePromotionsAndDemotions(config, state)
	changes.Promotions = slices.DeleteFunc(changes.Promotions, p.pinned)
	return changes
}

// Health is the cluster's as the leader's autopilot sees it.
type Health struct {
	Healthy          bool           `json:"healthy"`
	FailureTolerance int            `json:"failureTolerance"` // voters that may fail without a loss of quorum
	Leader           raft.ServerID  `json:"leader"`
	Members          []MemberHealth `json:"members"`
}

// MemberHealth is one member's.
type MemberHealth struct {
	Node        string        `json:"node"`
	ID          raft.ServerID `json:"id"`
	State       string        `json:"state"`
	Healthy     bool          `json:"healthy"`
	StableSince time.Time     `json:"stableSince"`
	LastContact string        `json:"lastContact"`
	LastIndex   uint64        `json:"lastIndex"`
	// Version is what the member can apply, 0 when it is not known.
	Version         uint32 `json:"version"`
	BrokerConnected bool   `json:"brokerConnected"`
	KeptNonVoter    bool   `json:"keptNonVoter"` // by an operator's word
}

// Health returns what autopilot found last. The error is ErrNotLeader on any other node than the leader.
func (n *Node) Health(ctx context.Context) (Health, error) {
	if err := n.Confirm(ctx); err != nil {
		return Health{}, err
	}
	state := n.health.Load()
	if state == nil {
		return Health{Leader: n.config.ID, Members: []MemberHealth{}}, nil
	}
	health := Health{Healthy: state.Healthy, FailureTolerance: state.FailureTolerance, Leader: state.Leader, Members: []MemberHealth{}}
	for id, server := range state.Servers {
		described, _ := n.peers.Of(id)
		if id == n.config.ID {
			described = n.ownStatus()
		}
		health.Members = append(health.Members, MemberHealth{
			Node: peer.NodeName(id), ID: id, State: string(server.State), Healthy: server.Health.Healthy,
			StableSince: server.Health.StableSince, LastContact: server.Stats.LastContact.String(), LastIndex: server.Stats.LastIndex,
			Version: described.Version, BrokerConnected: described.BrokerUp, KeptNonVoter: n.pinnedNonVoter(id),
		})
	}
	slices.SortFunc(health.Members, func(a, b MemberHealth) int { return peer.CompareNames(a.Node, b.Node) })
	return health, nil
}
