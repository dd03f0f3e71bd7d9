package fsm

import (
	"bytes"
	"fmt"
	"slices"

	"holdfast/hlc"
	"holdfast/internal/glob"
	"holdfast/internal/policy"
)

// This file encodes and decodes the frames of a snapshot (snapshot.go). Field numbers are never
// reused.

func (m *Machine) readFrame(kind section, content []byte) error {
	r := reader{rest: content}
	switch kind {
	case sectionMeta:
		m.readMeta(&r)
	case sectionSettings:
		// reader.settings reads a field, so the content is wrapped in one
		outer := reader{rest: appendElement(nil, 1, content)}
		outer.next()
		m.setSettings(*outer.settings(), m.configured)
		r.err = outer.err
	case sectionValue:
		m.readRecord(&r)
	case sectionWatch:
		m.readWatch(&r)
	case sectionDedup:
		m.readDedupEntry(&r)
	case sectionUnpublished:
		m.readEvent(&r)
	default:
		return fmt.Errorf("%w: section %d of a snapshot", ErrUnknown, kind)
	}
	return r.err
}

func appendMeta(b []byte, m *Machine) []byte {
	b = appendUint(b, 1, m.index)
	b = appendUint(b, 2, m.leader.term)
	b = appendUint(b, 3, m.leader.lastNumber)
	b = appendUint(b, 4, uint64(m.leader.start))
	b = appendUint(b, 5, m.leader.nonce)
	b = appendUint(b, 6, uint64(m.now))
	b = appendUint(b, 7, uint64(m.wall))
	b = appendUint(b, 8, uint64(m.clock.Wall))
	b = appendUint(b, 9, m.clock.Counter)
	b = appendUint(b, 10, m.published)
	b = appendUint(b, 11, uint64(m.logVersion))
	b = appendUint(b, 12, m.hash)
	b = appendBool(b, 13, m.configured)
	for _, id := range m.pinned {
		b = appendElement(b, 14, id)
	}
	b = appendUint(b, 15, m.staged.nonce)
	// field 16, the parts of an unfinished restore, is in frames of its own
	b = appendUint(b, 17, m.scanSecret)
	b = appendUint(b, 18, m.storeID)
	return appendUint(b, 19, uint64(m.horizon))
}

func (m *Machine) readMeta(r *reader) {
	for r.next() {
		switch r.field {
		case 1:
			m.index = r.uint()
		case 2:
			m.leader.term = r.uint()
		case 3:
			m.leader.lastNumber = r.uint()
		case 4:
			m.leader.start = r.int()
		case 5:
			m.leader.nonce = r.uint()
		case 6:
			m.now = r.int()
		case 7:
			m.wall = r.int()
		case 8:
			m.clock.Wall = r.int()
		case 9:
			m.clock.Counter = r.uint()
		case 10:
			m.published = r.uint()
		case 11:
			m.logVersion = r.version()
		case 12:
			m.hash = r.uint()
		case 13:
			m.configured = r.bool()
		case 14:
			m.pinned = append(m.pinned, r.string())
		case 15:
			m.staged.nonce = r.uint()
		case 16: // in meta frames of its own, after the one with the other fields
			m.staged.data = append(m.staged.data, r.bytes()...)
		case 17:
			m.scanSecret = r.uint()
		case 18:
			m.storeID = r.uint()
		case 19:
			m.horizon = r.int()
		default:
			r.unknown("Meta")
		}
	}
}

func appendRecord(b []byte, record *record) []byte {
	b = appendBytes(b, 1, record.key())
	b = appendBytes(b, 2, record.value())
	b = appendUint(b, 3, uint64(record.wall))
	b = appendUint(b, 4, uint64(record.counter))
	if record.deadline != noDeadline {
		b = appendUint(b, 5, uint64(record.deadline)+1) // 0 is no deadline
	}
	b = appendTimestamp(b, 6, &record.holding.token)
	b = appendBytes(b, 7, record.holding.owned.Name)
	return appendBool(b, 8, record.holding.owned.IsUser)
}

func (m *Machine) readRecord(r *reader) {
	var key, value []byte
	var version hlc.Clock
	var token hlc.Timestamp
	var owner Owner
	deadline := int64(noDeadline)
	for r.next() {
		switch r.field {
		case 1:
			key = r.bytes()
		case 2:
			value = r.bytes()
		case 3:
			version.Wall = r.int()
		case 4:
			version.Counter = r.uint()
		case 5:
			deadline = r.int() - 1
		case 6:
			token = r.timestamp()
		case 7:
			owner.Name = r.string()
		case 8:
			owner.IsUser = r.bool()
		default:
			r.unknown("Value")
		}
	}
	added := newRecord(key, value, version, deadline,
		m.values.owners.holding(owner, token, nil))
	if last, ok := m.values.byKey.Max(); r.err == nil && ok && last.key() >= added.key() {
		r.fail(fmt.Errorf("%w: keys out of order", ErrDamaged))
	}
	if r.err == nil {
		m.values.put(added)
	}
}

func appendWatch(b []byte, w *watch) []byte {
	b = appendBytes(b, 1, w.key)
	b = appendBytes(b, 2, w.clientID)
	b = appendUint(b, 3, uint64(w.dialect))
	b = appendUint(b, 4, w.index)
	b = appendUint(b, 5, uint64(w.renewed))
	b = appendUint(b, 6, uint64(w.brokerTime))
	if w.pattern == nil {
		return b
	}
	b = appendBool(b, 7, true)
	b = appendBytes(b, 8, w.pattern.principal.Username)
	return appendAttributes(b, 9, w.pattern.principal.Attributes)
}

func (m *Machine) readWatch(r *reader) {
	var w watch
	var principal policy.Principal
	for r.next() {
		switch r.field {
		case 1:
			w.key = r.string()
		case 2:
			w.clientID = r.string()
		case 3:
			w.dialect = Dialect(r.small(uint64(SDK) + 1))
		case 4:
			w.index = r.uint()
		case 5:
			w.renewed = r.int()
		case 6:
			w.brokerTime = r.int()
		case 7:
			w.isPattern = r.bool()
		case 8:
			principal.Username = r.string()
		case 9:
			principal.Attributes = append(principal.Attributes, r.attribute())
		default:
			r.unknown("Watch")
		}
	}
	if w.isPattern && r.err == nil {
		principal.ClientID = w.clientID
		pattern, err := glob.Compile(w.key)
		if err != nil {
			r.fail(fmt.Errorf("%w: watch of a pattern: %w", ErrDamaged, err))
			return
		}
		w.pattern = &watchedPattern{pattern, principal}
	}
	if r.err == nil {
		m.watches.put(&w)
	}
}

func (s *Snapshot) appendDedupEntry(b []byte, entry *dedupEntry) []byte {
	b = appendElement(b, 1, entry.id[:])
	b = appendUint(b, 2, entry.index)
	b = appendUint(b, 3, uint64(entry.expires))
	b = appendUint(b, 4, entry.client)
	b = appendUint(b, 5, uint64(entry.wall))
	b = appendUint(b, 6, uint64(entry.counter))
	b = appendUint(b, 7, uint64(entry.code))
	b = appendUint(b, 8, uint64(entry.err))
	b = appendUint(b, 9, uint64(entry.dialect))
	b = appendUint(b, 10, uint64(entry.flags))
	if entry.code != CodeReplies {
		return b
	}
	replies := findReplies(s.replies, entry.id)
	b = appendBytes(b, 11, replies.codes)
	for _, value := range replies.values {
		b = appendElement(b, 12, value)
	}
	return b
}

func (m *Machine) readDedupEntry(r *reader) {
	var entry dedupEntry
	var codes []byte
	var values []string
	for r.next() {
		switch r.field {
		case 1:
			entry.id = r.id()
		case 2:
			entry.index = r.uint()
		case 3:
			entry.expires = r.int()
		case 4:
			entry.client = r.uint()
		case 5:
			entry.wall = r.int()
		case 6:
			entry.counter = uint32(r.uint())
		case 7:
			entry.code = Code(r.small(uint64(CodeReplies) + 1))
		case 8:
			entry.err = ErrorCode(r.small(uint64(errorCodes)))
		case 9:
			entry.dialect = Dialect(r.small(uint64(SDK) + 1))
		case 10:
			entry.flags = r.small(uint64(dedupFlagsEnd))
		case 11:
			codes = r.bytes()
		case 12:
			values = append(values, r.string())
		default:
			r.unknown("DedupEntry")
		}
	}
	if (entry.code == CodeReplies) != (len(codes) > 0) ||
		bytes.Count(codes, []byte{byte(CodeValue)}) != len(values) {
		r.fail(fmt.Errorf("%w: replies of a transaction", ErrDamaged))
	}
	if slices.ContainsFunc(codes, func(code byte) bool { return Code(code) > CodeNull }) {
		r.fail(fmt.Errorf("%w: a reply of a transaction", ErrUnknown))
	}
	if r.err == nil && m.dedup.len() > 0 && bytes.Compare(m.dedup.lastRead[:], entry.id[:]) >= 0 {
		r.fail(fmt.Errorf("%w: request ids out of order", ErrDamaged))
	}
	if r.err == nil {
		var replies *keptReplies
		if entry.code == CodeReplies {
			replies = &keptReplies{entry.id, entry.client, string(codes), values}
		}
		m.dedup.put(entry, replies)
		m.dedup.lastRead = entry.id
	}
}

func appendEvent(b []byte, e *Event) []byte {
	b = appendUint(b, 1, e.Index)
	// Command is -1 if no command but an expiry caused the event
	b = appendUint(b, 2, uint64(e.Command+1))
	b = appendBytes(b, 3, e.Key)
	b = appendBytes(b, 4, e.Value)
	b = appendBool(b, 5, e.Deleted)
	b = appendTimestamp(b, 6, &e.Version)
	b = appendUint(b, 7, uint64(e.At))
	for i := range e.Receivers {
		b = appendMessage(b, 8, func(b []byte) []byte {
			b = appendBytes(b, 1, e.Receivers[i].ClientID)
			return appendUint(b, 2, uint64(e.Receivers[i].Dialect))
		})
	}
	return b
}

func (m *Machine) readEvent(r *reader) {
	e := Event{Command: -1} // the field has Command+1, and 0 is not written
	for r.next() {
		switch r.field {
		case 1:
			e.Index = r.uint()
		case 2:
			e.Command = int(r.uint()) - 1
		case 3:
			e.Key = r.string()
		case 4:
			e.Value = r.string()
		case 5:
			e.Deleted = r.bool()
		case 6:
			e.Version = r.timestamp()
		case 7:
			e.At = r.int()
		case 8:
			e.Receivers = append(e.Receivers, r.receiver())
		default:
			r.unknown("Unpublished")
		}
	}
	if r.err == nil {
		m.unpublished.add(e)
	}
}

func (r *reader) receiver() (receiver Receiver) {
	inner := r.enter()
	for inner.next() {
		switch inner.field {
		case 1:
			receiver.ClientID = inner.string()
		case 2:
			receiver.Dialect = Dialect(inner.small(uint64(SDK) + 1))
		default:
			inner.unknown("Receiver")
		}
	}
	r.leave(&inner)
	return receiver
}
