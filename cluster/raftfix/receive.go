package raftfix

import (
	"context"
	"io"

	"github.com/hashicorp/raft"
)

// receive forwards requests to raft, one at a time, until the context ends. A request in progress
// then gets no response; raft does the same at shutdown.
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
				t.forward(ctx, rpc)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (t *Transport) forward(ctx context.Context, rpc raft.RPC) {
	select {
	case t.requests <- rpc:
	case <-ctx.Done():
	}
}

// ask returns raft's answer to a request. ok is false if the context ended before there was an
// answer.
func (t *Transport) ask(ctx context.Context,
	request *raft.AppendEntriesRequest,
) (answer raft.AppendEntriesResponse, err error, ok bool) {
	answers := make(chan raft.RPCResponse, 1)
	t.forward(ctx, raft.RPC{Command: request, RespChan: answers})
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

// appendEntries forwards an AppendEntries, without the entries that the snapshot covers. It does
// not modify the request: an in-process sender may share it.
func (t *Transport) appendEntries(ctx context.Context, rpc raft.RPC,
	request *raft.AppendEntriesRequest,
) {
	request = capCommitIndex(request)
	rpc.Command = request
	index, term := t.FollowerSnapshot()
	if !previousInSnapshot(request, index, term) {
		t.forward(ctx, rpc)
		return
	}
	answer, err, ok := t.ask(ctx, afterSnapshot(request, index, term))
	if ok && err == nil && !answer.Success && answer.Term <= request.Term {
		// If PrevLogEntry is raft's last index, raft compares PrevLogTerm with its cached last term
		// and not with GetLog. The cached term may be a deposed leader's. Retry from one entry
		// earlier.
		answer, err, ok = t.ask(ctx, t.fromSnapshotEntry(request, index, term))
	}
	if ok {
		rpc.Respond(&answer, err)
	}
}

// capCommitIndex returns the request with a commit index no higher than its last entry.
func capCommitIndex(request *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	last := request.PrevLogEntry + uint64(len(request.Entries)) // the entries are consecutive
	if request.LeaderCommitIndex <= last {
		return request
	}
	changed := *request
	changed.LeaderCommitIndex = last
	return &changed
}

// previousInSnapshot reports whether PrevLogEntry is at or below the snapshot's last index, and the
// terms at that index do not differ. It returns false for a heartbeat, and if there is no snapshot.
// Raft handles these requests unchanged.
func previousInSnapshot(request *raft.AppendEntriesRequest, index, term uint64) bool {
	previous := request.PrevLogEntry
	switch {
	case index == 0 || previous > index || previous == 0 && len(request.Entries) == 0:
		// a heartbeat has neither PrevLogEntry nor entries
		return false
	case previous == index:
		return request.PrevLogTerm == term
	case index-previous <= uint64(len(request.Entries)):
		return request.Entries[index-previous-1].Term == term
	default:
		return true
	}
}

// afterSnapshot returns the request without the entries up to the snapshot.
func afterSnapshot(request *raft.AppendEntriesRequest, index,
	term uint64,
) *raft.AppendEntriesRequest {
	changed := *request
	changed.Entries = request.Entries[min(index-request.PrevLogEntry,
		uint64(len(request.Entries))):]
	changed.PrevLogEntry, changed.PrevLogTerm = index, term
	return &changed
}

// fromSnapshotEntry returns the request with the snapshot's last entry prepended. GetLog returns
// the same term for this entry, so raft skips it. Raft then appends the remaining entries, if any,
// and that updates its cached last term.
func (t *Transport) fromSnapshotEntry(request *raft.AppendEntriesRequest, index,
	term uint64,
) *raft.AppendEntriesRequest {
	changed := afterSnapshot(request, index, term)
	previous, last := &raft.Log{}, &raft.Log{}
	if t.log.GetLog(index, last) != nil || index > 1 && t.log.GetLog(index-1, previous) != nil {
		return changed // a read failed: raft rejects the request, as before
	}
	changed.Entries = append([]*raft.Log{last}, changed.Entries...)
	changed.PrevLogEntry, changed.PrevLogTerm = index-1, previous.Term
	return changed
}

// installSnapshot forwards a snapshot to raft. If this node has the snapshot's last entry, it
// reports the snapshot as installed instead. Between the probe of hasEntry and the snapshot, raft
// gets only heartbeats of its current term. They change neither log nor term, so the probe's result
// still holds.
func (t *Transport) installSnapshot(ctx context.Context, rpc raft.RPC,
	request *raft.InstallSnapshotRequest,
) {
	has, answer, ok := t.hasEntry(ctx, request)
	switch {
	case !ok:
	case has:
		// the sender reads the answer when it has written everything
		_, _ = io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(&raft.InstallSnapshotResponse{
			RPCHeader: answer.RPCHeader, Term: answer.Term,
			Success: true,
		}, nil)
	default:
		t.forward(ctx, rpc)
	}
}

// hasEntry reports whether this node has a snapshot's last entry, with raft's answer to the probe.
// ok is false when the context ends.
func (t *Transport) hasEntry(ctx context.Context, request *raft.InstallSnapshotRequest) (has bool,
	answer raft.AppendEntriesResponse, ok bool,
) {
	for {
		// The first probe has no entry, so it is a heartbeat: raft finishes the requests before it,
		// and checks the sender's term.
		probe := &raft.AppendEntriesRequest{RPCHeader: request.RPCHeader, Term: request.Term}
		answer, err, ok := t.ask(ctx, probe)
		index, _ := t.FollowerSnapshot()
		switch {
		case !ok || err != nil || !answer.Success:
			return false, answer, ok
		case request.LastLogIndex <= index:
			// an entry that this node's snapshot covers is committed
			return true, answer, true
		case request.LastLogIndex > t.raftNode.Load().LastIndex():
			return false, answer, true
		}
		probe.PrevLogEntry, probe.PrevLogTerm = request.LastLogIndex, request.LastLogTerm
		if answer, err, ok = t.ask(ctx, probe); !ok || err == nil && answer.Success {
			return ok, answer, ok
		}
		if again, _ := t.FollowerSnapshot(); again == index {
			// otherwise a local snapshot may have compacted the entry
			return false, answer, true
		}
	}
}
