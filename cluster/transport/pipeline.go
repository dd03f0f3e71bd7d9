package transport

import (
	"sync"

	"github.com/hashicorp/raft"
)

// pipeline wraps raft's own pipeline with a buffer for answers. In raft v1.7.3 the reader of
// answers stops at a refusal. The sender may send more before it notices that, and raft's own
// pipeline has no room for the answers. A later AppendEntries would then block for ever, and with
// it the replication to this follower and raft's Shutdown.
type pipeline struct {
	raft.AppendPipeline
	answers chan raft.AppendFuture
	closing sync.Once
	closed  chan struct{}
	passing sync.WaitGroup
}

// maxUnread bounds the answers that raft has not read. After raft's reader has stopped, each
// further send still happens with a probability of one half: Go's select picks at random. From
// maxUnread/2 unread answers on, a send fails. The other half is room for answers to messages in
// flight.
const maxUnread = 64

func newPipeline(inner raft.AppendPipeline) *pipeline {
	p := &pipeline{
		AppendPipeline: inner, answers: make(chan raft.AppendFuture, maxUnread),
		closed: make(chan struct{}),
	}
	p.passing.Go(p.pass)
	return p
}

// pass moves answers from raft's own pipeline to the buffer until the pipeline is closed.
func (p *pipeline) pass() {
	for {
		select {
		case answer := <-p.AppendPipeline.Consumer():
			select {
			case p.answers <- answer:
			case <-p.closed:
				return
			}
		case <-p.closed:
			return
		}
	}
}

// AppendEntries implements raft.AppendPipeline. It fails when raft does not read the answers; raft
// then closes the pipeline.
func (p *pipeline) AppendEntries(request *raft.AppendEntriesRequest,
	response *raft.AppendEntriesResponse,
) (raft.AppendFuture, error) {
	if len(p.answers) >= maxUnread/2 {
		return nil, raft.ErrPipelineShutdown
	}
	return p.AppendPipeline.AppendEntries(request, response)
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() error {
	p.closing.Do(func() { close(p.closed) })
	p.passing.Wait()
	return p.AppendPipeline.Close()
}
