package fsm

import (
	"bytes"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// A snapshot is restored through the log, in parts (KindStage) and a final KindRestore, so that
// every replica replaces its keys at the same index or none does.

// staged is a snapshot that is being restored. data is only ever appended to, so a copy of its
// slice header is a consistent copy.
type staged struct {
	nonce uint64
	data  []byte
}

const (
	// MaxStageBytes is the size in bytes of the largest part of a snapshot that goes into one
	// command.
	MaxStageBytes = 512 << 10
	// stagedFrame is how many bytes of the staged snapshot go into one frame of a snapshot that
	// raft takes before the restore is complete.
	stagedFrame = 1 << 20
)

// stage adds a part of a snapshot. A part at offset 0 begins a new snapshot. Any other must begin
// where the part before ends.
func (m *Machine) stage(command *Command) Result {
	switch {
	case command.Offset == 0:
		m.staged = staged{nonce: command.Nonce, data: bytes.Clone(command.Value)}
	case command.Nonce != m.staged.nonce || command.Offset != uint64(len(m.staged.data)):
		return Result{Code: CodeError, Error: ErrorSyntax}
	default:
		m.staged.data = append(m.staged.data, command.Value...)
	}
	m.mixIntoStateHash('P', command.Nonce, command.Offset, xxhash.Sum64(command.Value))
	return Result{Code: CodeOK}
}

// restoreStaged replaces all keys by those of the staged snapshot. No client is notified.
//
//   - Each clock becomes the later of the state's and the snapshot's. So no version is given twice,
//     each new fencing token is greater than all before, and no time goes back.
//   - Keys of another store's snapshot keep their remaining time to live. Keys of this store's
//     snapshot keep their deadlines: time has passed since.
//   - Settings stay those in force, unless none was ever configured. Continuation tokens of the
//     snapshot's store stay valid.
//   - Watches of both stay, except watches of patterns in the snapshot for which there is no room.
//   - Dedup entries of both stay: a copy of a request has no second effect.
func (m *Machine) restoreStaged(command *Command) Result {
	data := m.staged.data
	if command.Nonce != m.staged.nonce || command.Offset != uint64(len(data)) {
		return Result{Code: CodeError, Error: ErrorSyntax}
	}
	m.staged = staged{}
	restored := New()
	if err := readSnapshot(bytes.NewReader(data), restored.readFrame); err != nil {
		return Result{Code: CodeError, Error: ErrorSyntax}
	}
	if restored.storeID != m.storeID {
		restored.rebaseTo(m.now)
	}
	m.postpone(max(0, restored.now-m.now))
	m.raiseClocks(&Floor{Clock: restored.clock, Now: restored.now, Wall: restored.wall})
	m.values = restored.values
	restored.watches.byKey.Scan(func(w *watch) bool {
		if _, known := m.watches.find(w.watchID); !known &&
			!(w.isPattern && m.watches.patterns.full(w)) {
			taken := *w
			taken.index = m.index // the index in the snapshot is of another log
			m.watches.put(&taken)
		}
		return true
	})
	for entry := range restored.dedup.all() {
		if _, known := m.dedup.find(entry.id); !known && entry.expires > m.now {
			entry.index = m.index // the index in the snapshot is of another log
			m.dedup.put(entry, restored.dedup.replies.find(entry.id))
		}
	}
	if !m.configured {
		m.setSettings(restored.settings, restored.configured)
	}
	if restored.scanSecret != 0 { // a snapshot of a store that had a leader: its tokens stay valid
		m.scanSecret = restored.scanSecret
	}
	m.mixIntoStateHash('R', xxhash.Sum64(data), uint64(m.now), uint64(m.clock.Wall),
		m.clock.Counter)
	return Result{Code: CodeOK}
}

// rebaseTo shifts all times in m, which is read from another store's snapshot, so that its cluster
// time becomes now and all remaining times stay. Each store's cluster time counts from its own
// beginning. If m is ahead of now, rebaseTo does nothing: restoreStaged then moves this store's
// clock forward.
func (m *Machine) rebaseTo(now int64) {
	shift := now - m.now
	if shift <= 0 {
		return
	}
	m.postpone(shift)
	m.values.postpone(shift)
	m.now = now
}

// postpone moves the times of outcomes, watches and events, and the horizon, by as much as cluster
// time is about to jump, because no time passes in the jump. The deadlines of keys are left to
// values.postpone.
func (m *Machine) postpone(shift int64) {
	if shift == 0 {
		return
	}
	m.horizon += shift
	before := m.dedup
	m.dedup = newDedup()
	for entry := range before.all() {
		entry.expires += shift
		m.dedup.put(entry, before.replies.find(entry.id))
	}
	for _, w := range m.watches.ofClient("", true) { // of all clients
		shifted := *w
		shifted.renewed += shift
		m.watches.put(&shifted)
	}
	events := slices.Clone(m.unpublished.events)
	for i := range events {
		events[i].At += shift
	}
	m.unpublished.events = events
}
