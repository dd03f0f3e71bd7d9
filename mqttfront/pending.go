package mqttfront

import (
	"cmp"
	"container/list"
	"iter"
	"slices"
	"time"

	"holdfast/fsm"
)

// pending is the requests of a node that are not known to be answered, each client's in the order in which it sent them, and what is known of
// others. It has no lock, no clock and no I/O: Front.mu guards it, and time is handed in.
//
// A request is in one of these states. It is held when it is pending, committed, a copy or late; the store has it when it is executing, refusing,
// repeating or barring.
//
//	from        when                                                         to
//	-           it arrives, or is taken from another node                    pending, or committed or copy if its outcome is known
//	pending     the log has its outcome, and another node answers            committed
//	held        its outcome was found in the state                           copy
//	pending     the leader proposes it, or reads                             executing
//	pending     the leader proposes to refuse it as overload                 refusing
//	copy        the leader proposes a refusal                                repeating
//	held        the leader proposes a refusal: it expired, was shed, is late,
//	            or has an outcome that may be forgotten                      barring
//	held        a new leader finds its outcome in the state                  delivering
//	executing   the log has its outcome                                      delivering
//	refusing    the log has the refusal, or an outcome from before           delivering
//	repeating,  the log has an outcome from before                           delivering
//	barring
//	repeating,  the log has the refusal                                      done
//	barring
//	in store    the store gives it back, or the node leads no more           as before; late if it was barring
//	delivering  the broker has the reply                                     done
//	delivering  the leadership ends                                          committed, or pending if it is not in the log
//	held        its outcome is published, the leader reports it as answered,
//	            no client waits any more, or it is stale                     done
type pending struct {
	maxRequests, maxBytes int

	order    *list.List // of *request
	byID     map[fsm.RequestID]*request
	bytes    int
	sequence uint64 // of the last request that was added
	// committed are held requests whose outcome is applied and not yet known to be published, by index.
	committed []committed
	writing   map[string]int // by ordering: writes in the hands of the store
	// needsLookup says that a request may be held that was not looked up in the state: a copy of one that has had its effect.
	needsLookup bool
	hints       hints
}

// committed is a held request with the index of the entry that has its outcome.
type committed struct {
	request *request
	index   uint64
}

func newPending(config *Config) pending {
	return pending{
		maxRequests: config.HoldMessages, maxBytes: config.HoldBytes,
		order: list.New(), byID: make(map[fsm.RequestID]*request), writing: make(map[string]int),
	}
}

func (p *pending) len() int { return p.order.Len() }

// all returns the requests in their order. The current one may be removed.
func (p *pending) all() iter.Seq[*request] {
	return func(yield func(*request) bool) {
		for element := p.order.Front(); element != nil; {
			r := element.Value.(*request)
			element = element.Next()
			if !yield(r) {
				return
			}
		}
	}
}

// full reports whether there is no room to keep a request. A single one always finds room.
func (p *pending) full(r *request) bool {
	return p.order.Len() > 0 && (p.bytes+r.Size > p.maxBytes || p.order.Len() >= p.maxRequests)
}

// add adds a request behind the others. It is the one that counts for its id.
func (p *pending) add(r *request) {
	p.sequence++
	r.sequence = p.sequence
	r.element = p.order.PushBack(r)
	p.bytes += r.Size
	if !r.Command.ID.IsZero() {
		p.byID[r.Command.ID] = r
	}
}

// remove removes a request, and reports whether it was there.
func (p *pending) remove(r *request) bool {
	if r.state == stateDone {
		return false
	}
	r.state = stateDone
	p.order.Remove(r.element)
	p.bytes -= r.Size
	if p.byID[r.Command.ID] == r {
		delete(p.byID, r.Command.ID)
	}
	return true
}

// renumber makes sequences ascend with the order.
func (p *pending) renumber() {
	for r := range p.all() {
		p.sequence++
		r.sequence = p.sequence
	}
}

// learn notes how a request ended, at a log index. expected says that this node holds the request, or will receive it.
func (p *pending) learn(id fsm.RequestID, end requestEnd, index uint64, expected bool, now time.Time) {
	if id.IsZero() {
		return
	}
	r, held := p.byID[id]
	if expected && held && r.outcome == 0 {
		r.commit(index)
		p.committed = append(p.committed, committed{r, index})
	}
	if early := expected && !held; early || end == endShed {
		p.hints.ended(id, end, index, early, now)
	} else {
		p.hints.executed(id)
	}
}

// addCommitted notes that a held request has its outcome, and may be released when that is published.
func (p *pending) addCommitted(r *request) {
	at := len(p.committed)
	for at > 0 && p.committed[at-1].index > r.outcome {
		at--
	}
	p.committed = slices.Insert(p.committed, at, committed{r, r.outcome})
}

// findCommitted looks for all held requests that have an outcome.
func (p *pending) findCommitted() {
	p.committed = nil
	for r := range p.all() {
		if r.state.isHeld() && r.outcome != 0 {
			p.committed = append(p.committed, committed{r, r.outcome})
		}
	}
	slices.SortStableFunc(p.committed, func(a, b committed) int { return cmp.Compare(a.index, b.index) })
}

// released returns the held requests whose outcomes are published up to an index. They are to be removed.
func (p *pending) released(published uint64) (released []*request) {
	for len(p.committed) > 0 && p.committed[0].index <= published {
		if r := p.committed[0].request; r.state.isHeld() {
			released = append(released, r)
		}
		p.committed = p.committed[1:]
	}
	return released
}

// beginWrite notes that the store has a request that its client's reads must not overtake.
func (p *pending) beginWrite(r *request) {
	p.writing[r.ordering()]++
	r.writing = true
}

func (p *pending) endWrite(r *request) {
	if !r.writing {
		return
	}
	r.writing = false
	if p.writing[r.ordering()]--; p.writing[r.ordering()] == 0 {
		delete(p.writing, r.ordering())
	}
}

// endWrites ends all writes, at the end of a leadership.
func (p *pending) endWrites() {
	for r := range p.all() {
		r.writing = false
	}
	clear(p.writing)
}

// noConflictingWrite reports whether no write that the GET has to see can be under way. Without an identity any of them may be its client's.
func (p *pending) noConflictingWrite(r *request) bool {
	if r.Command.Principal.ClientID == "" {
		return len(p.writing) == 0
	}
	return p.writing[r.ordering()] == 0
}

// keepFirst decides between two copies of a request, of which a leader takes in every one: the first keeps its place among its client's
// requests. It returns the other one, which is to be removed, unless the store still has it and gives it back later.
func (p *pending) keepFirst(r *request) (dropped *request) {
	id := r.Command.ID
	if id.IsZero() {
		return nil
	}
	kept, other := r, p.byID[id]
	switch {
	case other == r:
		if r.outcome != 0 {
			p.addCommitted(r)
		}
		return nil
	case other == nil || r.sequence < other.sequence:
		p.byID[id] = r
	default:
		kept, other = other, r
	}
	if other != nil {
		kept.absorb(other)
	}
	if kept.outcome != 0 {
		p.addCommitted(kept)
	}
	if other == nil || !other.state.isHeld() {
		return nil
	}
	return other
}
