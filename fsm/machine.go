package fsm

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"

	"holdfast/hlc"
)

// Machine is the state of the store. It has no lock: the caller sees to it that Apply and Restore
// run alone, and that no two calls of Snapshot run at once. The methods that read, and one
// Snapshot, may run beside each other.
type Machine struct {
	index  uint64 // log index of the last entry applied
	leader leadership
	now    int64 // cluster time, milliseconds
	// cluster clock: the latest wall time in an entry, milliseconds since the Unix epoch
	wall  int64
	clock hlc.Clock // of versions
	// cluster time: the broker received later all that it has not seen acknowledged
	horizon int64
	// delivery watermark: no reply or notification up to this index is outstanding
	published  uint64
	logVersion uint32 // version of the log in force: the newest that every member can apply
	hash       uint64

	settings   Settings
	configured bool
	mirrors    mirrors // compiled from the settings

	staged staged
	pinned []string // raft ids of the pinned non-voters, ascending; never changed in place

	// storeID identifies this store in its snapshots: the cluster times of two stores cannot be
	// compared. It is the nonce of the first leadership, and never changes.
	storeID uint64
	// scanSecret is the secret of the continuation tokens of SCAN. It is the nonce of the first
	// leadership, too, until a KindRestore replaces it by the secret of the restored snapshot.
	scanSecret uint64

	values      values
	watches     watches
	dedup       dedup
	unpublished unpublished

	scratch []byte
}

// leadership is the current leadership. isNext checks each entry against it, and timeOf computes
// the entry's cluster time from it.
type leadership struct {
	term       uint64 // raft term of the LeaderStart
	lastNumber uint64 // Entry.Number of the last entry; 0 at the LeaderStart
	// cluster time at the LeaderStart, from which Entry.Elapsed counts; raiseClocks raises it after
	// a restore
	start int64
	nonce uint64 // random number of the LeaderStart
}

// New returns the empty state.
func New() *Machine {
	return &Machine{
		settings: DefaultSettings(), values: newValues(), watches: newWatches(),
		dedup: newDedup(),
	}
}

// Apply applies the log entry with this raft index and term. The index must be greater than that of
// the last applied entry. The outcome shares memory with data and with the state; it must not be
// changed. An error (ErrDamaged, ErrUnknown) means that nothing was applied and that this replica
// must stop.
func (m *Machine) Apply(index, term uint64, data []byte) (*EntryOutcome, error) {
	entry, err := DecodeEntry(data)
	if err != nil {
		return nil, fmt.Errorf("log entry %d: %w", index, err)
	}
	if index <= m.index {
		return nil, fmt.Errorf("log entry %d: %w: entry %d is already applied", index, ErrDamaged,
			m.index)
	}
	starts := len(entry.Commands) == 1 && entry.Commands[0].Kind == KindLeaderStart
	if !starts {
		for i := range entry.Commands {
			if entry.Commands[i].Kind == KindLeaderStart {
				return nil, fmt.Errorf("log entry %d: %w: a LeaderStart among other commands",
					index, ErrDamaged)
			}
		}
	}
	m.index = index
	outcome := &EntryOutcome{
		Index: index, Term: term, Number: entry.Number,
		Commands: entry.Commands,
	}
	if starts {
		m.lead(term, &entry.Commands[0])
		outcome.Results = make([]Result, 1)
		return outcome, nil
	}
	if !m.isNext(term, entry) {
		outcome.Skipped = true
		return outcome, nil
	}
	m.leader.lastNumber = entry.Number
	m.wall = max(m.wall, entry.Wall)
	m.publishedUpTo(entry.Published)
	m.advance(m.timeOf(entry), outcome)
	m.moveHorizon(entry.HorizonAge)
	outcome.Results = make([]Result, len(entry.Commands))
	for i := range entry.Commands {
		m.execute(i, &entry.Commands[i], entry.StorageLow, outcome)
	}
	m.mixIntoStateHash('E', uint64(m.now), uint64(m.wall), uint64(m.clock.Wall), m.clock.Counter)
	return outcome, nil
}

// lead begins a leadership. It adds nothing to cluster time.
func (m *Machine) lead(term uint64, command *Command) {
	m.staged = staged{} // a restore through the log (KindStage, KindRestore) has to begin again
	m.leader = leadership{term: term, start: m.now, nonce: command.Nonce}
	m.raiseVersion(command.Version)
	if m.storeID == 0 {
		m.storeID, m.scanSecret = command.Nonce, command.Nonce
	}
	m.mixIntoStateHash('L', term, command.Nonce)
}

// raiseVersion puts a version of the log in force.
func (m *Machine) raiseVersion(version uint32) { m.logVersion = max(m.logVersion, version) }

// isNext reports whether an entry is the next of the current leadership. It rejects entries of
// other terms, entries from before the LeaderStart, and entries after a gap in the numbers.
func (m *Machine) isNext(term uint64, entry *Entry) bool {
	return term == m.leader.term && entry.Term == term && entry.Number == m.leader.lastNumber+1
}

// timeOf returns the cluster time of an entry: leader.start plus the leader's monotonic time since
// its LeaderStart. It never goes back, and no wall clock has a part in it.
func (m *Machine) timeOf(entry *Entry) int64 { return max(m.now, m.leader.start+entry.Elapsed) }

// moveHorizon moves the horizon to an age before now, but never back. An older one stays true, and
// is only stricter.
func (m *Machine) moveHorizon(age int64) {
	if age > 0 && m.now-age > m.horizon {
		m.horizon = m.now - age
		m.mixIntoStateHash('H', uint64(m.horizon))
	}
}

// maxExpiredKeysOrWatches bounds the due keys, and also the due watches, that advance removes in
// one entry; maxExpiryCost bounds the cost of their removal. maxExpiredOutcomes (dedup.go) bounds
// the outcomes that it removes. A due key that is left reads as absent, but counts against the
// quota; a command that writes it removes it first. A due watch that is left still gets
// notifications.
const (
	maxExpiredKeysOrWatches = 10_000
	// bytes that are compared with the patterns of watches and mirrors, and with the policy: some
	// tens of milliseconds
	maxExpiryCost = 20_000_000
)

// advance moves cluster time and ends what is due by it.
func (m *Machine) advance(now int64, outcome *EntryOutcome) {
	m.now = now
	cost := 0
	for range maxExpiredKeysOrWatches {
		due, ok := m.values.due(now)
		if !ok || cost >= maxExpiryCost {
			break
		}
		cost += m.expire(-1, due, outcome)
	}
	m.dedup.removeExpired(now)
	if m.settings.WatchTTL > 0 {
		for range maxExpiredKeysOrWatches {
			oldest, ok := m.watches.byRenewal.Min()
			if !ok || oldest.renewed+m.settings.WatchTTL > now {
				break
			}
			m.endWatch(oldest)
		}
	}
}

// expire removes a key that is due, and emits the event for its watchers. position is that of the
// command that is executed, -1 before the first command. It returns the cost of emitEvent.
func (m *Machine) expire(position int, due *record, outcome *EntryOutcome) (cost int) {
	m.values.delete(due)
	m.mixIntoStateHash('X', uint64(due.wall), uint64(due.counter))
	return m.emitEvent(outcome, position, due, true)
}

// emitEvent records the change of a key for its mirror and for the clients that watch it. cost is
// the sum of the costs of watches.receivers and mirrors.cost.
func (m *Machine) emitEvent(outcome *EntryOutcome, position int, changed *record,
	deleted bool,
) (cost int) {
	if topic, ok := m.mirrors.of(changed.key()); ok {
		outcome.Mirrored = append(outcome.Mirrored, MirroredKey{topic, changed.key()})
	}
	receivers, cost := m.watches.receivers(changed.key())
	cost += m.mirrors.cost(changed.key())
	if len(receivers) == 0 {
		return cost
	}
	event := Event{
		Index: m.index, Command: position, Key: changed.key(), Deleted: deleted,
		Version: changed.version().Timestamp(hlc.StoreNodeID), At: m.now, Receivers: receivers,
	}
	if deleted {
		event.Key = strings.Clone(event.Key) // it must not keep the deleted value in memory
	} else {
		event.Value = changed.value()
	}
	outcome.Events = append(outcome.Events, event)
	m.unpublished.add(event)
	outcome.Dropped += m.unpublished.dropExcess(&m.settings.Limits)
	if givenUp := len(outcome.Events) - len(m.unpublished.events); givenUp > 0 {
		// dropExcess has also dropped events of this entry, which alone is over the bound
		outcome.Events = outcome.Events[givenUp:]
	}
	m.mixIntoStateHash('N', uint64(len(receivers)), xxhash.Sum64String(event.Key))
	return cost
}

// publishedUpTo raises the delivery watermark to an index, and removes the events up to it.
func (m *Machine) publishedUpTo(index uint64) {
	if index > m.published {
		m.published = index
		m.unpublished.release(index)
	}
}

// mixIntoStateHash chains a change into the running hash.
func (m *Machine) mixIntoStateHash(kind byte, numbers ...uint64) {
	b := append(m.scratch[:0], kind)
	b = binary.LittleEndian.AppendUint64(b, m.hash)
	for _, number := range numbers {
		b = binary.LittleEndian.AppendUint64(b, number)
	}
	m.hash = xxhash.Sum64(b)
	m.scratch = b
}

// Read answers a GET or a SCAN from the state as it is. Expiry is judged by the cluster time of the
// last entry applied.
func (m *Machine) Read(command *Command) Result {
	result := Result{Dialect: m.settings.dialect(command.Dialect)}
	if code := m.checkRequest(command, &result.Rule); code != NoError {
		m.failCheck(command, &result, code)
		return result
	}
	if command.Kind == KindScan {
		m.scan(command, &result)
		return result
	}
	m.get(command.Key, &result)
	return result
}

// get reads a key.
func (m *Machine) get(key []byte, result *Result) {
	found, ok := m.values.find(key)
	if !ok || found.deadline <= m.now {
		result.Code = CodeNull
		return
	}
	result.Code, result.Value = CodeValue, found.value()
	result.version, result.hasVersion = found.version(), true
}

// Status is a summary of the state.
type Status struct {
	Index           uint64 // log index of the last entry applied
	LeaderTerm      uint64 // raft term of the present leader's LeaderStart
	LeaderNonce     uint64 // tells two leaderships of one term apart
	Number          uint64 // number of the last entry since the LeaderStart
	LeaderStartTime int64  // cluster time at elapsed time 0 (see Entry.Elapsed)
	Now             int64  // cluster time, in milliseconds
	// cluster time after which the broker received all that it has not seen acknowledged
	Horizon       int64
	Wall          int64 // cluster clock, in milliseconds since the Unix epoch
	Clock         hlc.Clock
	Published     uint64 // delivery watermark: an index of the log
	Version       uint32 // version of the log in force: every member can apply it
	Hash          uint64
	Keys          int
	Bytes         int64 // of keys and values
	Watches       int
	Remembered    int   // outcomes in the dedup table
	ReplyBytes    int64 // of the replies of transactions in the dedup table
	Unpublished   int   // notifications, one for each receiver of an event
	Configured    bool
	NextDeadline  int64 // cluster time at which the next key expires, if HasDeadline
	HasDeadline   bool
	TimeIsPending bool // there are keys, outcomes or watches that expire when cluster time moves
}

// Status returns a summary of the state.
func (m *Machine) Status() Status {
	status := Status{
		Index: m.index, LeaderTerm: m.leader.term, LeaderNonce: m.leader.nonce,
		Number: m.leader.lastNumber, LeaderStartTime: m.leader.start,
		Now: m.now, Horizon: m.horizon, Wall: m.wall, Clock: m.clock, Published: m.published,
		Version: m.logVersion, Hash: m.hash,
		Keys: m.values.len(), Bytes: m.values.bytes, Watches: m.watches.len(),
		Remembered: m.dedup.len(), ReplyBytes: m.dedup.replies.bytes(),
		Unpublished: m.unpublished.notifications, Configured: m.configured,
	}
	if next, ok := m.values.byDeadline.Min(); ok {
		status.NextDeadline, status.HasDeadline = next.deadline, true
	}
	status.TimeIsPending = status.HasDeadline || status.Remembered > 0 ||
		(m.settings.WatchTTL > 0 && status.Watches > 0)
	return status
}

// Settings returns the settings in force, and whether they were ever configured.
func (m *Machine) Settings() (Settings, bool) { return m.settings, m.configured }
