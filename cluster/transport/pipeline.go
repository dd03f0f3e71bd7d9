package transport

import (
	"sync"

	"github.com/hashicorp/raft"
)

// pipeline hands the answers on through a buffer. Raft v1.7.3 listens no more after an answer that ends its pipeline, a refusal
// for instance, and may send again before it notices: its own pipeline has nowhere to put the next answer then, so the send after
// that never returns. The follower would get nothing more from this leader, and Shutdown would not return either.
type pipeline struct {
	raft.AppendPipeline
	answers chan raft.AppendFuture
	closing sync.Once
	closed  chan struct{}
	passing sync.WaitGroup
}

// maxUnheard bounds the answers that raft has not read. Raft checks before every other message, on average, whether its pipeline has ended. The pipeline
// sends nothing more when half of maxUnheard wait. The other half is room for answers to messages in flight.
const maxUnheard = 64

func newPipeline(inner raft.AppendPipeline) *pipeline {
	p := &pipeline{AppendPipeline: inner, answers: make(chan raft.AppendFuture, maxUnheard), closed: make(chan struct{})}
	p.passing.Go(p.pass)
	return p
}

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

// AppendEntries implements raft.AppendPipeline. It fails when raft does not read the answers; raft then closes the pipeline.
func (p *pipeline) AppendEntries(request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if len(p.answers) >= maxUnheard/2 {
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
