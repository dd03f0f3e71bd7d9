package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"holdfast/cluster/corrected"
	"holdfast/cluster/membership"
	"holdfast/cluster/offer"
	"holdfast/cluster/peer"
	"holdfast/cluster/raftlog"
	"holdfast/cluster/replica"
)

// Open starts a member. The observer's methods may be called before Open returns. The node owns the stores and the transport
// from now on, also when Open fails.
func Open(config Config, world World, observer Observer) (*Node, error) {
	n := &Node{config: config, world: world, observer: observer, clock: newClusterClock(world.Clock)}
	n.peers = peer.NewStatuses(config.ID, world.Peers, n.servers, world.Clock.Monotonic)
	if err := n.start(); err != nil {
		return nil, errors.Join(err, closeTransport(n.world.Transport), world.Stores.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	for _, work := range []func(context.Context){n.watchLeadership, n.watchLogSize, n.watch.run, n.offerer.Run} {
		n.workers.Go(func() { work(ctx) })
	}
	return n, nil
}

func (n *Node) start() error {
	if err := n.config.Validate(); err != nil {
		return err
	}
	n.replica = replica.New(replica.World{
		Applied: n.observe, Took: n.world.Metrics.applied, WallAdvanced: n.clock.carry, Persisted: func() { n.log.ResetStored() }, Exit: n.world.Exit,
	})
	guard := raftlog.Guard{Deadline: n.config.Timing.DiskDeadline, Exit: n.exit, Stored: n.world.Metrics.stored}
	n.log = raftlog.NewCheckedLog(n.world.Stores.Log, guard, n.config.CacheBytes)
	stable := raftlog.NewStableStore(n.world.Stores.Stable, guard)
	snapshots, err := raftlog.NewSnapshotStore(n.world.Stores.Snapshots, n.world.Metrics.snapshotWritten)
	if err != nil {
		return fmt.Errorf("open node: %w", err)
	}
	config := n.raftConfig()
	if n.config.Members != nil {
		has, err := n.world.Stores.HasState()
		if err != nil {
			return err
		}
		if !has {
			err := raft.BootstrapCluster(config, n.log, stable, snapshots, n.world.Transport, raft.Configuration{Servers: n.config.Members})
			if err != nil {
				return fmt.Errorf("bootstrap: %w", err)
			}
		}
	}
	if err := n.openRaft(config, stable, snapshots); err != nil {
		return fmt.Errorf("open node: %w", err)
	}
	n.connect()
	return nil
}

// connect makes what changes the members and the settings, and what watches the members, and gives it what it needs of the node.
func (n *Node) connect() {
	version := func() uint32 { return n.replica.Status().Version }
	self := raft.Server{ID: n.config.ID, Address: n.config.Address}
	n.watch = &memberWatch{
		self: self, maxClockOffset: n.config.MaxClockOffset, client: n.world.Peers, exit: n.world.Exit,
		leaderChanged: n.world.Metrics.leaderChanges.Inc, log: n.world.Log,
		peers: n.peers, clock: n.clock, servers: n.servers, leader: n.knownLeader,
		applied: func() uint64 { return n.replica.Status().Index }, serving: n.serving, start: n.workers.Go,
	}
	n.offerer = offer.New(n.config.Offer, offer.World{
		Offered: n.world.Stores.Offered, Settings: n.settings, Version: version, Serving: n.serving,
		Execute: n.Execute, CallLeader: n.leaderCall, Log: n.world.Log,
	})
	n.members = membership.New(membership.World{
		Self: self, Raft: n.raft, Client: n.world.Peers, Statuses: n.peers,
		Servers: n.servers, OwnStatus: n.ownStatus, Serving: n.serving, Confirm: n.Confirm, CallLeader: n.leaderCall, Execute: n.Execute,
		Version: version, Pinned: n.pinnedNonVoter, Go: n.workers.Go, Log: n.world.Log,
	})
}

// ErrIncomplete says that what a node has on its disk does not make a whole.
var ErrIncomplete = errors.New("the log and the snapshots do not fit together, a damaged snapshot for instance: to let this node join anew, empty its data folder, and start it again")

// openRaft starts raft, which panics when the log lacks an entry behind the newest snapshot that can be read.
func (n *Node) openRaft(config *raft.Config, stable raft.StableStore, snapshots *raftlog.SnapshotStore) (err error) {
	var running atomic.Pointer[raft.Raft]
	newest := func() (index, term uint64) {
		index, term = snapshots.Newest()
		if r := running.Load(); r == nil || r.State() == raft.Leader || index > r.AppliedIndex() { // a damaged one was not restored
			return 0, 0
		}
		return index, term
	}
	n.log.SetSnapshot(newest)
	n.world.Transport = corrected.New(n.world.Transport, running.Load, newest)
	defer func() {
		reason := recover()
		if missing, ok := reason.(error); ok && errors.Is(missing, raft.ErrLogNotFound) {
			err = fmt.Errorf("%w: %w", ErrIncomplete, missing)
		} else if reason != nil {
			panic(reason)
		}
	}()
	if n.raft, err = raft.NewRaft(config, n.replica, n.log, stable, snapshots, n.world.Transport); err != nil {
		return err
	}
	running.Store(n.raft)
	return nil
}

// exit ends the process, because the disk cannot be trusted any more. Where the process lives on for a moment, nothing is applied.
func (n *Node) exit(err error) {
	n.replica.Halt()
	n.world.Exit(err)
}

// maxAppendEntries bounds one message to a follower, which raft counts in entries: 8 of up to 1 MiB, or 8 single commands of the
// largest size.
const maxAppendEntries = 8

func (n *Node) raftConfig() *raft.Config {
	config := raft.DefaultConfig()
	config.LocalID = n.config.ID
	config.HeartbeatTimeout = n.config.Timing.Heartbeat
	config.ElectionTimeout = n.config.Timing.Election
	config.LeaderLeaseTimeout = n.config.Timing.LeaderLease
	config.CommitTimeout = n.config.Timing.Commit
	config.MaxAppendEntries = maxAppendEntries
	config.ShutdownOnRemove = false // memberWatch ends a node that was removed, with a message
	config.BatchApplyCh = true
	config.TrailingLogs = n.config.TrailingEntries
	config.SnapshotThreshold = 1 << 20 // watchLogSize decides by bytes, which is what a disk fills up with
	config.NoLegacyTelemetry = true
	config.Logger = raftlog.Logger(n.world.Log)
	return config
}

// Close hands over the leadership, if there is anybody to take it, and stops: raft, the transport, the stores, in this order.
// The context bounds the hand-over only.
func (n *Node) Close(ctx context.Context) error {
	n.closing.Do(func() { n.closed = n.shutdown(ctx) })
	return n.closed
}

func closeTransport(transport raft.Transport) error {
	if closer, ok := transport.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

func (n *Node) shutdown(ctx context.Context) error {
	if ctx.Err() != nil {
		n.world.Log.Debug("stopping at once")
	} else if err := n.members.TransferIfLeading(ctx, ""); err != nil {
		n.world.Log.Warn("stopping without a hand-over", "error", err)
	}
	n.stop()
	n.workers.Wait() // while raft still answers: it never answers what is in its queue when it ends
	stopping := n.raft.Shutdown()
	if aborter, ok := n.world.Transport.(interface{ Abort() }); ok {
		aborter.Abort() // raft waits for its calls to other members, which may hang
	}
	return errors.Join(stopping.Error(), closeTransport(n.world.Transport), n.world.Stores.Close())
}
