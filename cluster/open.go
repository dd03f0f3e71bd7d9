package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/membership"
	"holdfast/cluster/offer"
	"holdfast/cluster/peer"
	"holdfast/cluster/raftfix"
	"holdfast/cluster/raftlog"
	"holdfast/cluster/replica"
	"holdfast/fsm"
	"holdfast/internal/backoff"
)

// Open starts a member. It may call the observer's methods before it returns. The node closes the
// stores and the transport, also if Open fails.
func Open(config Config, env Environment, observer Observer) (*Node, error) {
	n := &Node{env: env, clock: newClusterClock(env.Clock)}
	if err := n.start(config, observer); err != nil {
		return nil, errors.Join(err, n.env.close())
	}
	return n, nil
}

// start creates the parts of the node, connects them, and starts their goroutines.
func (n *Node) start(config Config, observer Observer) error {
	if err := config.Validate(); err != nil {
		return err
	}
	n.self = &self{
		Server: raft.Server{ID: config.ID, Address: config.Address}, client: n.env.Client,
		wall: n.env.Clock.Wall, freeSpace: n.env.FreeSpace, brokerDownFor: observer.BrokerDownFor,
		broker:         n.env.Broker,
		autoTotalBytes: n.env.AutoTotalBytes,
	}
	start := n.lifecycle.start
	confirmer := &confirmer{
		id: config.ID, term: n.self.term, servers: n.self.servers,
		client: n.env.Client, timeout: config.Timing.Election, start: start,
	}
	peers := peer.NewStatuses(config.ID, n.env.Client, n.self.servers, n.env.Clock.Monotonic)
	n.self.acknowledged = peers.Acknowledged
	n.sameBroker = &sameBroker{
		id: config.ID, broker: n.self.broker, peers: peers, servers: n.self.servers,
		leader:  n.self.leader,
		serving: func() bool { return n.commands.serving() },
	}
	n.self.heard = n.sameBroker.state
	n.space = func() peer.DiskSpace { return peers.DiskSpace(n.self.diskLow()) }
	n.missing = peers.Missing
	n.commands = &commandRouter{observer: observer, confirmTerm: confirmer.confirm}
	ctx, stop := context.WithCancel(context.Background())
	n.lifecycle.stop = stop
	raftLog, snapshots, err := n.openRaft(ctx, config, observer.Restored)
	if err != nil {
		stop()
		return err
	}

	n.memberWatch = &memberWatch{
		self: n.self.Server, servers: n.self.servers, leader: n.self.leader,
		applied: n.self.applied, client: n.env.Client,
		maxClockOffset: config.MaxClockOffset, election: config.Timing.Election,
		lastIndex: n.self.raft.LastIndex, exit: n.env.exit,
		leaderChanged: n.env.Metrics.leaderChanges.Inc, log: n.env.Log, peers: peers,
		clock: n.clock, serving: n.commands.serving, start: start,
		sameBroker: n.sameBroker,
	}
	n.offerer = offer.New(config.Offer, offer.Environment{
		Offered: n.env.Stores.Offered, Settings: n.self.settings, Serving: n.commands.serving,
		Behind: n.memberWatch.behind, Execute: n.commands.execute, CallLeader: n.self.callLeader,
		Log:            n.env.Log,
		AutoTotalBytes: func() (int64, bool) { return peers.AutoTotalBytes(n.env.AutoTotalBytes) },
	})
	n.members = membership.New(membership.Environment{
		Self: n.self.Server, Raft: n.self.raft, Client: n.env.Client, Statuses: peers,
		Servers: n.self.servers, OwnStatus: n.self.status, Serving: n.commands.serving,
		Confirm:    n.commands.confirm,
		CallLeader: n.self.callLeader, Execute: n.commands.execute, Version: n.self.version,
		Pinned: n.self.pinned, Go: start, Log: n.env.Log,
	})
	n.autopilot = &autopilotRunner{
		config: autopilotConfig(config.Timing, config.TrailingEntries), raft: n.self.raft,
		id: config.ID, servers: n.self.servers, pinned: n.self.pinned,
		status: n.self.status, peers: peers, log: n.env.Log,
	}
	n.verifier = &verifier{
		id: config.ID, servers: n.self.servers, client: n.env.Client, state: n.replica,
		execute: n.commands.executeAt,
		serving: n.commands.serving, observe: n.env.Metrics.observeVerification, log: n.env.Log,
	}
	n.snapshots = &Snapshots{
		state: n.replica, snapshot: func() error { return n.self.raft.Snapshot().Error() },
		minBytes: config.SnapshotBytes, newestBytes: snapshots.NewestBytes,
		metrics: n.env.Metrics, log: n.env.Log, members: n.members, execute: n.commands.execute,
		random: n.env.Random,
	}
	maintenance := &maintenance{
		servers: n.self.servers, term: n.self.term, version: n.self.version,
		brokerDownFor: n.self.brokerDownFor, serving: n.commands.serving,
		execute: n.commands.execute, peers: peers, members: n.members, space: n.space,
		diskLow: n.self.diskLow, sameBroker: n.sameBroker, log: n.env.Log,
	}
	leading := &leaderLoop{
		monotonic: n.env.Clock.Monotonic, random: n.env.Random, metrics: n.env.Metrics,
		log: n.env.Log, serveTerm: observer.Serve, readDone: observer.ReadDone,
		proposals: config.Proposals, raft: n.self.raft, state: n.replica,
		storageLow: func() bool { return n.space().Refused },
		commands:   n.commands, raftLog: raftLog, peers: peers, clock: n.clock,
		prepare: []func(context.Context) error{n.memberWatch.waitForClockQuorum, n.offerer.Prepare},
		duties:  []func(context.Context) error{maintenance.run, n.autopilot.run, n.verifier.run},
	}

	for _, work := range []func(context.Context){
		leading.run, n.snapshots.watchLogSize,
		n.memberWatch.run, n.offerer.Run,
	} {
		start(func() { work(ctx) })
	}
	return nil
}

// openRaft starts raft with the stores and the transport. It bootstraps the cluster if
// config.Members is set and the stores are empty. The context is that of the node's work: after its
// end, the replica writes snapshots without pauses.
func (n *Node) openRaft(ctx context.Context, config Config,
	restored func(fsm.Status),
) (*raftlog.CheckedLog, *raftlog.SnapshotStore, error) {
	exit := func(err error) {
		// Environment.Exit returns in tests: the replica must not apply entries after that, so it
		// is halted first
		n.replica.Halt()
		n.env.exit(err)
	}
	guard := raftlog.Guard{
		Deadline: config.Timing.DiskDeadline, Exit: exit,
		ObserveCall: n.env.Metrics.observeStoreCall,
	}
	raftLog := raftlog.NewCheckedLog(n.env.Stores.Log, guard, config.CacheBytes)
	n.replica = replica.New(replica.Environment{
		Applied: n.commands.applied, Restored: restored, ObserveApply: n.env.Metrics.observeApply,
		WallAdvanced: n.clock.observeLogWall, Exit: n.env.Exit,
		Monotonic: n.env.Clock.Monotonic,
		Pause: func(d time.Duration, bytesSinceSnapshot int64) {
			if bytesSinceSnapshot >= 2*maxLogFactor*config.SnapshotBytes {
				// the log has grown to twice the largest size at which a snapshot is due, so this
				// snapshot must end soon
				return
			}
			backoff.Pause(ctx, d)
		},
	})
	n.self.replica = n.replica
	stable := raftlog.NewStableStore(n.env.Stores.Stable, guard)
	snapshots, err := raftlog.NewSnapshotStore(n.env.Stores.Snapshots,
		n.env.Metrics.setSnapshotBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("open node: %w", err)
	}
	raftConfig := raftConfig(&config, n.env.Log)
	if config.Members != nil {
		hasState, err := n.env.Stores.HasState()
		if err != nil {
			return nil, nil, fmt.Errorf("open node: %w", err)
		}
		if !hasState {
			if err := n.env.Stores.ResetInterruptedBootstrap(); err != nil {
				return nil, nil, fmt.Errorf("open node: %w", err)
			}
			err := raft.BootstrapCluster(raftConfig, raftLog, stable, snapshots, n.env.Transport,
				raft.Configuration{Servers: config.Members})
			if err != nil {
				return nil, nil, fmt.Errorf("bootstrap: %w", err)
			}
		}
	}
	transport := raftfix.New(n.env.Transport, raftLog, snapshots.Newest)
	n.env.Transport = transport
	raftLog.SetFollowerSnapshot(transport.FollowerSnapshot)
	raftLog.SetReplica(func() (applied, snapshot uint64) {
		snapshot, _ = snapshots.Newest(math.MaxUint64)
		return n.replica.Status().Index, snapshot
	})
	if n.self.raft, err = newRaft(raftConfig, n.replica, raftLog, stable, snapshots,
		transport); err != nil {
		return nil, nil, fmt.Errorf("open node: %w", err)
	}
	asking := peer.NewStatuses(config.ID, n.env.Client, n.self.servers, n.env.Clock.Monotonic)
	if err := checkAcknowledged(ctx, asking, config.ID, n.self.raft.LastIndex(),
		config.Timing.Election/2); err != nil {
		return nil, nil, errors.Join(err, n.self.raft.Shutdown().Error())
	}
	transport.Start(n.self.raft)
	return raftLog, snapshots, nil
}

// ErrIncomplete says that the log lacks entries directly after the newest readable snapshot.
var ErrIncomplete = errors.New(
	"log entries after the newest readable snapshot are missing; a newer snapshot may be damaged. " +
		"If the other members are a majority without this one, empty its data folder and restart it; otherwise keep a copy of the folder")

// newRaft calls raft.NewRaft, which panics if the log lacks an entry after the newest readable
// snapshot. newRaft then returns ErrIncomplete.
func newRaft(config *raft.Config, state raft.FSM, log raft.LogStore, stable raft.StableStore,
	snapshots raft.SnapshotStore, transport raft.Transport,
) (r *raft.Raft, err error) {
	defer func() {
		reason := recover()
		if missing, ok := reason.(error); ok && errors.Is(missing, raft.ErrLogNotFound) {
			err = fmt.Errorf("%w: %w", ErrIncomplete, missing)
		} else if reason != nil {
			panic(reason)
		}
	}()
	return raft.NewRaft(config, state, log, stable, snapshots, transport)
}
