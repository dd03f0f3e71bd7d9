package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// hangingSnapshot has some bytes, and then neither more nor an end.
type hangingSnapshot struct {
	io.Reader
	end <-chan struct{}
}

func (h hangingSnapshot) Read(p []byte) (int, error) {
	if n, err := h.Reader.Read(p); n > 0 {
		return n, err
	}
	<-h.end
	return 0, io.ErrUnexpectedEOF
}

// Raft gives up a snapshot whose sender hangs within it. An idle connection, on which no request
// has begun, has no time limit.
func TestSnapshotThatStallsIsGivenUp(t *testing.T) {
	from, to := listen(t, "n1", nil, knowing(peer.Known, "n2")),
		listen(t, "n2", nil, knowing(peer.Known, "n1"))
	to.stallTime = 200 * time.Millisecond
	receiver, sender := to.Raft(), from.Raft()
	for _, opened := range []raft.Transport{receiver, sender} {
		t.Cleanup(func() { _ = opened.(raft.WithClose).Close() })
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	received := make(chan error, 1)
	go func() {
		for {
			select {
			case rpc := <-receiver.Consumer():
				if rpc.Reader != nil {
					_, err := io.Copy(io.Discard, rpc.Reader)
					received <- err
				}
				rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
			case <-ctx.Done():
				return
			}
		}
	}()
	server := to.server()
	entries := func() error {
		return sender.AppendEntries(server.ID, server.Address, &raft.AppendEntriesRequest{Term: 1},
			&raft.AppendEntriesResponse{})
	}
	for range 2 {
		if err := entries(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * to.stallTime) // the connection is idle: that is no stall
	}

	end, sent := make(chan struct{}), make(chan error, 1)
	snapshot := hangingSnapshot{bytes.NewReader(make([]byte, 1000)), end}
	go func() {
		sent <- sender.InstallSnapshot(server.ID, server.Address,
			&raft.InstallSnapshotRequest{Term: 1, Size: 1 << 20}, &raft.InstallSnapshotResponse{},
			snapshot)
	}()
	select {
	case err := <-received:
		if !errors.As(err, new(interface{ Timeout() bool })) {
			t.Errorf("the snapshot ends with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the receiver still waits")
	}
	close(end)
	if err := <-sent; err == nil {
		t.Error("half a snapshot is sent as a whole")
	}
	if err := entries(); err != nil {
		t.Error(err)
	}
}
