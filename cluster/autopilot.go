package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"holdfast/cluster/peer"
	"holdfast/cluster/raftlog"
)

// stabilizationTime is how long a non-voter must be healthy before autopilot promotes it. In the
// first two seconds of a leadership autopilot does not apply it, and promotes a non-voter as soon
// as it is healthy.
const stabilizationTime = 2 * time.Second

// autopilotRunner runs raft-autopilot on the leader, and tells it the state of the members.
// Autopilot promotes non-voters that have caught up. It removes no member: one that does not answer
// may come back.
type autopilotRunner struct {
	config  autopilot.Config
	raft    *raft.Raft
	id      raft.ServerID        // of this member
	servers func() []raft.Server // all members
	// reports whether an operator has pinned the member as a non-voter
	pinned func(raft.ServerID) bool
	status func() peer.Status // of this member
	peers  *peer.Statuses
	log    *slog.Logger
	// autopilot's latest state in this leadership; nil before the first
	state atomic.Pointer[autopilot.State]
}

// autopilotConfig returns the limits by which autopilot judges a member.
func autopilotConfig(timing Timing, trailingEntries uint64) autopilot.Config {
	return autopilot.Config{
		LastContactThreshold: max(peer.PollInterval, 2*timing.Heartbeat),
		MaxTrailingLogs:      2 * trailingEntries, ServerStabilizationTime: stabilizationTime,
	}
}

// run runs until the context ends.
func (p *autopilotRunner) run(ctx context.Context) error {
	defer p.state.Store(nil) // health must not show the state of a past leadership
	runner := autopilot.New(autopilotRaft{p.raft, p.pinned}, p,
		autopilot.WithLogger(raftlog.Logger(p.log)),
		autopilot.WithPromoter(&promoter{pinned: p.pinned}),
		autopilot.WithUpdateInterval(peer.PollInterval),
		autopilot.WithReconcileInterval(peer.PollInterval))
	runner.Start(ctx)
	<-ctx.Done()
	<-runner.Stop()
	return nil
}

// autopilotRaft promotes a server only if it is an unpinned non-voter in the current configuration,
// and uses the address of the configuration. Autopilot's state may be a second old, and AddVoter
// would add a removed member again, or put an old address back.
type autopilotRaft struct {
	*raft.Raft
	pinned func(raft.ServerID) bool // reports whether an operator pinned the member as a non-voter
}

// AddVoter implements autopilot.Raft.
func (r autopilotRaft) AddVoter(id raft.ServerID, _ raft.ServerAddress, _ uint64,
	timeout time.Duration,
) raft.IndexFuture {
	future := r.GetConfiguration()
	if err := future.Error(); err != nil {
		return refusedChange{err}
	}
	server, member := peer.Find(future.Configuration().Servers, id)
	if !member || server.Suffrage != raft.Nonvoter || r.pinned(id) {
		return refusedChange{fmt.Errorf("%w: %s is no longer a promotable non-voter",
			peer.ErrRefused, id)}
	}
	return r.Raft.AddVoter(id, server.Address, future.Index(), timeout)
}

// refusedChange is the result of a membership change that was not given to raft.
type refusedChange struct{ err error }

// Error implements raft.Future.
func (f refusedChange) Error() error { return f.err }

// Index implements raft.IndexFuture.
func (refusedChange) Index() uint64 { return 0 }

// AutopilotConfig implements autopilot.ApplicationIntegration.
func (p *autopilotRunner) AutopilotConfig() *autopilot.Config {
	config := p.config
	return &config
}

// NotifyState implements autopilot.ApplicationIntegration.
func (p *autopilotRunner) NotifyState(state *autopilot.State) { p.state.Store(state) }

// FetchServerStats implements autopilot.ApplicationIntegration.
func (p *autopilotRunner) FetchServerStats(ctx context.Context,
	_ map[raft.ServerID]*autopilot.Server,
) map[raft.ServerID]*autopilot.ServerStats {
	// autopilot ends ctx after half of its update interval
	answered := p.peers.Poll(ctx, peer.PollInterval)
	answered[p.id] = peer.Answer{Status: p.status()}
	stats := make(map[raft.ServerID]*autopilot.ServerStats, len(answered))
	for id := range answered {
		stats[id] = &autopilot.ServerStats{
			LastContact: answered[id].Contact, LastTerm: answered[id].LastTerm,
			LastIndex: answered[id].LastIndex,
		}
	}
	return stats
}

// KnownServers implements autopilot.ApplicationIntegration.
func (p *autopilotRunner) KnownServers() map[raft.ServerID]*autopilot.Server {
	known := make(map[raft.ServerID]*autopilot.Server)
	for _, server := range p.servers() {
		isSelf, status := server.ID == p.id, autopilot.NodeFailed
		if _, answers := p.peers.Of(server.ID); isSelf || answers {
			status = autopilot.NodeAlive
		}
		known[server.ID] = &autopilot.Server{
			ID: server.ID, Name: peer.NodeName(server.ID), Address: server.Address,
			NodeStatus: status, RaftVersion: raft.ProtocolVersionMax,
			IsLeader: isSelf,
		}
	}
	return known
}

// RemoveFailedServer implements autopilot.ApplicationIntegration. It is never called:
// autopilotConfig leaves CleanupDeadServers false.
func (*autopilotRunner) RemoveFailedServer(*autopilot.Server) {}

// promoter never promotes a pinned non-voter.
type promoter struct {
	autopilot.StablePromoter
	pinned func(raft.ServerID) bool
}

// CalculatePromotionsAndDemotions implements autopilot.Promoter.
func (p *promoter) CalculatePromotionsAndDemotions(config *autopilot.Config,
	state *autopilot.State,
) autopilot.RaftChanges {
	changes := p.StablePromoter.CalculatePromotionsAndDemotions(config, state)
	changes.Promotions = slices.DeleteFunc(changes.Promotions, p.pinned)
	return changes
}

// Health is the health of the cluster in autopilot's last state.
type Health struct {
	// all members are, and clients are served
	Healthy bool `json:"healthy"`
	// "ok", or why the leader answers no client; only the admin API sets it
	Ready string `json:"ready,omitempty"`
	// voters that may fail without a loss of quorum
	FailureTolerance int            `json:"failureTolerance"`
	Leader           raft.ServerID  `json:"leader"`
	Members          []MemberHealth `json:"members"`
}

// MemberHealth is the health of one member.
type MemberHealth struct {
	Member string        `json:"node"`
	ID     raft.ServerID `json:"id"`
	// leader, voter, non-voter or none: raft-autopilot's words
	State       string    `json:"state"`
	Healthy     bool      `json:"healthy"`
	StableSince time.Time `json:"stableSince"`
	// LastContact is the time since the member last heard from the leader, as time.Duration prints
	// it; negative for never. LastIndex is the index of the last entry in the member's log. Both
	// come from the member's last answer to autopilot in this leadership, and are 0 if there is
	// none.
	LastContact string `json:"lastContact"`
	LastIndex   uint64 `json:"lastIndex"`
	// Version is the newest log version that the member can apply; 0 if it did not answer the last
	// poll.
	Version         uint32 `json:"version"`
	BrokerConnected bool   `json:"brokerConnected"` // also false if it did not answer the last poll
	Pinned          bool   `json:"keptNonVoter"`    // an operator has pinned it as a non-voter
}

// health returns autopilot's latest state. It is called on the leader only: autopilot does not run
// elsewhere.
func (p *autopilotRunner) health() Health {
	state := p.state.Load()
	if state == nil {
		return Health{Leader: p.id, Members: []MemberHealth{}}
	}
	health := Health{
		Healthy: state.Healthy, FailureTolerance: state.FailureTolerance,
		Leader: state.Leader, Members: []MemberHealth{},
	}
	for id, server := range state.Servers {
		status, _ := p.peers.Of(id)
		if id == p.id {
			status = p.status()
		}
		health.Members = append(health.Members, MemberHealth{
			Member: peer.NodeName(id), ID: id, State: string(server.State),
			Healthy:     server.Health.Healthy,
			StableSince: server.Health.StableSince, LastContact: server.Stats.LastContact.String(),
			LastIndex: server.Stats.LastIndex,
			Version:   status.Version, BrokerConnected: status.BrokerUp, Pinned: p.pinned(id),
		})
	}
	slices.SortFunc(health.Members,
		func(a, b MemberHealth) int { return peer.CompareNames(a.Member, b.Member) })
	return health
}
