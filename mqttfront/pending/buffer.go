package pending

import (
	"cmp"
	"container/list"
	"iter"
	"slices"
	"time"

	"holdfast/fsm"
)

// Buffer is the requests of a node that are not known to be answered, each client's in the order in which it sent them, and hints about others. It is
// not safe for concurrent use.
type Buffer struct {
	maxRequests, maxBytes int

	order    *list.List // of *Request
	byID     map[fsm.RequestID]*Request
	bytes    int
	sequence uint64 // the last number that Add or renumber assigned
	// outcomes are held requests with a known outcome whose reply is not known to be published, by index.
	outcomes []heldOutcome
	writing  map[string]int // by client key: how many writes the store has

	hints Hints
}

// heldOutcome is a held request with the index of the entry that has its outcome.
type heldOutcome struct {
	request *Request
	index   uint64
}

// NewBuffer returns an empty buffer for so many requests and bytes.
func NewBuffer(maxRequests, maxBytes int) Buffer {
	return Buffer{
		maxRequests: maxRequests, maxBytes: maxBytes,
		order: list.New(), byID: make(map[fsm.RequestID]*Request), writing: make(map[string]int),
	}
}

// Hints returns what is known of requests that ended, whether or not they are in the buffer.
func (p *Buffer) Hints() *Hints { return &p.hints }

// Len returns the number of requests.
func (p *Buffer) Len() int { return p.order.Len() }

// Bytes returns the memory that the requests keep, in bytes.
func (p *Buffer) Bytes() int { return p.bytes }

// Get returns the request that counts for an id, or nil.
func (p *Buffer) Get(id fsm.RequestID) *Request { return p.byID[id] }

// All returns the requests in their order. The current one may be removed.
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

// Full reports whether there is no room to keep a request. A single one always finds room.
func (p *Buffer) Full(r *Request) bool {
	return p.order.Len() > 0 && (p.bytes+r.Size > p.maxBytes || p.order.Len() >= p.maxRequests)
}

// Crowded reports whether more than half of the room is taken.
func (p *Buffer) Crowded() bool { return 2*p.bytes > p.maxBytes || 2*p.order.Len() > p.maxRequests }

// Add adds a request behind the others. It is the one that counts for its id.
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

// Learn notes how a request ended, at a log index. expected says that this node holds the request, or will receive it.
func (p *Buffer) Learn(id fsm.RequestID, end End, index uint64, expected bool, now time.Time) {
	if id.IsZero() {
		return
	}
	r, held := p.byID[id]
	if expected && held && r.outcome < index { // a greater one is of a leader that answers the request again
		r.SetOutcomeIndex(index)
		r.awaitsReport = false
		p.outcomes = append(p.outcomes, heldOutcome{r, index})
	}
	if early := expected && !held; early || end == EndNoReply {
		p.hints.Ended(id, end, index, early, now)
	} else {
		p.hints.outcomeLogged(id)
	}
}

// AddOutcome notes that a held request has its outcome, and may be released when that is published.
func (p *Buffer) AddOutcome(r *Request) {
	at := len(p.outcomes)
	for at > 0 && p.outcomes[at-1].index > r.outcome {
		at--
	}
	p.outcomes = slices.Insert(p.outcomes, at, heldOutcome{r, r.outcome})
}

// FindOutcomes looks for all held requests that have an outcome.
func (p *Buffer) FindOutcomes() {
	p.outcomes = nil
	for r := range p.All() {
		if r.state.IsHeld() && r.outcome != 0 {
			p.outcomes = append(p.outcomes, heldOutcome{r, r.outcome})
		}
	}
	slices.SortStableFunc(p.outcomes, func(a, b heldOutcome) int { return cmp.Compare(a.index, b.index) })
}

// ForgetOutcomes forgets which held requests have an outcome: a new leader sends their replies.
func (p *Buffer) ForgetOutcomes() { p.outcomes = nil }

// AwaitReports makes the held requests that have an outcome wait for the leader's report: the leader that executed them does
// not lead any more.
func (p *Buffer) AwaitReports() {
	for _, c := range p.outcomes {
		c.request.awaitsReport = true
	}
}

// Released returns the held requests whose outcomes are published up to an index, except those that await a report. They are
// to be removed. A request with a newer outcome is in the list again.
func (p *Buffer) Released(published uint64) (released []*Request) {
	for len(p.outcomes) > 0 && p.outcomes[0].index <= published {
		if r := p.outcomes[0].request; r.state.IsHeld() && !r.awaitsReport && r.outcome == p.outcomes[0].index {
			released = append(released, r)
		}
		p.outcomes = p.outcomes[1:]
	}
	return released
}

// BeginWrite notes that the store has a request that its client's reads must not overtake.
func (p *Buffer) BeginWrite(r *Request) {
	p.writing[r.ClientKey()]++
	r.writing = true
}

// EndWrite ends what BeginWrite began, if it did.
func (p *Buffer) EndWrite(r *Request) {
	if !r.writing {
		return
	}
	r.writing = false
	if p.writing[r.ClientKey()]--; p.writing[r.ClientKey()] == 0 {
		delete(p.writing, r.ClientKey())
	}
}

// Writes returns how many writes of a client the store has.
func (p *Buffer) Writes(client string) int { return p.writing[client] }

// EndWrites ends all writes, at the end of a leadership.
func (p *Buffer) EndWrites() {
	for r := range p.All() {
		r.writing = false
	}
	clear(p.writing)
}

// NoConflictingWrite reports whether the store has no write of the read's client: a read must not overtake them. A read without a
// client id may be any client's, so it waits for all writes.
func (p *Buffer) NoConflictingWrite(r *Request) bool {
	if r.Command.Principal.ClientID == "" {
		return len(p.writing) == 0
	}
	return p.writing[r.ClientKey()] == 0
}

// KeepFirst resolves two copies of a request: a leader, or a node that is the only holder, buffers every copy, another follower one. The first one keeps its place among its
// client's requests and absorbs the other one, which KeepFirst returns: the caller removes it. It returns nil if there is none, or
// if the store still has it. Then KeepFirst is called again when the store gives it back.
func (p *Buffer) KeepFirst(r *Request) (dropped *Request) {
	id := r.Command.ID
	if id.IsZero() {
		return nil
	}
	kept, other := r, p.byID[id]
	switch {
	case other == r:
		if r.outcome != 0 {
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
	if kept.outcome != 0 {
		p.AddOutcome(kept)
	}
	if other == nil || !other.state.IsHeld() {
		return nil
	}
	return other
}
