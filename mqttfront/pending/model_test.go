package pending

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/internal/policy"
	"holdfast/mqttfront/wire"
)

// modelRequest is a request as the naive model sees it.
type modelRequest struct {
	*Request // the model does not use the fields that the buffer changes
	state    State
	outcome  uint64    // Request.OutcomeIndex
	awaits   bool      // Request.AwaitsReport
	writing  bool      // the request is submitted to the log, between BeginProposal and EndProposal
	listed   []uint64  // the log indexes under which Buffer.outcomes has the request, until the delivery watermark passes them
	holds    time.Time // Request.HoldUntil
	deadline time.Time // Request.Deadline
}

// open is IsOpen of the model.
func (m *modelRequest) open() bool {
	return m.outcome == 0 && !slices.Contains([]State{StateDuplicate, StateRetrieving, StateLate, StateRejecting}, m.state)
}

// expired is Request.Expired of the model.
func (m *modelRequest) expired(now time.Time) bool {
	return !m.holds.After(now) || !m.deadline.After(now)
}

// model is a list of requests, in which everything is found by a search.
type model []*modelRequest

func (n model) of(r *Request) *modelRequest {
	return n[slices.IndexFunc(n, func(m *modelRequest) bool { return m.Request == r })]
}

// with returns the requests with the given id.
func (n model) with(id fsm.RequestID) (copies []*modelRequest) {
	for _, m := range n {
		if m.Command.ID == id && !id.IsZero() {
			copies = append(copies, m)
		}
	}
	return copies
}

func (n model) bytes() (bytes int) {
	for _, m := range n {
		bytes += m.Size
	}
	return bytes
}

// writes counts the writes of a client that the store has, or of all clients if client is empty.
func (n model) writes(client string) (count int) {
	for _, m := range n {
		if m.writing && (client == "" || m.ClientKey() == client) {
			count++
		}
	}
	return count
}

// modelTest applies random operations to a buffer and to its model.
type modelTest struct {
	*testing.T
	random    *rand.Rand
	buffer    Buffer
	model     model
	now       time.Time
	index     uint64 // of the last log entry
	published uint64
}

const (
	modelRequests = 12
	modelBytes    = 1800
)

// A buffer agrees with the model over random operations on requests of three clients. Requests come from clients and from another node. They are executed,
// rejected, answered, given back, found to have an outcome or to be late, released, and listed for another node. At most one request with an id is in
// the buffer at a time, as at a follower.
func TestBufferMatchesModel(t *testing.T) {
	done := make(map[string]int)
	for seed := range uint64(150) {
		m := &modelTest{
			T: t, random: rand.New(rand.NewPCG(seed, 2)), buffer: NewBuffer(modelRequests, modelBytes), now: time.Unix(1_700_000_000, 0),
		}
		for range 300 {
			m.now = m.now.Add(time.Duration(m.random.IntN(500)) * time.Millisecond)
			done[m.step()]++
			m.compare(seed)
			if t.Failed() {
				return
			}
		}
	}
	for name, times := range done {
		if times < 300 {
			t.Errorf("%s happened %d times only", name, times)
		}
	}
}

// step does one random operation, and returns its name.
func (m *modelTest) step() (did string) {
	if choice := m.random.IntN(20); choice < 5 || len(m.model) == 0 {
		return m.add()
	} else if choice < 6 {
		return m.merge()
	} else if choice < 8 {
		return m.ofAll()
	}
	one := m.model[m.random.IntN(len(m.model))]
	if one.state.IsHeld() {
		return m.ofHeld(one)
	}
	return m.ofExecuting(one)
}

// draw returns a request that has just come.
func (m *modelTest) draw() *Request {
	r := m.random
	deadline := m.now.Add(time.Duration(1000+r.IntN(20_000)) * time.Millisecond)
	return &Request{
		Request: wire.Request{
			Size: 50 + r.IntN(100), Deadline: deadline, Command: fsm.Command{
				Kind: fsm.KindDel, Key: []byte("k"), ID: fsm.RequestID{byte(r.IntN(30))}, Principal: policy.Principal{ClientID: []string{"a", "b", "c"}[r.IntN(3)]},
			},
		},
		Arrived: m.now, BrokerAfter: m.now.Add(-time.Duration(r.IntN(1000)) * time.Millisecond), HoldUntil: deadline, SentEstimate: deadline, Done: func() {},
	}
}

func (m *modelTest) full(r *Request) bool {
	return len(m.model) > 0 && (len(m.model) >= modelRequests || m.model.bytes()+r.Size > modelBytes)
}

func (m *modelTest) enter(r *Request) {
	m.model = append(m.model, &modelRequest{Request: r, state: r.state, outcome: r.outcomeIndex, holds: r.HoldUntil, deadline: r.Deadline})
}

func (m *modelTest) add() string {
	r := m.draw()
	if r.Read = m.random.IntN(4) == 0; r.Read {
		r.Command.Kind = fsm.KindGet
	}
	if got := m.buffer.Full(r); got != m.full(r) {
		m.Errorf("full: %v with %d requests, %d bytes", got, len(m.model), m.model.bytes())
	}
	copies := m.model.with(r.Command.ID)
	switch {
	case len(copies) > 0:
		kept := copies[0]
		kept.Absorb(r)
		kept.holds, kept.deadline = later(kept.holds, r.HoldUntil), later(kept.deadline, r.Deadline)
		return "absorb a copy"
	case m.full(r):
		return "no room"
	}
	m.buffer.Add(r)
	m.enter(r)
	return "add"
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// merge merges a list of another node. Some of its requests are in this buffer, and some are not.
func (m *modelTest) merge() string {
	var there []*Request
	for range 3 {
		r := m.draw()
		r.FromPeer = true
		if !slices.ContainsFunc(there, func(other *Request) bool { return other.Command.ID == r.Command.ID }) && !r.Command.ID.IsZero() {
			there = append(there, r)
		}
	}
	free, bytes := modelRequests-len(m.model), modelBytes-m.model.bytes()
	var lacking []*Request
	full, without := 0, make(map[string]bool) // clients without room
	for _, r := range there {
		if len(m.model.with(r.Command.ID)) > 0 {
			continue
		}
		if key := r.ClientKey(); without[key] || len(m.model)+len(lacking) > 0 && (free < 1 || bytes < r.Size) {
			without[key] = true
			full++
			continue
		}
		lacking = append(lacking, r)
		free, bytes = free-1, bytes-r.Size
	}
	added, dropped := m.buffer.Merge(map[string][]*Request{"n2": there}, (*Request).IsOpen)
	if !slices.Equal(added, lacking) || dropped != full {
		m.Errorf("merge added %d requests and dropped %d; want %d and %d", len(added), dropped, len(lacking), full)
	}
	for _, r := range added {
		m.enter(r)
	}
	m.adoptOrder()
	return "merge"
}

// adoptOrder gives the model the buffer's order after a merge. It checks only that requests that are not open keep their order. TestMergedOrderIsTheTrueOne
// of package role checks the order of the others.
func (m *modelTest) adoptOrder() {
	var before, after []*Request
	for _, r := range m.model {
		if !r.open() {
			before = append(before, r.Request)
		}
	}
	var ordered model
	for r := range m.buffer.All() {
		own := m.model.of(r)
		if ordered = append(ordered, own); !own.open() {
			after = append(after, r)
		}
	}
	if !slices.Equal(before, after) {
		m.Error("a merge changed the order of requests that are not open")
	}
	m.model = ordered
}

// ofAll does something that concerns all requests.
func (m *modelTest) ofAll() string {
	switch m.random.IntN(7) {
	case 0, 1, 2:
		m.published = min(m.index, m.published+uint64(m.random.IntN(4)))
		m.release()
		return "release"
	case 3:
		m.buffer.FindOutcomes()
		for _, r := range m.model {
			if r.listed = nil; r.state.IsHeld() && r.outcome != 0 {
				r.listed = []uint64{r.outcome}
			}
		}
		return "find outcomes"
	case 4:
		m.buffer.ForgetOutcomes()
		for _, r := range m.model {
			r.listed = nil
		}
		return "forget outcomes"
	case 5:
		m.buffer.EndAllProposals()
		for _, r := range m.model {
			r.writing = false
		}
		return "end all writes"
	default:
		m.buffer.AwaitReports()
		for _, r := range m.model {
			r.awaits = r.awaits || len(r.listed) > 0
		}
		return "await reports"
	}
}

// release compares which requests are released when the delivery watermark moves to published.
func (m *modelTest) release() {
	var want []*Request
	for _, r := range m.model {
		passed := func(index uint64) bool { return index <= m.published }
		if r.state.IsHeld() && !r.awaits && slices.Contains(r.listed, r.outcome) && passed(r.outcome) {
			want = append(want, r.Request)
		}
		r.listed = slices.DeleteFunc(r.listed, passed)
	}
	got := m.buffer.TakePublished(m.published)
	bySequence := func(a, b *Request) int { return int(a.Sequence) - int(b.Sequence) }
	slices.SortFunc(got, bySequence)
	if got = slices.Compact(got); !slices.Equal(got, want) {
		m.Errorf("%d requests are released up to %d, want %d", len(got), m.published, len(want))
	}
	for _, r := range got {
		m.remove(r)
	}
}

func (m *modelTest) remove(r *Request) {
	m.buffer.EndProposal(r)
	if !m.buffer.Remove(r) || m.buffer.Remove(r) {
		m.Error("Remove did not return true and then false")
	}
	m.model = slices.DeleteFunc(m.model, func(own *modelRequest) bool { return own.Request == r })
}

// ofHeld does something with a held request.
func (m *modelTest) ofHeld(one *modelRequest) string {
	switch m.random.IntN(8) {
	case 0:
		m.learn(one)
		return "learn the outcome of a held request"
	case 1:
		one.MarkDuplicate()
		one.state = StateDuplicate
		return "find the outcome of a held request in the state"
	case 2:
		if one.MarkLate(); one.state == StatePending {
			one.state = StateLate
		}
		return "mark late"
	case 3:
		m.remove(one.Request)
		return "remove"
	case 4:
		if one.outcome == 0 {
			return "nothing"
		}
		m.buffer.AddOutcome(one.Request)
		one.listed = append(one.listed, one.outcome)
		return "add an outcome"
	}
	if one.state == StatePending && m.random.IntN(3) > 0 {
		if one.MarkExecuting(m.now); !one.Read {
			m.buffer.BeginProposal(one.Request)
			one.writing = true
		}
		one.state = StateExecuting
		return "execute"
	}
	one.MarkRejecting(m.now)
	if one.state == StateDuplicate {
		one.state = StateRetrieving
		return "retrieve"
	}
	one.state = StateRejecting
	return "reject"
}

// learn has the buffer learn that the log has the outcome of a request. It may be in the same entry as the last outcome.
func (m *modelTest) learn(one *modelRequest) {
	m.index = max(m.published+1, m.index+uint64(m.random.IntN(2)))
	m.buffer.Learn(one.Command.ID, EndAnswered, m.index, true, m.now)
	if one.Command.ID.IsZero() || m.index == one.outcome {
		return
	}
	one.outcome, one.awaits, one.listed = m.index, false, append(one.listed, m.index)
	if one.state == StatePending || one.state == StateLate {
		one.state = StateOutcomeKnown
	}
}

// ofExecuting does something with a request that the store has, or whose reply is on its way.
func (m *modelTest) ofExecuting(one *modelRequest) string {
	delivering := one.state == StateDelivering
	switch choice := m.random.IntN(5); {
	case choice == 0 && !delivering:
		m.learn(one)
		return "learn the outcome of an executing request"
	case choice == 1 && !delivering:
		one.MarkDuplicate()
		one.state = StateRetrieving
		return "find the outcome of an executing request in the state"
	case choice == 2 && !delivering:
		m.index++
		if one.MarkDelivering(m.index, m.now); !one.Read {
			one.outcome = m.index
		}
		one.state = StateDelivering
		return "deliver"
	case choice == 3:
		m.remove(one.Request)
		return "end"
	}
	m.giveBack(one)
	return "give back"
}

// giveBack makes a request wait at this node again.
func (m *modelTest) giveBack(one *modelRequest) {
	one.MarkHeld()
	m.buffer.EndProposal(one.Request)
	one.writing = false
	switch {
	case one.state == StateRetrieving:
		one.state = StateDuplicate
	case one.outcome != 0:
		one.state = StateOutcomeKnown
	case one.state == StateRejecting:
		one.state = StateLate
	default:
		one.state = StatePending
	}
	if dropped := m.buffer.KeepFirst(one.Request); dropped != nil {
		m.Error("KeepFirst drops a request that has no copy")
	}
	if one.outcome != 0 && !one.Command.ID.IsZero() {
		one.listed = append(one.listed, one.outcome)
	}
}

// compare compares all that the buffer tells of its requests.
func (m *modelTest) compare(seed uint64) {
	var want []*Request
	for _, r := range m.model {
		want = append(want, r.Request)
		if r.Request.State() != r.state || r.OutcomeIndex() != r.outcome || r.AwaitsReport() != r.awaits || r.IsOpen() != r.open() || r.Expired(m.now) != r.expired(m.now) {
			m.Fatalf("seed %d: state %d, outcome %d, awaits a report: %v; want %d, %d, %v", seed, r.Request.State(), r.OutcomeIndex(), r.AwaitsReport(), r.state, r.outcome, r.awaits)
		}
	}
	p := &m.buffer
	if got := slices.Collect(p.All()); !slices.Equal(got, want) || p.Len() != len(want) || p.Bytes() != m.model.bytes() {
		m.Fatalf("seed %d: %d requests, %d bytes; want %d, %d", seed, p.Len(), p.Bytes(), len(want), m.model.bytes())
	}
	if !slices.IsSortedFunc(want, func(a, b *Request) int { return int(a.Sequence) - int(b.Sequence) }) {
		m.Fatalf("seed %d: sequences do not ascend with the order", seed)
	}
	for _, client := range []string{"a", "b", "c", ""} {
		get := &Request{Request: wire.Request{Read: true}}
		get.Command.Principal.ClientID = client
		if free := p.NoConflictingWrite(get); free != (m.model.writes(client) == 0) {
			m.Fatalf("seed %d: NoConflictingWrite(%q) = %v", seed, client, free)
		}
	}
	for id := range byte(30) {
		copies := m.model.with(fsm.RequestID{id})
		if got := p.Get(fsm.RequestID{id}); len(copies) == 0 && got != nil || len(copies) > 0 && got != copies[0].Request {
			m.Fatalf("seed %d: Get does not return the model's request", seed)
		}
	}
	m.comparePages(seed)
}

// comparePages compares the pages that the buffer writes for another node: the page of all requests, and that of old requests without an answer.
func (m *modelTest) comparePages(seed uint64) {
	const age = time.Second
	for _, unanswered := range []bool{false, true} {
		var want []*modelRequest
		for _, r := range m.model {
			keepsOrder := r.open() && m.now.Before(r.holds.Add(orderMemory))
			if r.Command.ID.IsZero() || r.expired(m.now) && !keepsOrder {
				continue
			}
			if unanswered && m.now.Sub(r.Arrived) < age {
				break
			}
			if !unanswered || r.outcome == 0 || r.awaits {
				want = append(want, r)
			}
		}
		least := time.Duration(0)
		if unanswered {
			least = age
		}
		page, next := m.buffer.Page(0, least, m.now)
		got, err := ReadPage(page, m.now, m.now)
		clear(page) // the requests do not refer to it
		if err != nil || next != 0 || len(got) != len(want) {
			m.Fatalf("seed %d: a page of %d requests, want %d; next %d, %v", seed, len(got), len(want), next, err)
		}
		for i, r := range got {
			w := want[i]
			if r.Command.ID != w.Command.ID || r.OutcomeIndex() != w.outcome || r.AwaitsReport() != w.awaits || r.IsDuplicate() != w.IsDuplicate() || r.Relayed != w.FromPeer ||
				string(r.Correlation) != string(w.Correlation) || string(r.Command.Key) != string(w.Command.Key) {
				m.Fatalf("seed %d: request %d of a page is %+v", seed, i, r)
			}
			if r.Arrived.Sub(w.Arrived).Abs() > time.Millisecond || r.HoldUntil.Sub(w.holds).Abs() > time.Millisecond {
				m.Fatalf("seed %d: request %d of a page arrived at %v and is held until %v", seed, i, r.Arrived, r.HoldUntil)
			}
			if r.SentEstimate.Sub(w.SentEstimate).Abs() > time.Millisecond || r.BrokerAfter.Sub(w.BrokerAfter).Abs() > time.Millisecond {
				m.Fatalf("seed %d: request %d of a page has the send order %v, and came to the broker after %v", seed, i, r.SentEstimate, r.BrokerAfter)
			}
		}
	}
}
