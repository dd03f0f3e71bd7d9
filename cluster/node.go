package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/membership"
	"holdfast/cluster/offer"
	"holdfast/cluster/peer"
	"holdfast/cluster/replica"
	"holdfast/fsm"
)

// Node is one member of the cluster. Its methods are safe for concurrent use.
type Node struct {
	env Environment

	self        *self
	replica     *replica.Replica
	clock       *clusterClock
	commands    *commandRouter
	offerer     *offer.Offerer
	memberWatch *memberWatch
	space       func() peer.DiskSpace // which members are short of disk space
	missing     func() []peer.Missing // which members do not answer
	sameBroker  *sameBroker
	members     *membership.Membership
	autopilot   *autopilotRunner

	verifier  *verifier
	snapshots *Snapshots
	lifecycle lifecycle
}

// Membership returns the part of the node that changes the members of the cluster and transfers its
// leadership.
func (n *Node) Membership() *membership.Membership { return n.members }

// Snapshots returns the part of the node that takes, saves and restores snapshots of the state.
func (n *Node) Snapshots() *Snapshots { return n.snapshots }

// SetOffer changes the settings that this node asks the cluster for. What changed is proposed once
// a leader is known and this node has caught up.
func (n *Node) SetOffer(wanted offer.Offer) { n.offerer.Set(wanted) }

// ID returns the raft id of this member.
func (n *Node) ID() raft.ServerID { return n.self.ID }

// Propose queues a command for the log. It returns false, and queues nothing, if this node does not
// serve as the leader. After a Flush the command is proposed at once or, if few commands are
// queued, when no entry is in flight any more. If Propose returns true, the observer gets the tag
// exactly once, by Applied or by Failed. The command's byte slices must not change any more.
func (n *Node) Propose(command fsm.Command,
	tag any,
) bool {
	return n.commands.propose(command, tag)
}

// Read queues a GET or a SCAN. It returns false, and queues nothing, if this node does not serve as
// the leader. A queued read is made after the next Flush at the latest. If Read returns true, the
// observer gets the tag exactly once, by ReadDone or by Failed.
func (n *Node) Read(command *fsm.Command, tag any) bool { return n.commands.read(command, tag) }

// Flush wakes the proposer and the readers. Commands that are queued before a Flush share log
// entries. Reads that are queued before it share a read-index round.
func (n *Node) Flush() { n.commands.flush() }

// SetPublished raises the delivery watermark of the current leadership: the front end has published
// the notifications of all entries up to this log index. The next log entry carries the watermark.
// A lower index has no effect. The call has no effect while this node does not lead.
func (n *Node) SetPublished(index uint64) { n.commands.setPublished(index) }

// SetHorizon moves the horizon of the log to an age ago: the broker received after that moment all
// that it has not seen acknowledged. The next log entry carries it. An older moment has no effect.
// The call has no effect while this node does not lead.
func (n *Node) SetHorizon(age time.Duration) { n.commands.setHorizon(age) }

// HorizonAge returns how long ago, by cluster time, the horizon of the log was. It is valid while
// this node leads.
func (n *Node) HorizonAge() time.Duration { return n.commands.horizonAge() }

// Execute proposes a command and waits for its result. The error is ErrNotLeader, ErrNotDone,
// ErrOutcomeUnknown, or that of the context: then the outcome is unknown, too.
func (n *Node) Execute(ctx context.Context, command fsm.Command) (fsm.Result, error) {
	return n.commands.execute(ctx, command)
}

// Confirm returns nil if this node was the leader, in the term of its leadership, at some moment
// after the call. Otherwise the error wraps ErrNotLeader.
func (n *Node) Confirm(ctx context.Context) error { return n.commands.confirm(ctx) }

// View runs f with the state read-locked. Other Views and Observer.ReadDone may run at the same
// time; Observer.Applied and Observer.Restored wait. f must be quick, and keep no reference to the
// state.
func (n *Node) View(f func(*fsm.Machine)) { n.replica.View(f) }

// ClusterClock returns the cluster's clock in milliseconds since the Unix epoch: the lower median
// of the members' wall clocks. If their number is even, the clock in the log counts as one more.
// Each member updates it after each poll that a majority of the voters has answered. It is 0 before
// the first one.
func (n *Node) ClusterClock() int64 { return n.clock.now() }

// ClockOffset returns this node's wall clock minus the cluster's clock, and an error if they differ
// by more than they may, in either direction.
func (n *Node) ClockOffset() (time.Duration, error) { return n.memberWatch.clockOffset() }

// Verify compares the states of all replicas at the index of a new entry. The error is ErrNotLeader
// on any other node than the leader, and otherwise as those of Execute. A member that does not
// answer is no error: see Verification.Complete.
func (n *Node) Verify(ctx context.Context) (Verification, error) { return n.verifier.verify(ctx) }

// Health returns autopilot's latest state. Before autopilot's first state in a leadership, it
// returns one that is unhealthy and has no members. The error is ErrNotLeader on any other node
// than the leader.
func (n *Node) Health(ctx context.Context) (Health, error) {
	if err := n.Confirm(ctx); err != nil {
		return Health{}, err
	}
	return n.autopilot.health(), nil
}

// Status returns what this member knows now.
func (n *Node) Status() Status {
	servers, space := n.self.servers(), n.space()
	return Status{
		ID: n.self.ID, Role: n.self.raftState(), Servers: servers, Serving: n.commands.serving(),
		Behind: n.memberWatch.behind(), Learning: n.self.learning(servers),
		Term: n.self.raft.CurrentTerm(), LeaderID: n.self.leader(),
		Commit: n.self.raft.CommitIndex(), Last: n.self.raft.LastIndex(),
		State: n.replica.Status(), Divergence: n.verifier.divergence(),
		OtherBroker: n.sameBroker.check(), Apart: n.sameBroker.apart(),
		Missing: n.missing(),
		DiskLow: space.Low, StorageLow: n.commands.serving() && space.Refused,
	}
}

// LastTerm returns the term of the last entry in the log. Status, which is called often, leaves it
// out: raft has it only in Stats, which is slow.
func (n *Node) LastTerm() uint64 { return n.self.lastTerm() }

// Close stops the node. If this node leads and there is another voter, Close first transfers the
// leadership. The context bounds only the transfer; if it has ended, there is none. Then Close
// waits for the node's goroutines and for raft, and closes the transport and the stores. Later
// calls return the same error.
func (n *Node) Close(ctx context.Context) error {
	l := &n.lifecycle
	l.closeOnce.Do(func() {
		if ctx.Err() != nil {
			n.env.Log.Debug("stopping without a leadership transfer: the context has ended")
		} else if err := n.members.TransferIfLeading(ctx, ""); err != nil {
			n.env.Log.Warn("the leadership transfer did not complete: stopping all the same",
				"error", err)
		}
		l.stop()
		// must come before Shutdown: after it, raft answers no queued future any more, and the
		// goroutines would wait for ever
		l.wait()
		shutdownFuture := n.self.raft.Shutdown()
		if aborter, ok := n.env.Transport.(interface{ Abort() }); ok {
			// shutdownFuture waits for raft's own calls, and a call to a hung member returns only
			// when its connection is closed
			aborter.Abort()
		}
		l.closeErr = errors.Join(shutdownFuture.Error(), n.env.close())
	})
	return l.closeErr
}

// lifecycle tracks the goroutines of a node, and runs its shutdown once.
type lifecycle struct {
	stop      context.CancelFunc // ends the context of the goroutines
	closeOnce sync.Once
	closeErr  error // result of the first Close

	mu      sync.Mutex
	waiting bool // wait was called
	workers sync.WaitGroup
}

// start runs f in a goroutine that wait waits for, and returns true. After wait was called it
// returns false and does not run f: raft may be shut down, and then does not answer futures.
func (l *lifecycle) start(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting {
		return false
	}
	l.workers.Go(f)
	return true
}

// wait makes start return false from now on, and waits until all goroutines have returned.
func (l *lifecycle) wait() {
	l.mu.Lock()
	l.waiting = true
	l.mu.Unlock()
	l.workers.Wait()
}

// Status is what a member knows of itself and the cluster.
type Status struct {
	ID   raft.ServerID
	Role string // leader, follower, candidate or shutdown
	// leads, and accepts proposals and reads; true once the LeaderStart (its first entry) is
	// applied, before Observer.Serve is called
	Serving bool
	// has not applied what the leader had applied one poll earlier; true before the first
	// comparison, false while Serving
	Behind   bool
	Learning bool   // a non-voter that autopilot may promote
	Term     uint64 // raft's current term
	LeaderID raft.ServerID
	Commit   uint64 // commit index
	Last     uint64 // index of the last entry in the log
	Servers  []raft.Server
	State    fsm.Status
	// Divergence wraps ErrReplicasDiffer if this node leads and the replicas had different states
	// when it last compared them, which it does every minute.
	Divergence error
	// OtherBroker wraps ErrOtherBroker if this node is at another broker than the others. Apart are
	// the members that are at another broker than this node, if it leads.
	OtherBroker error
	Apart       []raft.ServerID
	// Missing are the members that did not answer the last poll of this one, and since when.
	Missing []peer.Missing
	// DiskLow are the members that are short of disk space, as far as this one knows. StorageLow
	// says that this node serves and refuses what would grow, because so many are that a majority
	// of the voters has no space.
	DiskLow    []raft.ServerID
	StorageLow bool
}
