package pending

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/wire"
)

// pageSize is the size in bytes from which on a page takes no further request.
const pageSize = 1 << 20

// Page returns the requests with an identity in their order, one page at a time, for ReadPage of another node. The first cursor is 0; next is the cursor
// of the next page, and 0 at the end. Page leaves out two kinds of requests: those that this node may drop (Request.Forgettable), and expired ones that are not
// open. An expired request that is open is included, because the other node learns from it in which order a client's requests came. If age is above 0, Page
// also leaves out requests that arrived less than age ago, and requests with an outcome index, except while they wait for the leader's report that they are
// answered.
func (p *Buffer) Page(cursor uint64, age time.Duration, now time.Time) (page []byte, next uint64) {
	for r := range p.All() {
		if r.Sequence < cursor || r.Command.ID.IsZero() || r.Expired(now) && !r.IsOpen() || r.Forgettable(now) {
			continue
		}
		if age > 0 && now.Sub(r.Arrived) < age {
			break // the others came later
		}
		if age > 0 && r.outcomeIndex != 0 && !r.awaitsReport {
			continue
		}
		if len(page) >= pageSize {
			return page, r.Sequence
		}
		page = appendRequest(page, r, now)
	}
	return page, 0
}

func appendField[T ~string | ~[]byte](b []byte, field T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(field))), field...)
}

// Flags in the encoding of a request (appendRequest).
const (
	flagInvalid      = 1 << iota // its command has no kind: it is answered without the log
	flagDuplicate                // its state is StateDuplicate
	flagRelayed                  // the sender took it from another node
	flagAwaitsReport             // it awaits the leader's report that it is answered
)

// appendRequest appends the encoding in which one node sends a request to another. Times are relative to now, because clocks differ.
func appendRequest(b []byte, r *Request, now time.Time) []byte {
	deadline := int64(0)
	if !r.Deadline.IsZero() {
		if deadline = r.Deadline.Sub(now).Milliseconds(); deadline == 0 {
			deadline = -1
		}
	}
	var body []byte
	body = appendField(body, r.ResponseTopic)
	body = appendField(body, r.Correlation)
	body = appendField(body, r.UnsupportedVersion)
	body = binary.AppendVarint(body, deadline)
	body = binary.AppendVarint(body, r.HoldUntil.Sub(now).Milliseconds())
	body = binary.AppendVarint(body, now.Sub(r.Arrived).Milliseconds())
	body = binary.AppendUvarint(body, r.outcomeIndex)
	command, flags := r.Command, uint64(0)
	if command.Kind == 0 { // it never enters the log, where every command has a kind
		command.Kind, flags = fsm.KindInvalid, flagInvalid
	}
	if r.IsDuplicate() {
		flags |= flagDuplicate
	}
	if r.FromPeer {
		flags |= flagRelayed
	}
	if r.awaitsReport {
		flags |= flagAwaitsReport
	}
	body = binary.AppendUvarint(body, flags)
	body = appendField(body, fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{command}}))
	body = binary.AppendVarint(body, r.EstimatedSendTime.Sub(now).Milliseconds())   // not sent by the first versions
	body = binary.AppendVarint(body, now.Sub(r.BrokerReceivedAfter).Milliseconds()) // sent since a later version than EstimatedSendTime
	return appendField(b, body)
}

var errPage = errors.New("a held request that cannot be read")

// fields reads what appendRequest wrote. The first fault sticks.
type fields struct {
	rest []byte
	err  error
}

func (f *fields) bytes() []byte {
	size, n := binary.Uvarint(f.rest)
	if f.err != nil || n <= 0 || size > uint64(len(f.rest)-n) {
		f.err = errPage
		return nil
	}
	field := f.rest[n : n+int(size)]
	f.rest = f.rest[n+int(size):]
	return field
}

func (f *fields) number() uint64 {
	value, n := binary.Uvarint(f.rest)
	if f.err != nil || n <= 0 {
		f.err = errPage
		return 0
	}
	f.rest = f.rest[n:]
	return value
}

func (f *fields) milliseconds() time.Duration {
	value, n := binary.Varint(f.rest)
	if f.err != nil || n <= 0 {
		f.err = errPage
		return 0
	}
	f.rest = f.rest[n:]
	return time.Duration(value) * time.Millisecond
}

// ReadPage returns the requests of a page that another node wrote between the moments asked and now. Each request has a copy of its bytes, so that it does not
// keep the whole page in memory. ReadPage leaves out a request that it cannot read, for instance one of a newer version, and adds an error. It
// may return requests and an error. Relative times count from now. Only BrokerReceivedAfter counts from asked: it is a lower bound, and must not be too
// late.
func ReadPage(page []byte, asked, now time.Time) (requests []*Request, faults error) {
	for unread := (fields{rest: page}); len(unread.rest) > 0 && unread.err == nil; {
		r, err := readRequest(fields{rest: bytes.Clone(unread.bytes())}, asked, now)
		if err != nil {
			faults = errors.Join(faults, err)
			continue
		}
		requests = append(requests, r)
	}
	return requests, faults
}

func readRequest(body fields, asked, now time.Time) (*Request, error) {
	r := &Request{Done: func() {}, FromPeer: true}
	r.ResponseTopic = string(body.bytes())
	r.Correlation = body.bytes()
	r.UnsupportedVersion = string(body.bytes())
	if deadline := body.milliseconds(); deadline != 0 {
		r.Deadline = now.Add(deadline)
	}
	r.HoldUntil = now.Add(body.milliseconds())
	r.Arrived = now.Add(-body.milliseconds())
	r.SetOutcomeIndex(body.number())
	flags := body.number()
	encoded := body.bytes()
	if body.err != nil {
		return nil, body.err
	}
	if r.EstimatedSendTime = r.Deadline; r.EstimatedSendTime.IsZero() {
		r.EstimatedSendTime = r.Arrived
	}
	if len(body.rest) > 0 {
		r.EstimatedSendTime = now.Add(body.milliseconds())
	}
	if len(body.rest) > 0 {
		r.BrokerReceivedAfter = asked.Add(-body.milliseconds())
	}
	if body.err != nil {
		return nil, body.err
	}
	entry, err := fsm.DecodeEntry(encoded)
	if err != nil {
		return nil, err
	}
	if len(entry.Commands) != 1 || entry.Commands[0].ID.IsZero() {
		return nil, errPage
	}
	r.Command = entry.Commands[0]
	if flags&flagInvalid != 0 {
		r.Command.Kind = 0
	}
	if flags&flagDuplicate != 0 {
		r.MarkDuplicate()
	}
	r.Relayed = flags&flagRelayed != 0
	r.awaitsReport = flags&flagAwaitsReport != 0
	r.Read = r.Command.Kind.IsRead()
	r.Size = wire.RequestOverhead + len(encoded) + len(r.ResponseTopic) + len(r.Correlation) + len(r.Command.Operations)*fsm.OperationOverhead
	return r, nil
}
