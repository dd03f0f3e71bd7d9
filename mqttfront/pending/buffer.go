package pending

import (
	"cmp"
	"container/list"
	"iter"
	"slices"
	"time"

	"holdfast/fsm"
)

// Buffer has the requests of a node that are not known to be answered. Each client's requests are in the order of arrival, or in the order that Merge
// estimated. It also has hints of how requests ended. It is not safe for concurrent use.
type Buffer struct {
	maxRequests, maxBytes int

	order    *list.List // of *Request
	byID     map[fsm.RequestID]*Request
	bytes    int
	sequence uint64 // the last number that Add or renumber assigned
	// outcomes has the requests with an outcome in the log, by index. It may have entries of requests that have left the state StateOutcomeKnown, and
	// superseded entries of requests with a newer outcome: TakePublished skips both.
	outcomes  []loggedOutcome
	proposals map[string]int // by client key: proposals without a result yet; they include GETs that wait for a write, the no-ops of SCANs, and refusals

	hints Hints
}

// loggedOutcome is a request with the index of the entry that has its outcome.
type loggedOutcome struct {
	request *Request
	index   uint64
}

// NewBuffer returns an empty buffer for so many requests and bytes.
func NewBuffer(maxRequests, maxBytes int) Buffer {
	return Buffer{
		maxRequests: maxRequests, maxBytes: maxBytes,
		order: list.New(), byID: make(map[fsm.RequestID]*Request), proposals: make(map[string]int),
	}
}

// Hints returns what is known of requests that ended, whether or not they are in the buffer.
func (p *Buffer) Hints() *Hints { return &p.hints }

// Len returns the number of requests.
func (p *Buffer) Len() int { return p.order.Len() }

// Bytes returns the memory that the requests keep, in bytes.
func (p *Buffer) Bytes() int { return p.bytes }

// Get returns the request with an id, or nil. If the buffer has several copies, it is the last one added, until KeepFirst has chosen one.
func (p *Buffer) Get(id fsm.RequestID) *Request { return p.byID[id] }

// All returns the requests in their order. The loop may remove the current request. It must not remove a later one: that would end the loop early.
func (p *Buffer) All() iter.Seq[*Request] {
	return func(yield func(*Request) bool) {
		for element := p.order.Front(); element != nil; {
			r := element.Value.(*Request)
			element = element.Next()
			if !yield(r) {
				return
			}
		}
	}
}

// Full reports whether there is no room to keep a request. An empty buffer has room for any request.
func (p *Buffer) Full(r *Request) bool {
	return p.order.Len() > 0 && (p.bytes+r.Size > p.maxBytes || p.order.Len() >= p.maxRequests)
}

// Crowded reports whether more than half of the room is taken.
func (p *Buffer) Crowded() bool { return 2*p.bytes > p.maxBytes || 2*p.order.Len() > p.maxRequests }

// Add adds a request behind the others. From now on Get returns it for its id.
func (p *Buffer) Add(r *Request) {
	p.sequence++
	r.Sequence = p.sequence
	r.element = p.order.PushBack(r)
	p.bytes += r.Size
	if !r.Command.ID.IsZero() {
		p.byID[r.Command.ID] = r
	}
}

// Remove removes a request, and reports whether it was there.
func (p *Buffer) Remove(r *Request) bool {
	if r.state == StateDone {
		return false
	}
	r.state = StateDone
	p.order.Remove(r.element)
	p.bytes -= r.Size
	if p.byID[r.Command.ID] == r {
		delete(p.byID, r.Command.ID)
	}
	return true
}

// renumber makes sequences ascend with the order.
func (p *Buffer) renumber() {
	for r := range p.All() {
		p.sequence++
		r.Sequence = p.sequence
	}
}

// RecordEnd notes how a request ended, at a log index. expected says that this node holds the request, or will receive it.
func (p *Buffer) RecordEnd(id fsm.RequestID, end End, index uint64, expected bool, now time.Time) {
	if id.IsZero() {
		return
	}
	r, present := p.byID[id]
	if expected && present && r.outcomeIndex < index { // index is greater if a leader answers the request again, by a later entry
		r.SetOutcomeIndex(index)
		r.awaitsReport = false
		p.outcomes = append(p.outcomes, loggedOutcome{r, index})
	}
	if early := expected && !present; early || end == EndNoReply {
		p.hints.RecordEnd(id, end, index, early, now)
	} else {
		p.hints.removeUnanswered(id)
	}
}

// AddOutcome inserts a held request whose outcome is known into outcomes. The request is released when the outcome is published.
func (p *Buffer) AddOutcome(r *Request) {
	at := len(p.outcomes)
	for at > 0 && p.outcomes[at-1].index > r.outcomeIndex {
		at--
	}
	p.outcomes = slices.Insert(p.outcomes, at, loggedOutcome{r, r.outcomeIndex})
}

// FindOutcomes sets outcomes from the held requests that have an outcome.
func (p *Buffer) FindOutcomes() {
	p.outcomes = nil
	for r := range p.All() {
		if r.state.IsHeld() && r.outcomeIndex != 0 {
			p.outcomes = append(p.outcomes, loggedOutcome{r, r.outcomeIndex})
		}
	}
	slices.SortStableFunc(p.outcomes, func(a, b loggedOutcome) int { return cmp.Compare(a.index, b.index) })
}

// ForgetOutcomes clears outcomes: a new leader answers these requests itself, and releases them after their replies.
func (p *Buffer) ForgetOutcomes() { p.outcomes = nil }

// AwaitReports makes the held requests that have an outcome wait for the present leader's report that they were answered.
// It is called after a change of the leader: the former leader, which executed them, reports no more.
func (p *Buffer) AwaitReports() {
	for _, c := range p.outcomes {
		c.request.awaitsReport = true
	}
}

// TakePublished removes from outcomes all entries up to published, the delivery watermark: the log index up to which no reply is outstanding. It returns
// the held requests among them that await no report. The caller removes these from the buffer.
func (p *Buffer) TakePublished(published uint64) (released []*Request) {
	for len(p.outcomes) > 0 && p.outcomes[0].index <= published {
		if r := p.outcomes[0].request; r.state.IsHeld() && !r.awaitsReport && r.outcomeIndex == p.outcomes[0].index {
			released = append(released, r)
		}
		p.outcomes = p.outcomes[1:]
	}
	return released
}

// BeginProposal records that a request was submitted to the log: its client's reads must not overtake it.
func (p *Buffer) BeginProposal(r *Request) {
	p.proposals[r.ClientKey()]++
	r.proposed = true
}

// EndProposal ends what BeginProposal began, if it did.
func (p *Buffer) EndProposal(r *Request) {
	if !r.proposed {
		return
	}
	r.proposed = false
	if p.proposals[r.ClientKey()]--; p.proposals[r.ClientKey()] == 0 {
		delete(p.proposals, r.ClientKey())
	}
}

// Proposals returns how many requests of a client were submitted to the log and not yet ended.
func (p *Buffer) Proposals(client string) int { return p.proposals[client] }

// EndAllProposals ends what BeginProposal began for all requests. It is called at the end of a leadership.
func (p *Buffer) EndAllProposals() {
	for r := range p.All() {
		r.proposed = false
	}
	clear(p.proposals)
}

// NoConflictingWrite reports whether no request of the read's client is on its way through the log (BeginProposal): a read must not overtake
// a write. A read without a client id may be any client's, so it waits for those of all clients.
func (p *Buffer) NoConflictingWrite(r *Request) bool {
	if r.Command.Principal.ClientID == "" {
		return len(p.proposals) == 0
	}
	return p.proposals[r.ClientKey()] == 0
}

// KeepFirst resolves two copies of a request. Two copies meet in the buffer of a leader, and in that of a node that alone has received the request. The copy
// with the lower Sequence keeps its place and absorbs the other. KeepFirst returns the absorbed copy, and the caller removes it. It returns nil if there is no
// other copy, or if the absorbed copy is being executed or waits to be published. In that case the caller calls KeepFirst again with the absorbed copy when it
// is held again.
func (p *Buffer) KeepFirst(r *Request) (dropped *Request) {
	id := r.Command.ID
	if id.IsZero() {
		return nil
	}
	kept, other := r, p.byID[id]
	switch {
	case other == r:
		if r.outcomeIndex != 0 {
			p.AddOutcome(r)
		}
		return nil
	case other == nil || r.Sequence < other.Sequence:
		p.byID[id] = r
	default:
		kept, other = other, r
	}
	if other != nil {
		kept.Absorb(other)
	}
	if kept.outcomeIndex != 0 {
		p.AddOutcome(kept)
	}
	if other == nil || !other.state.IsHeld() {
		return nil
	}
	return other
}
