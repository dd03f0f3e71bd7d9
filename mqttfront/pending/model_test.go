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

// modelHint is what the naive model knows of how a request ended.
type modelHint struct {
	end    End
	index  uint64    // the greatest log index at which it ended; 0 if only a report says so
	copies int       // copies that are still expected, until AnsweredMemory after when
	when   time.Time // of the last end
}

// expects reports whether a copy of the request is expected.
func (h modelHint) expects(now time.Time) bool {
	return h.copies > 0 && now.Sub(h.when) <= AnsweredMemory
}

// modelTest applies random operations to a buffer and to its model.
type modelTest struct {
	*testing.T
	random    *rand.Rand
	buffer    Buffer
	model     model
	hints     map[fsm.RequestID]modelHint
	now       time.Time
	index     uint64 // of the last log entry
	published uint64
}

const (
	modelRequests = 12
	modelBytes    = 1800
)

// A buffer agrees with the model over random operations on requests of three clients. Requests come from clients and from another node. They are executed,
// shed, rejected, answered, given back, sent again, found to have an outcome or to be late, released, reported, and listed for another node. The log and the
// leader's reports also tell how requests ended whose copies arrive later or never. At most one request with an id is in the buffer at a time, as at a
// follower.
func TestBufferMatchesModel(t *testing.T) {
	done := make(map[string]int)
	for seed := range uint64(150) {
		m := &modelTest{
			T: t, random: rand.New(rand.NewPCG(seed, 2)), buffer: NewBuffer(modelRequests, modelBytes), hints: make(map[fsm.RequestID]modelHint),
			now: time.Unix(1_700_000_000, 0),
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
	} else if choice < 10 {
		return m.ofAny()
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
		Arrived: m.now, BrokerReceivedAfter: m.now.Add(-time.Duration(r.IntN(1000)) * time.Millisecond), HoldUntil: deadline, EstimatedSendTime: deadline, Done: func() {},
	}
}

func (m *modelTest) full(r *Request) bool {
	return len(m.model) > 0 && (len(m.model) >= modelRequests || m.model.bytes()+r.Size > modelBytes)
}

func (m *modelTest) enter(r *Request) {
	m.model = append(m.model, &modelRequest{Request: r, state: r.state, outcome: r.outcomeIndex, awaits: r.awaitsReport, holds: r.HoldUntil, deadline: r.Deadline})
}

func (m *modelTest) add() string {
	r := m.draw()
	if expected := m.expected(); len(expected) > 0 && m.random.IntN(3) == 0 {
		r.Command.ID = expected[m.random.IntN(len(expected))]
	}
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
		kept.awaits = kept.awaits && kept.outcome != 0 // the new copy awaits no report
		return "absorb a copy"
	case !m.consume(r):
		return "leave out a copy of an answered request"
	case m.full(r):
		return "no room"
	}
	m.buffer.Add(r)
	m.enter(r)
	if r.outcomeIndex == 0 {
		return "add"
	}
	m.buffer.AddOutcome(r)
	added := m.model.of(r)
	added.listed = append(added.listed, r.outcomeIndex)
	return "add a copy of an executed request"
}

// expected returns the ids of the requests of which a copy is expected.
func (m *modelTest) expected() (ids []fsm.RequestID) {
	for number := range byte(30) {
		if id := (fsm.RequestID{number}); m.hints[id].expects(m.now) {
			ids = append(ids, id)
		}
	}
	return ids
}

// consume handles a copy as a follower does: it takes the copy off the hint, which may have the outcome. It returns false if the outcome is published, or if
// the leader has reported it.
func (m *modelTest) consume(r *Request) bool {
	want := m.hints[r.Command.ID]
	index, expected := m.buffer.Hints().Consume(r.Command.ID, m.now)
	if expected != want.expects(m.now) || expected && index != want.index {
		m.Errorf("a copy is expected: %v, its outcome is in entry %d; want %v, %d", expected, index, want.expects(m.now), want.index)
	}
	if !want.expects(m.now) {
		return true
	}
	if want.copies--; want.copies == 0 && want.end == EndAnswered {
		delete(m.hints, r.Command.ID)
	} else {
		m.hints[r.Command.ID] = want
	}
	if want.index <= m.published {
		return false
	}
	if r.SetOutcomeIndex(want.index); m.random.IntN(2) == 0 {
		r.MarkAwaitingReport() // an earlier leader executed it
	}
	return true
}

// hint is RecordEnd of the model.
func (m *modelTest) hint(id fsm.RequestID, end End, index uint64, expected bool) {
	h := m.hints[id]
	if m.now.Sub(h.when) > AnsweredMemory {
		h = modelHint{}
	}
	if h.end, h.index, h.when = end, max(h.index, index), m.now; expected {
		h.copies++
	}
	m.hints[id] = h
}

// removeUnanswered removes a hint that says that a request had no effect.
func (m *modelTest) removeUnanswered(id fsm.RequestID) {
	if m.hints[id].end != EndAnswered {
		delete(m.hints, id)
	}
}

// ofAny does something with a request that may be in the buffer or not.
func (m *modelTest) ofAny() string {
	id := m.draw().Command.ID
	copies := m.model.with(id)
	switch choice := m.random.IntN(3); {
	case id.IsZero():
		return "nothing"
	case choice == 0 && len(copies) == 0:
		m.index = max(m.published+1, m.index+uint64(m.random.IntN(2)))
		end := m.drawEnd()
		m.buffer.RecordEnd(id, end, m.index, true, m.now)
		m.hint(id, end, m.index, true)
		return "learn the outcome of a request that is not here"
	case choice == 0:
		m.index++
		end := m.drawEnd()
		m.buffer.RecordEnd(id, end, m.index, false, m.now)
		if m.removeUnanswered(id); end == EndNoReply {
			m.hint(id, end, m.index, false)
		}
		return "learn an outcome as a leader"
	case len(copies) == 0 || !copies[0].state.IsHeld():
		m.buffer.Hints().RecordReport(id, m.now)
		if h, known := m.hints[id]; !known || h.end == EndAnswered {
			m.hint(id, EndAnswered, 0, true)
		}
		return "report a request that is not held"
	default:
		m.remove(copies[0].Request)
		return "report a held request"
	}
}

func (m *modelTest) drawEnd() End {
	if m.random.IntN(4) == 0 {
		return EndNoReply
	}
	return EndAnswered
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
	switch m.random.IntN(8) {
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
	case 6:
		m.buffer.Hints().ForgetArrivals()
		for id, h := range m.hints {
			if h.copies = 0; h.end == EndAnswered {
				delete(m.hints, id)
			} else {
				m.hints[id] = h
			}
		}
		return "begin a session"
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
		if !one.Read {
			m.buffer.BeginProposal(one.Request)
			one.writing = true
		}
		if m.random.IntN(3) == 0 {
			one.MarkShedding(m.now)
			one.state = StateShedding
			return "shed"
		}
		one.MarkExecuting(m.now)
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
	end := m.drawEnd()
	m.buffer.RecordEnd(one.Command.ID, end, m.index, true, m.now)
	if one.Command.ID.IsZero() {
		return
	}
	if m.removeUnanswered(one.Command.ID); end == EndNoReply {
		m.hint(one.Command.ID, end, m.index, false)
	}
	if m.index == one.outcome {
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
	switch choice := m.random.IntN(6); {
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
	case choice == 4 && !delivering && one.outcome != 0:
		one.MarkClientRetried()
		one.state, one.outcome = StateRetrieving, 0
		return "send an executing request again"
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
		refused := time.Time{}
		if h := m.hints[fsm.RequestID{id}]; h.end == EndNoReply {
			refused = h.when
		}
		if got := p.Hints().EndedAt(fsm.RequestID{id}, EndNoReply); !got.Equal(refused) {
			m.Fatalf("seed %d: refused without a reply at %v, want %v", seed, got, refused)
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
			if r.EstimatedSendTime.Sub(w.EstimatedSendTime).Abs() > time.Millisecond || r.BrokerReceivedAfter.Sub(w.BrokerReceivedAfter).Abs() > time.Millisecond {
				m.Fatalf("seed %d: request %d of a page has the send order %v, and came to the broker after %v", seed, i, r.EstimatedSendTime, r.BrokerReceivedAfter)
			}
		}
	}
}
