package transport

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster"
)

// Raft stops listening to the answers of a pipeline at the first that ends it, and may send a few more messages before it sees
// that: none of them may wait for somebody who listens.
func TestAPipelineTakesMoreWhenNobodyListens(t *testing.T) {
	follower := listen(t, "n2", nil, members(cluster.Known, "n1"))
	leader := listen(t, "n1", nil, members(cluster.Known, "n2"))
	there, here := follower.Raft(), leader.Raft()
	done := make(chan struct{})
	t.Cleanup(func() {
		close(done)
		for _, end := range []raft.Transport{here, there} {
			if err := end.(raft.WithClose).Close(); err != nil {
				t.Error(err)
			}
		}
	})
	go func() {
		for {
			select {
			case rpc := <-there.Consumer():
				rpc.Respond(&raft.AppendEntriesResponse{Success: false}, nil)
			case <-done:
				return
			}
		}
	}()
	pipeline, err := here.AppendEntriesPipeline("n2", raft.ServerAddress(follower.Address()))
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		for range 8 {
			if _, err := pipeline.AppendEntries(&raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{}); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	select {
	case err := <-sent:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a message waits for ever")
	}
	if err := pipeline.Close(); err != nil {
		t.Error(err)
	}
}
