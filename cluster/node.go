package cluster

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"holdfast/cluster/membership"
	"holdfast/cluster/offer"
	"holdfast/cluster/peer"
	"holdfast/cluster/propose"
	"holdfast/cluster/raftlog"
	"holdfast/cluster/replica"
	"holdfast/fsm"
)

// Node is one member of the cluster. Its methods are safe for concurrent use.
type Node struct {
	config   Config
	world    World
	observer Observer
	raft     *raft.Raft
	log      *raftlog.CheckedLog
	replica  *replica.Replica
	offerer  *offer.Offerer

	leadership atomic.Pointer[leadership]       // that takes proposals and reads
	proposer   atomic.Pointer[propose.Proposer] // whose entries may be in flight: it outlives the leadership
	peers      *peer.Statuses
	clock      *clusterClock
	watch      *memberWatch
	health     atomic.Pointer[autopilot.State]
	members    *membership.Membership

	stop    context.CancelFunc
	workers sync.WaitGroup
	closing sync.Once
	closed  error
}

// Membership changes the members of the cluster, and transfers its leadership.
func (n *Node) Membership() *membership.Membership { return n.members }

// SetOffer changes what this node wants the settings to be. It is proposed as soon as there is a leader.
func (n *Node) SetOffer(wanted offer.Offer) { n.offerer.Set(wanted) }

// settings returns the settings in force, and whether any are.
func (n *Node) settings() (inForce fsm.Settings, configured bool) {
	n.View(func(m *fsm.Machine) { inForce, configured = m.Settings() })
	return inForce, configured
}

// serving reports whether this node leads, and takes commands.
func (n *Node) serving() bool { return n.leadership.Load() != nil }

// pinnedNonVoter reports whether a member stays a non-voter by an operator's word.
func (n *Node) pinnedNonVoter(id raft.ServerID) (pinned bool) {
	n.View(func(m *fsm.Machine) { pinned = m.KeptNonVoter(string(id)) })
	return pinned
}

// ID returns the raft id of this member.
func (n *Node) ID() raft.ServerID { return n.config.ID }

// Propose queues a command for the log and reports whether it was taken up. It is proposed after the next Flush at the latest, and either the observer's Applied gets the
// tag or its Failed does, exactly once. The command's byte slices must not change any more.
func (n *Node) Propose(command fsm.Command, tag any) bool {
	l := n.leadership.Load()
	return l != nil && l.proposer.Add(command, tag)
}

// Read queues a GET and reports whether it was taken up. It is read after the next Flush at the latest, and either the observer's ReadDone gets the tag or its Failed
// does, exactly once.
func (n *Node) Read(command *fsm.Command, tag any) bool {
	l := n.leadership.Load()
	return l != nil && l.reader.Add(command, tag)
}

// Flush sends on their way what Propose and Read have queued: what comes in a burst makes one log entry, and one round of reads.
func (n *Node) Flush() {
	if l := n.leadership.Load(); l != nil {
		l.proposer.Flush()
		l.reader.Flush()
	}
}

// Wall returns the cluster's clock, the median of its members', in milliseconds since the Unix epoch; 0 while it is not known. Only a
// leader keeps it up.
func (n *Node) Wall() int64 { return n.clock.now() }

// View runs f with the state, beside readers but not beside Applied and ReadDone. f must be quick, and keep nothing.
func (n *Node) View(f func(*fsm.Machine)) { n.replica.View(f) }

// SetPublished says that everything up to the log index was published in the leadership that serves. The mark goes into the log with its next
// entry. Where no leadership proposes it is lost, and the next leader publishes again.
func (n *Node) SetPublished(index uint64) {
	if p := n.proposer.Load(); p != nil {
		p.SetPublished(index)
	}
}

// waiter is the tag of a command that one of this package's own goroutines waits for.
type waiter struct {
	done   chan struct{}
	index  uint64 // of the entry
	result fsm.Result
	err    error
}

// Execute proposes a command and waits for its result. The error is ErrNotLeader, ErrNotDone, ErrOutcomeUnknown or the
// context's, whose outcome is unknown too.
func (n *Node) Execute(ctx context.Context, command fsm.Command) (fsm.Result, error) {
	result, _, err := n.execute(ctx, command)
	return result, err
}

// execute is Execute, and returns the index of the entry as well.
func (n *Node) execute(ctx context.Context, command fsm.Command) (result fsm.Result, index uint64, err error) {
	w := &waiter{done: make(chan struct{})}
	if !n.Propose(command, w) {
		return fsm.Result{}, 0, peer.ErrNotLeader
	}
	n.Flush()
	select {
	case <-w.done:
		return w.result, w.index, w.err
	case <-ctx.Done():
		return fsm.Result{}, 0, ctx.Err()
	}
}

// observe passes an entry that was applied on. The state is locked.
func (n *Node) observe(outcome *fsm.Outcome) {
	var tags []any
	if p := n.proposer.Load(); p != nil {
		tags = p.Tags(outcome)
	}
	for i, tag := range tags {
		if w, ok := tag.(*waiter); ok {
			w.index, w.result = outcome.Index, outcome.Results[i]
			close(w.done)
			tags[i] = nil
		}
	}
	n.observer.Applied(outcome, tags)
}

func (n *Node) failed(tag any, unknown bool) {
	switch tag := tag.(type) {
	case nil:
	case *waiter:
		tag.err = peer.ErrNotDone
		if unknown {
			tag.err = peer.ErrOutcomeUnknown
		}
		close(tag.done)
	default:
		n.observer.Failed(tag, unknown)
	}
}

// Status is what a member knows of itself and the cluster.
type Status struct {
	ID       raft.ServerID
	Role     string // leader, follower, candidate or shutdown
	Serving  bool   // leads, and has begun to serve
	Term     uint64
	LeaderID raft.ServerID
	Commit   uint64
	Last     uint64 // index of the last entry in the log
	Servers  []raft.Server
	State    fsm.Status
}

// Status returns what this member knows now.
func (n *Node) Status() Status {
	status := Status{
		ID: n.config.ID, Role: n.role(), Servers: n.servers(), Serving: n.serving(),
		Term: n.raft.CurrentTerm(), LeaderID: n.knownLeader(), Commit: n.raft.CommitIndex(), Last: n.raft.LastIndex(),
		State: n.replica.Status(),
	}
	return status
}

// Behind reports whether this node has not applied what the leader had applied at the last look, a second ago, or has not heard
// of the leader yet.
func (n *Node) Behind() bool { return n.watch.behind() }

// ClockOffset returns how far this node's wall clock is ahead of the cluster's, and an error when that is more than it may be.
func (n *Node) ClockOffset() (time.Duration, error) { return n.watch.clockOffset() }

// knownLeader returns the id of the leader that this node hears of; empty for none.
func (n *Node) knownLeader() raft.ServerID {
	_, id := n.raft.LeaderWithID()
	return id
}

// Learning reports whether this node is a member that does not vote yet, and is to.
func (n *Node) Learning() bool {
	server, member := peer.Find(n.servers(), n.config.ID)
	return member && server.Suffrage != raft.Voter && !n.pinnedNonVoter(server.ID)
}

// LastTerm returns the term of the last entry in the log. It is no part of Status, which is asked for often: raft tells it in one
// place only, together with everything else.
func (n *Node) LastTerm() uint64 {
	term, _ := strconv.ParseUint(n.raft.Stats()["last_log_term"], 10, 64) // always a number
	return term
}

// ownStatus returns what this member says of itself.
func (n *Node) ownStatus() peer.Status {
	address, leader := n.raft.LeaderWithID()
	if address == "" {
		leader = ""
	}
	contact := time.Duration(-1)
	if last := n.raft.LastContact(); !last.IsZero() {
		contact = time.Since(last)
	}
	if n.raft.State() == raft.Leader {
		contact = 0
	}
	return peer.Status{
		ID: n.config.ID, Address: n.config.Address, HasState: len(n.servers()) > 0 || n.raft.LastIndex() > 0, State: n.role(), Leader: leader, Servers: n.servers(),
		Term: n.raft.CurrentTerm(), LastIndex: n.raft.LastIndex(), LastTerm: n.LastTerm(), Commit: n.raft.CommitIndex(),
		Applied: n.replica.Status().Index, Contact: contact, Version: fsm.Version, BrokerUp: n.observer.BrokerSilence() == 0, DiskLow: n.diskLow(),
		Wall: n.world.Clock.Wall(),
	}
}

// diskLow reports whether the disk is nearly full.
func (n *Node) diskLow() bool {
	_, low := n.world.FreeSpace()
	return low
}

// role returns what raft is, as operators call it.
func (n *Node) role() string {
	switch n.raft.State() {
	case raft.Leader:
		return "leader"
	case raft.Follower:
		return "follower"
	case raft.Candidate:
		return "candidate"
	default:
		return "shutdown"
	}
}

// servers returns the latest configuration that this member knows.
func (n *Node) servers() []raft.Server {
	future := n.raft.GetConfiguration()
	if future.Error() != nil {
		return nil // raft v1.7.3 never fails here
	}
	return future.Configuration().Servers
}

// leaderCall calls the leader that this member knows.
func (n *Node) leaderCall(ctx context.Context, method peer.Method, request []byte) ([]byte, error) {
	id := n.knownLeader()
	leader, known := peer.Find(n.servers(), id)
	if id == n.config.ID || !known {
		return nil, peer.ErrNotLeader
	}
	return n.world.Peers.Call(ctx, leader, method, request)
}
