package transport

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// After the first refusal in a pipeline, raft's reader reads no more answers, and its sender may
// send a few more messages before it notices. None of these sends may wait until an answer is read.
func TestAPipelineTakesMoreWhenNobodyListens(t *testing.T) {
	follower := listen(t, "n2", nil, knowing(peer.Known, "n1"))
	leader := listen(t, "n1", nil, knowing(peer.Known, "n2"))
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
			if _, err := pipeline.AppendEntries(&raft.AppendEntriesRequest{},
				&raft.AppendEntriesResponse{}); err != nil {
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

// answering is a pipeline that answers each message at once. AppendEntries blocks until that answer
// is read.
type answering struct {
	answers chan raft.AppendFuture
	closed  chan struct{}
}

func (a *answering) AppendEntries(*raft.AppendEntriesRequest,
	*raft.AppendEntriesResponse,
) (raft.AppendFuture, error) {
	select {
	case a.answers <- nil:
		return nil, nil
	case <-a.closed:
		return nil, raft.ErrPipelineShutdown
	}
}

func (a *answering) Consumer() <-chan raft.AppendFuture { return a.answers }

func (a *answering) Close() error {
	close(a.closed)
	return nil
}

// † Raft may go on sending after it has stopped to read the answers: a send fails before it would
// block for ever.
func TestSendIntoAPipelineThatNobodyListensToFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipeline(&answering{
			answers: make(chan raft.AppendFuture),
			closed:  make(chan struct{}),
		})
		sent := 0
		for ; sent < 2*maxUnread; sent++ { // a send that does not return is a deadlock of the test
			if _, err := p.AppendEntries(nil, nil); err != nil {
				if !errors.Is(err, raft.ErrPipelineShutdown) {
					t.Error(err)
				}
				break
			}
			synctest.Wait()
		}
		if sent == 2*maxUnread || sent == 0 {
			t.Errorf("%d were sent", sent)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}
