package corrected

import (
	"context"
	"sync"

	"github.com/hashicorp/raft"
)

// Transport is a transport for raft. It is safe for concurrent use.
type Transport struct {
	raft.Transport
	running  func() *raft.Raft
	snapshot func() (index, term uint64)

	requests chan raft.RPC
	stop     context.CancelFunc
	receiver sync.WaitGroup
}

// New returns a transport over another, which it closes when it is closed. Running returns the raft that uses the transport, or nil while raft
// starts. Snapshot returns the index and the term of the newest snapshot whose state this node has, or 0 where the node leads or has none.
func New(over raft.Transport, running func() *raft.Raft, snapshot func() (index, term uint64)) *Transport {
	ctx, stop := context.WithCancel(context.Background())
	t := &Transport{Transport: over, running: running, snapshot: snapshot, requests: make(chan raft.RPC), stop: stop}
	from := over.Consumer()
	t.receiver.Go(func() { t.receive(ctx, from) })
	return t
}

// Consumer implements raft.Transport.
func (t *Transport) Consumer() <-chan raft.RPC { return t.requests }

// SetHeartbeatHandler implements raft.Transport.
func (t *Transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	if handle == nil {
		t.Transport.SetHeartbeatHandler(nil)
		return
	}
	t.Transport.SetHeartbeatHandler(func(rpc raft.RPC) {
		state, term := raft.Shutdown, uint64(0) // before raft is there
		if running := t.running(); running != nil {
			state, term = running.State(), running.CurrentTerm()
		}
		passHeartbeat(rpc, state, term, handle)
	})
}

// passHeartbeat hands a heartbeat to raft, or answers it, by what raft's state and term are.
func passHeartbeat(rpc raft.RPC, state raft.RaftState, term uint64, handle func(raft.RPC)) {
	if heartbeat, ok := rpc.Command.(*raft.AppendEntriesRequest); ok && (state != raft.Follower || heartbeat.Term > term) {
		rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: term}, nil)
		return
	}
	handle(rpc)
}

// RequestVote implements raft.Transport.
func (t *Transport) RequestVote(id raft.ServerID, target raft.ServerAddress, request *raft.RequestVoteRequest, response *raft.RequestVoteResponse) error {
	if err := t.Transport.RequestVote(id, target, request, response); err != nil || response.Granted {
		return err
	}
	named, answer := *request, raft.RequestVoteResponse{}
	named.ID = []byte(id)
	if err := t.Transport.RequestVote(id, target, &named, &answer); err == nil {
		*response = answer
	}
	return nil
}

// RequestPreVote implements raft.WithPreVote.
func (t *Transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, request *raft.RequestPreVoteRequest, response *raft.RequestPreVoteResponse) error {
	transport := t.Transport.(raft.WithPreVote)
	if err := transport.RequestPreVote(id, target, request, response); err != nil || response.Granted {
		return err
	}
	named, answer := *request, raft.RequestPreVoteResponse{}
	named.ID = []byte(id)
	if err := transport.RequestPreVote(id, target, &named, &answer); err == nil {
		*response = answer
	}
	return nil
}

// Abort ends the calls to other members that are under way, if the transport beneath can.
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
	t.receiver.Wait() // it may have waited for the connection of a sender
	return err
}

var (
	_ raft.WithPreVote = (*Transport)(nil)
	_ raft.WithClose   = (*Transport)(nil)
)
