package raftfix

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// Transport wraps a raft.Transport and works around defects of raft: see the documentation of the
// package. It is safe for concurrent use, except that Start and Close must not run at the same
// time.
type Transport struct {
	raft.Transport
	log    Log
	newest func(upTo uint64) (index, term uint64)

	raftNode atomic.Pointer[raft.Raft]
	requests chan raft.RPC
	stop     context.CancelFunc
	receiver sync.WaitGroup
}

// Log is what the transport reads of the node's log.
type Log interface {
	GetLog(index uint64, log *raft.Log) error
}

// New returns a transport that wraps another one. That one must implement raft.WithPreVote, and
// Close closes it, too. log is raft's log. newest returns the index and the term of the newest
// snapshot at or below an index; 0, 0 if there is none.
func New(over raft.Transport, log Log, newest func(upTo uint64) (index, term uint64)) *Transport {
	return &Transport{
		Transport: over, log: log, newest: newest, requests: make(chan raft.RPC),
		stop: func() {},
	}
}

// Start begins to forward the requests of other members to raft, which has been started with this
// transport. It is called once.
func (t *Transport) Start(running *raft.Raft) {
	t.raftNode.Store(running)
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	from := t.Transport.Consumer()
	t.receiver.Go(func() { t.receive(ctx, from) })
}

// FollowerSnapshot returns the index and the term of the newest applied snapshot. It returns 0, 0
// before raft has started, on the leader, and without a snapshot.
func (t *Transport) FollowerSnapshot() (index, term uint64) {
	running := t.raftNode.Load()
	if running == nil || running.State() == raft.Leader {
		return 0, 0
	}
	return t.newest(running.AppliedIndex())
}

// Consumer implements raft.Transport.
func (t *Transport) Consumer() <-chan raft.RPC { return t.requests }

// SetHeartbeatHandler implements raft.Transport.
func (t *Transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.Transport.SetHeartbeatHandler(func(rpc raft.RPC) {
		state, term := raft.Shutdown, uint64(0) // the values before raft has started
		if running := t.raftNode.Load(); running != nil {
			state, term = running.State(), running.CurrentTerm()
		}
		passHeartbeat(rpc, state, term, handle)
	})
}

// passHeartbeat passes a heartbeat to raft if raft is a follower whose term is at least the
// heartbeat's. Otherwise it answers the heartbeat as not successful.
func passHeartbeat(rpc raft.RPC, state raft.RaftState, term uint64, handle func(raft.RPC)) {
	if heartbeat, ok := rpc.Command.(*raft.AppendEntriesRequest); ok &&
		(state != raft.Follower || heartbeat.Term > term) {
		rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: term}, nil)
		return
	}
	handle(rpc)
}

// RequestVote implements raft.Transport. If the vote is refused, it repeats the request with the
// voter's own id as the candidate id: see the documentation of the package.
func (t *Transport) RequestVote(id raft.ServerID, target raft.ServerAddress,
	request *raft.RequestVoteRequest, response *raft.RequestVoteResponse,
) error {
	if err := t.Transport.RequestVote(id, target, request, response); err != nil ||
		response.Granted {
		return err
	}
	retry, answer := *request, raft.RequestVoteResponse{}
	retry.ID = []byte(id)
	if err := t.Transport.RequestVote(id, target, &retry, &answer); err == nil {
		*response = answer
	}
	return nil
}

// RequestPreVote implements raft.WithPreVote. It repeats a refused request as RequestVote does.
func (t *Transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress,
	request *raft.RequestPreVoteRequest, response *raft.RequestPreVoteResponse,
) error {
	transport := t.Transport.(raft.WithPreVote)
	if err := transport.RequestPreVote(id, target, request, response); err != nil ||
		response.Granted {
		return err
	}
	retry, answer := *request, raft.RequestPreVoteResponse{}
	retry.ID = []byte(id)
	if err := transport.RequestPreVote(id, target, &retry, &answer); err == nil {
		*response = answer
	}
	return nil
}

// Abort closes all connections with other members and prevents new ones, if the transport beneath
// can.
func (t *Transport) Abort() {
	if aborter, ok := t.Transport.(interface{ Abort() }); ok {
		aborter.Abort()
	}
}

// Close implements raft.WithClose.
func (t *Transport) Close() (err error) {
	t.stop()
	if closer, ok := t.Transport.(raft.WithClose); ok {
		err = closer.Close()
	}
	// last: until Close has ended the connections, the receiver may wait for the bytes of a
	// snapshot
	t.receiver.Wait()
	return err
}

var (
	_ raft.WithPreVote = (*Transport)(nil)
	_ raft.WithClose   = (*Transport)(nil)
)
