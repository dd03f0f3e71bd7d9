package cluster

import (
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// correctedTransport corrects two rules of raft v1.7.3.
//
// Raft handles heartbeats on the transport's goroutine, so that a slow disk does not delay them, by code that "must only be called
// from the main thread". There a heartbeat of a newer term raises the term while the main goroutine counts the votes of its election in
// an older one. The last vote then makes this node a leader in a term in which it was not elected: two leaders write different entries
// at the same index and term, and the replicas diverge. So a heartbeat takes that way only where nothing but the time of the last contact
// can change: at a follower that knows the term already. Others are answered as not successful. A leader sends entries right after its
// election, which raise the term on the main goroutine.
//
// Raft lets a voter grant no vote to a candidate that the voter's own configuration does not name as a voter. Suppose that a leader promotes a
// member, that only these two store the entry, and that the leader is lost. The promoted member is then the only one with all entries, and the
// other voters refuse to elect it. Votes are safe whatever a voter's configuration says, because a candidate counts the votes of the voters in
// its own configuration. So this transport repeats a request for a vote that was not granted, with the receiver's id where raft looks for the
// candidate's id: the receiver may be a voter in its own configuration. The receiver records the candidate's address, which stays, and grants
// one vote in a term.
type correctedTransport struct {
	raft.Transport
	running atomic.Pointer[raft.Raft]
}

// SetHeartbeatHandler implements raft.Transport.
func (g *correctedTransport) SetHeartbeatHandler(handle func(raft.RPC)) {
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

// RequestVote implements raft.Transport.
func (g *correctedTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, request *raft.RequestVoteRequest, response *raft.RequestVoteResponse) error {
	if err := g.Transport.RequestVote(id, target, request, response); err != nil || response.Granted {
		return err
	}
	named, answer := *request, raft.RequestVoteResponse{}
	named.ID = []byte(id)
	if err := g.Transport.RequestVote(id, target, &named, &answer); err == nil {
		*response = answer
	}
	return nil
}

// RequestPreVote implements raft.WithPreVote.
func (g *correctedTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, request *raft.RequestPreVoteRequest, response *raft.RequestPreVoteResponse) error {
	transport := g.Transport.(raft.WithPreVote)
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

// Close implements raft.WithClose.
func (g *correctedTransport) Close() error {
	if closer, ok := g.Transport.(raft.WithClose); ok {
		return closer.Close()
	}
	return nil
}

var (
	_ raft.WithPreVote = (*correctedTransport)(nil)
	_ raft.WithClose   = (*correctedTransport)(nil)
)
