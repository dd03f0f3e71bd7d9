package membership

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/semaphore"

	"holdfast/cluster/peer"
	"holdfast/fsm"
)

// ChangeTimeout bounds a join, and how long any other membership change waits until raft takes it.
const ChangeTimeout = 15 * time.Second

// Raft is what a Membership uses of hashicorp/raft.
type Raft interface {
	State() raft.RaftState
	CurrentTerm() uint64
	LastIndex() uint64
	CommitIndex() uint64
	GetConfiguration() raft.ConfigurationFuture
	AddVoter(id raft.ServerID, address raft.ServerAddress, previous uint64,
		timeout time.Duration) raft.IndexFuture
	AddNonvoter(id raft.ServerID, address raft.ServerAddress, previous uint64,
		timeout time.Duration) raft.IndexFuture
	DemoteVoter(id raft.ServerID, previous uint64, timeout time.Duration) raft.IndexFuture
	RemoveServer(id raft.ServerID, previous uint64, timeout time.Duration) raft.IndexFuture
	LeadershipTransferToServer(id raft.ServerID, address raft.ServerAddress) raft.Future
}

// Environment is all that a Membership touches. The functions are safe for concurrent use.
type Environment struct {
	// Self has the id of this member, and the address under which the others reach it.
	Self     raft.Server
	Raft     Raft
	Client   peer.Client
	Statuses *peer.Statuses
	// Servers returns the latest configuration that this member knows.
	Servers func() []raft.Server
	// OwnStatus returns what this member says of itself.
	OwnStatus func() peer.Status
	// Serving reports whether this member leads, and takes commands.
	Serving func() bool
	// Confirm returns nil when this member was the leader of its term at some moment after the
	// call.
	Confirm func(ctx context.Context) error
	// CallLeader calls the leader that this member knows.
	CallLeader func(ctx context.Context, method peer.Method, request []byte) ([]byte, error)
	// Execute proposes a command and waits for its result.
	Execute func(ctx context.Context, command fsm.Command) (fsm.Result, error)
	// Version returns the version of the log format that the cluster uses now.
	Version func() uint32
	// Pinned reports whether an operator has pinned a member as a non-voter.
	Pinned func(id raft.ServerID) bool
	// Go runs a function in a goroutine that the member waits for when it closes. It returns false,
	// and does not run it, while the member closes.
	Go  func(func()) bool
	Log *slog.Logger
}

// Membership changes who is a member, who votes and who leads. All methods are safe for concurrent
// use.
type Membership struct {
	env        Environment
	changeLock *semaphore.Weighted // of size 1: a mutex whose Lock a context can end
	transfers  failedTransfers
}

// New returns the membership as one member sees and changes it.
func New(env Environment) *Membership {
	return &Membership{env: env, changeLock: semaphore.NewWeighted(1)}
}

// Until Unlock, this node starts no other membership change, no restore, and no increase of the log
// version. If the context ends first, the error wraps peer.ErrNotDone.
func (m *Membership) Lock(ctx context.Context) error {
	if err := m.changeLock.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("%w: another change of the cluster is under way: %w", peer.ErrNotDone,
			err)
	}
	return nil
}

// TryLock is Lock without waiting, and reports whether it succeeded.
func (m *Membership) TryLock() bool { return m.changeLock.TryAcquire(1) }

// Unlock releases the lock.
func (m *Membership) Unlock() { m.changeLock.Release(1) }

// HandleIsMember answers whether a raft id is a member. While a change is not committed the leader
// answers true for every id. A follower forwards the question, once. The error wraps ErrNotLeader
// in three cases: no majority confirms that this leader leads; this node does not serve as the
// leader and knows no other leader; or it does not serve and the question was forwarded to it.
func (m *Membership) HandleIsMember(ctx context.Context, caller peer.Caller,
	id raft.ServerID,
) ([]byte, error) {
	if !m.env.Serving() {
		if caller.ID != "" {
			// only a member that forwards the question calls with its id
			return nil, peer.ErrNotLeader
		}
		return m.env.CallLeader(ctx, peer.MethodIsMember, []byte(id))
	}
	member, err := m.isMember(ctx, id)
	return strconv.AppendBool(nil, member), err
}

func (m *Membership) isMember(ctx context.Context, id raft.ServerID) (bool, error) {
	if err := m.env.Confirm(ctx); err != nil {
		return false, err
	}
	future := m.env.Raft.GetConfiguration()
	if err := future.Error(); err != nil {
		return false, err
	}
	if future.Index() > m.env.Raft.CommitIndex() {
		return true, nil // a change is under way, and may fail
	}
	_, member := peer.Find(future.Configuration().Servers, id)
	return member, nil
}
