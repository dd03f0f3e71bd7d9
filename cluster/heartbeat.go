package cluster

import (
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// heartbeatGuard keeps heartbeats from raising raft's term.
//
// Raft v1.7.3 handles heartbeats on the transport's goroutine, so that a slow disk does not delay them, by code that "must only be called
// from the main thread". There a heartbeat of a newer term raises the term while the main goroutine counts the votes of its election in
// an older one. The last vote then makes this node a leader in a term in which it was not elected: two leaders write different entries
// at the same index and term, and the replicas diverge.
//
// So a heartbeat takes that way only where nothing but the time of the last contact can change: at a follower that knows the term already.
// Others are answered as not successful. A leader sends entries right after its election, which raise the term on the main goroutine.
type heartbeatGuard struct {
	raft.Transport
	running atomic.Pointer[raft.Raft]
}

// SetHeartbeatHandler implements raft.Transport.
func (g *heartbeatGuard) SetHeartbeatHandler(handle func(raft.RPC)) {
	if handle == nil {
		g.Transport.SetHeartbeatHandler(nil)
		return
	}
	g.Transport.SetHeartbeatHandler(func(rpc raft.RPC) {
		state, term := raft.Shutdown, uint64(0) // before raft is there
		if running := g.running.Load(); running != nil {
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

// RequestPreVote implements raft.WithPreVote.
func (g *heartbeatGuard) RequestPreVote(id raft.ServerID, target raft.ServerAddress, request *raft.RequestPreVoteRequest, response *raft.RequestPreVoteResponse) error {
	return g.Transport.(raft.WithPreVote).RequestPreVote(id, target, request, response)
}

// Close implements raft.WithClose.
func (g *heartbeatGuard) Close() error {
	if closer, ok := g.Transport.(raft.WithClose); ok {
		return closer.Close()
	}
	return nil
}

var (
	_ raft.WithPreVote = (*heartbeatGuard)(nil)
	_ raft.WithClose   = (*heartbeatGuard)(nil)
)
