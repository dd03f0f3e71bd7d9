package corrected

import (
	"context"
	"io"

	"github.com/hashicorp/raft"
)

// receive passes on what other members send, one request at a time, until the context ends. What is in its hands then is not answered, as
// raft does not answer what waits for it when it ends.
func (t *Transport) receive(ctx context.Context, from <-chan raft.RPC) {
	for {
		select {
		case rpc := <-from:
			switch request := rpc.Command.(type) {
			case *raft.AppendEntriesRequest:
				rpc.Command = fromSnapshot(request, t.snapshot)
				t.pass(ctx, rpc)
			case *raft.InstallSnapshotRequest:
				t.installIfNeeded(ctx, rpc, request)
			default:
				t.pass(ctx, rpc)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (t *Transport) pass(ctx context.Context, rpc raft.RPC) {
	select {
	case t.requests <- rpc:
	case <-ctx.Done():
	}
}

// fromSnapshot returns the request without what lies at or below this node's newest snapshot, and with a commit index no higher than its last
// entry. It does not change the request, which may be in the sender's hands, too.
func fromSnapshot(request *raft.AppendEntriesRequest, snapshot func() (index, term uint64)) *raft.AppendEntriesRequest {
	if request.PrevLogEntry == 0 && len(request.Entries) == 0 {
		return request // a heartbeat
	}
	index, term := snapshot()
	last := request.PrevLogEntry + uint64(len(request.Entries)) // they are consecutive
	if request.PrevLogEntry >= index && request.LeaderCommitIndex <= last {
		return request
	}
	changed := *request
	if changed.PrevLogEntry < index {
		changed.Entries = changed.Entries[min(index-changed.PrevLogEntry, uint64(len(changed.Entries))):]
		changed.PrevLogEntry, changed.PrevLogTerm = index, term
		last = max(last, index)
	}
	changed.LeaderCommitIndex = min(changed.LeaderCommitIndex, last)
	return &changed
}

// installIfNeeded passes a snapshot on, unless this node has the snapshot's last entry: then it answers that the snapshot is installed. Raft gets
// nothing else meanwhile, so that the answer still holds when the snapshot is passed on.
func (t *Transport) installIfNeeded(ctx context.Context, rpc raft.RPC, request *raft.InstallSnapshotRequest) {
	probe := &raft.AppendEntriesRequest{
		RPCHeader: request.RPCHeader, Term: request.Term, PrevLogEntry: request.LastLogIndex, PrevLogTerm: request.LastLogTerm,
	}
	for {
		sent := fromSnapshot(probe, t.snapshot)
		answer, ok := t.ask(ctx, sent)
		if !ok {
			return
		}
		if answer.Success {
			_, _ = io.Copy(io.Discard, rpc.Reader) // the connection's next request is behind it; an error shows there
			rpc.Respond(&raft.InstallSnapshotResponse{RPCHeader: answer.RPCHeader, Term: answer.Term, Success: true}, nil)
			return
		}
		// A snapshot that this node has taken meanwhile may have cut from the log what was asked for.
		if again := fromSnapshot(probe, t.snapshot); again.PrevLogEntry == sent.PrevLogEntry {
			t.pass(ctx, rpc)
			return
		}
	}
}

// ask returns raft's answer to a request, and whether there is one: there is none when the context ends.
func (t *Transport) ask(ctx context.Context, request *raft.AppendEntriesRequest) (answer raft.AppendEntriesResponse, ok bool) {
	answers := make(chan raft.RPCResponse, 1)
	t.pass(ctx, raft.RPC{Command: request, RespChan: answers})
	select {
	case response := <-answers:
		if appended, is := response.Response.(*raft.AppendEntriesResponse); is && response.Error == nil {
			answer = *appended
		}
		return answer, true
	case <-ctx.Done():
		return answer, false
	}
}
