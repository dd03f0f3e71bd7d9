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
				t.appendEntries(ctx, rpc, request)
			case *raft.InstallSnapshotRequest:
				t.installSnapshot(ctx, rpc, request)
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

// ask returns raft's answer to a request, and whether there is one: there is none when the context ends.
func (t *Transport) ask(ctx context.Context, request *raft.AppendEntriesRequest) (answer raft.AppendEntriesResponse, failed error, ok bool) {
	answers := make(chan raft.RPCResponse, 1)
	t.pass(ctx, raft.RPC{Command: request, RespChan: answers})
	select {
	case response := <-answers:
		if appended, is := response.Response.(*raft.AppendEntriesResponse); is {
			answer = *appended
		}
		return answer, response.Error, true
	case <-ctx.Done():
		return answer, nil, false
	}
}

// appendEntries passes on entries. Those that begin at or below this node's snapshot begin behind it. The request itself is not changed: it may be in
// its sender's hands, too.
func (t *Transport) appendEntries(ctx context.Context, rpc raft.RPC, request *raft.AppendEntriesRequest) {
	request = withoutUncompared(request)
	rpc.Command = request
	index, term := t.Snapshot()
	if !beginsWithin(request, index, term) {
		t.pass(ctx, rpc)
		return
	}
	answer, err, ok := t.ask(ctx, behindSnapshot(request, index, term))
	if ok && err == nil && !answer.Success && answer.Term <= request.Term {
		// Raft goes by the term that it remembers of its last entry, if that is at the snapshot's index, and not by the log.
		answer, err, ok = t.ask(ctx, t.acrossSnapshot(request, index, term))
	}
	if ok {
		rpc.Respond(&answer, err)
	}
}

// withoutUncompared returns the request with a commit index no higher than its last entry.
func withoutUncompared(request *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	last := request.PrevLogEntry + uint64(len(request.Entries)) // they are consecutive
	if request.LeaderCommitIndex <= last {
		return request
	}
	changed := *request
	changed.LeaderCommitIndex = last
	return &changed
}

// beginsWithin reports whether entries begin at the snapshot or below it. They are the snapshot's own as far as it goes; raft handles entries that
// disagree with it, which no leader has.
func beginsWithin(request *raft.AppendEntriesRequest, index, term uint64) bool {
	previous := request.PrevLogEntry
	switch {
	case index == 0 || previous > index || previous == 0 && len(request.Entries) == 0: // the last is a heartbeat
		return false
	case previous == index:
		return request.PrevLogTerm == term
	case index-previous <= uint64(len(request.Entries)):
		return request.Entries[index-previous-1].Term == term
	default:
		return true
	}
}

// behindSnapshot returns the request from the snapshot on.
func behindSnapshot(request *raft.AppendEntriesRequest, index, term uint64) *raft.AppendEntriesRequest {
	changed := *request
	changed.Entries = request.Entries[min(index-request.PrevLogEntry, uint64(len(request.Entries))):]
	changed.PrevLogEntry, changed.PrevLogTerm = index, term
	return &changed
}

// acrossSnapshot is behindSnapshot with the snapshot's last entry before it. The log answers that it has this entry, and what raft remembers of its last
// entry is replaced by the entries behind.
func (t *Transport) acrossSnapshot(request *raft.AppendEntriesRequest, index, term uint64) *raft.AppendEntriesRequest {
	changed := behindSnapshot(request, index, term)
	previous, last := &raft.Log{}, &raft.Log{}
	if t.log.GetLog(index, last) != nil || index > 1 && t.log.GetLog(index-1, previous) != nil {
		return changed // raft fails likewise
	}
	changed.Entries = append([]*raft.Log{last}, changed.Entries...)
	changed.PrevLogEntry, changed.PrevLogTerm = index-1, previous.Term
	return changed
}

// installSnapshot passes a snapshot on, unless this node has the snapshot's last entry: then it answers that the snapshot is installed. Raft gets
// no other request meanwhile, so that the answer still holds when the snapshot is passed on.
func (t *Transport) installSnapshot(ctx context.Context, rpc raft.RPC, request *raft.InstallSnapshotRequest) {
	for {
		probe := &raft.AppendEntriesRequest{RPCHeader: request.RPCHeader, Term: request.Term}
		index, _ := t.Snapshot()
		if request.LastLogIndex > index { // otherwise it is enough that raft takes the sender for the leader
			probe.PrevLogEntry, probe.PrevLogTerm = request.LastLogIndex, request.LastLogTerm
		}
		answer, err, ok := t.ask(ctx, probe)
		if !ok {
			return
		}
		if answer.Success && err == nil {
			_, _ = io.Copy(io.Discard, rpc.Reader) // the sender reads the answer when it has written everything
			rpc.Respond(&raft.InstallSnapshotResponse{RPCHeader: answer.RPCHeader, Term: answer.Term, Success: true}, nil)
			return
		}
		// A snapshot that this node has taken meanwhile may have cut from the log what was asked for.
		if again, _ := t.Snapshot(); again == index || answer.Term > request.Term {
			t.pass(ctx, rpc)
			return
		}
	}
}
