package sim

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/raftlog"
	"holdfast/test/sim/schedule"
)

// disk is what a machine stores: it outlives the processes that use it. Each write takes effect as a whole or not at all, as bbolt's
// do. For a write that is under way when the process dies, chance decides.
type disk struct {
	mu          schedule.Mutex
	random      *rand.Rand
	incarnation string // the node's incarnation: the random part of its Raft id; empty for a new machine
	logs        map[uint64]*raft.Log
	first       uint64
	last        uint64
	stable      map[string][]byte
	snapshots   []*savedSnapshot // the newest last
	offered     []byte           // what the offerStore saved
	contact     int64            // the time that the contactStore saved
	touched     bool             // contact was ever saved
	synced      int64            // what contact becomes when the power fails
	wasSynced   bool             // what touched becomes then

	trouble time.Time     // when a fault last affected the disk
	latency time.Duration // mean latency of each write
	failing bool          // writes return an error
	hanging gate          // closed while writes hang
	low     bool          // the node finds too little free space
}

type savedSnapshot struct {
	meta raft.SnapshotMeta
	data []byte
	sum  uint32 // checksum of the data as it was written
}

func newDisk(random *rand.Rand, latency time.Duration) *disk {
	return &disk{random: random, latency: latency, logs: make(map[uint64]*raft.Log), stable: make(map[string][]byte)}
}

// losePower takes away what was not synced.
func (d *disk) losePower() {
	d.locked(func(d *disk) { d.contact, d.touched = d.synced, d.wasSynced })
}

// wipe makes the disk a new one.
func (d *disk) wipe() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.incarnation, d.first, d.last, d.snapshots, d.offered, d.contact, d.touched = "", 0, 0, nil, nil, 0, false
	d.synced, d.wasSynced = 0, false
	d.logs, d.stable = make(map[uint64]*raft.Log), make(map[string][]byte)
}

// inTrouble reports whether a fault has affected the disk a short time ago.
func (d *disk) inTrouble() bool {
	const recent = 10 * time.Second
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.trouble) < recent
}

// flip flips one bit of the newest snapshot, or of a log entry that a restarted node reads. It returns which of these it damaged, or ""
// if there is neither.
func (d *disk) flip() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	covered := uint64(0)
	if len(d.snapshots) > 0 {
		saved := *d.snapshots[len(d.snapshots)-1]
		covered = saved.meta.Index
		if d.random.IntN(3) == 0 {
			saved.data = d.flipped(saved.data)
			d.snapshots[len(d.snapshots)-1] = &saved
			return fmt.Sprintf("the snapshot at %d", saved.meta.Index)
		}
	}
	var entries []uint64
	for index := max(d.first, covered+1); index <= d.last; index++ {
		if entry := d.logs[index]; entry != nil && entry.Type == raft.LogCommand {
			entries = append(entries, index)
		}
	}
	if len(entries) == 0 {
		return ""
	}
	index := entries[d.random.IntN(len(entries))]
	damaged := *d.logs[index]
	switch d.random.IntN(5) {
	case 0:
		damaged.Term ^= 1 << d.random.IntN(8)
	case 1:
		damaged.Type = raft.LogNoop // LogCommand differs from it by one bit
	default:
		damaged.Data = d.flipped(damaged.Data)
	}
	d.logs[index] = &damaged
	return fmt.Sprintf("the log entry at %d", index)
}

func (d *disk) flipped(data []byte) []byte {
	damaged := bytes.Clone(data)
	if len(damaged) > 0 {
		damaged[d.random.IntN(len(damaged))] ^= 1 << d.random.IntN(8)
	}
	return damaged
}

// copied returns a copy of the disk for a process that has died: what still runs of the process reads and writes the copy.
func (d *disk) copied() *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &disk{
		random: rand.New(rand.NewPCG(d.random.Uint64(), 0)), incarnation: d.incarnation, logs: maps.Clone(d.logs), first: d.first, last: d.last,
		stable: maps.Clone(d.stable), snapshots: slices.Clone(d.snapshots), offered: d.offered,
	}
}

// mount is a process's view of a disk. After the process has died, its remaining goroutines write to a copy that no other process sees.
type mount struct {
	exit func(error)

	mu      schedule.Mutex
	disk    *disk
	dead    chan struct{} // closed when the process dies
	over    bool          // the process has died
	writing []*diskWrite  // in the order in which they began
}

// diskWrite is a write that is under way. If the process dies meanwhile, the write takes effect at that moment or never. It must not
// take effect later, when another process may use the disk.
type diskWrite struct {
	change func(*disk)
	lands  bool // it takes effect if the process dies meanwhile
}

func newMount(d *disk, exit func(error)) *mount {
	return &mount{disk: d, exit: exit, dead: make(chan struct{})}
}

func (m *mount) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over {
		for _, w := range m.writing {
			if w.lands {
				m.disk.locked(w.change)
			}
		}
		m.over, m.disk = true, m.disk.copied()
		close(m.dead)
	}
}

func (m *mount) view() *disk {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.disk
}

var errDiskFails = errors.New("input/output error")

// write runs one write. A process that dies meanwhile leaves it done or undone.
func (m *mount) write(change func(*disk)) error {
	d := m.view()
	d.mu.Lock()
	latency, lands, failing := d.latency, d.random.IntN(2) == 0, d.failing
	if latency > 0 {
		latency = latency/2 + time.Duration(d.random.Int64N(int64(latency)))
	}
	d.mu.Unlock()
	if failing {
		return errDiskFails
	}
	w := &diskWrite{change, lands}
	m.mu.Lock()
	m.writing = append(m.writing, w)
	m.mu.Unlock()
	for opened := d.hanging.whenOpen(); opened != nil && !diedWhileWaiting(m, opened); {
		opened = d.hanging.whenOpen()
	}
	if latency > 0 {
		timer := time.NewTimer(latency)
		diedWhileWaiting(m, timer.C)
		timer.Stop()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writing = slices.DeleteFunc(m.writing, func(other *diskWrite) bool { return other == w })
	m.disk.locked(change)
	return nil
}

func (d *disk) locked(change func(*disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

// diedWhileWaiting waits for c or the death of the process, and reports whether the process has died.
func diedWhileWaiting[T any](m *mount, c <-chan T) bool {
	select {
	case <-c:
		return false
	case <-m.dead:
		return true
	}
}

// stores returns what a node keeps its state in.
func (m *mount) stores() raftlog.Stores {
	return raftlog.Stores{
		Log: logStore{m}, Stable: stableStore{m}, Snapshots: snapshotStore{m}, Offered: offerStore{m},
		Close: func() error { return nil },
	}
}

// logStore is a raft.LogStore.
type logStore struct{ mount *mount }

// FirstIndex implements raft.LogStore.
func (s logStore) FirstIndex() (index uint64, err error) {
	s.mount.view().locked(func(d *disk) { index = d.first })
	return index, nil
}

// LastIndex implements raft.LogStore.
func (s logStore) LastIndex() (index uint64, err error) {
	s.mount.view().locked(func(d *disk) { index = d.last })
	return index, nil
}

// GetLog implements raft.LogStore.
func (s logStore) GetLog(index uint64, log *raft.Log) (err error) {
	s.mount.view().locked(func(d *disk) {
		stored := d.logs[index]
		if stored == nil {
			err = raft.ErrLogNotFound
			return
		}
		*log = *stored
	})
	return err
}

// StoreLog implements raft.LogStore.
func (s logStore) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (s logStore) StoreLogs(logs []*raft.Log) error {
	return s.mount.write(func(d *disk) {
		for _, log := range logs {
			stored := *log
			stored.Data = bytes.Clone(log.Data) // a bit that flips here flips nowhere else
			d.logs[log.Index] = &stored
			if d.first == 0 || log.Index < d.first {
				d.first = log.Index
			}
			d.last = max(d.last, log.Index)
		}
	})
}

// DeleteRange implements raft.LogStore. The log need not have all of the range. Raft reads the first index before it calls DeleteRange,
// and got 0 if the log was empty then. Another goroutine may have stored entries since.
func (s logStore) DeleteRange(first, last uint64) error {
	return s.mount.write(func(d *disk) {
		first, last := max(first, d.first), min(last, d.last)
		if d.last == 0 || first > last {
			return
		}
		for index := first; index <= last; index++ {
			delete(d.logs, index)
		}
		switch {
		case first == d.first && last == d.last:
			d.first, d.last = 0, 0
		case first == d.first:
			d.first = last + 1
		case last == d.last:
			d.last = first - 1
		}
	})
}

// stableStore is a raft.StableStore. A write that fails ends the process, because raft would panic.
type stableStore struct{ mount *mount }

var errNotFound = errors.New("not found") // the text is raft's

// Set implements raft.StableStore.
func (s stableStore) Set(key, value []byte) error {
	if err := s.mount.write(func(d *disk) { d.stable[string(key)] = bytes.Clone(value) }); err != nil {
		s.mount.exit(fmt.Errorf("%w: %w", raftlog.ErrDisk, err))
	}
	return nil
}

// Get implements raft.StableStore.
func (s stableStore) Get(key []byte) (value []byte, err error) {
	s.mount.view().locked(func(d *disk) {
		found, ok := d.stable[string(key)]
		if value = bytes.Clone(found); !ok {
			err = errNotFound
		}
	})
	return value, err
}

// SetUint64 implements raft.StableStore.
func (s stableStore) SetUint64(key []byte, value uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// GetUint64 implements raft.StableStore.
func (s stableStore) GetUint64(key []byte) (uint64, error) {
	value, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(value), nil
}

// snapshotStore is a raft.SnapshotStore that keeps the two newest snapshots.
type snapshotStore struct{ mount *mount }

// Create implements raft.SnapshotStore.
func (s snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	return &snapshotSink{mount: s.mount, saved: savedSnapshot{meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d-%d", term, index, time.Now().UnixNano()), Index: index, Term: term,
		Configuration: configuration.Clone(), ConfigurationIndex: configurationIndex,
	}}}, nil
}

// List implements raft.SnapshotStore.
func (s snapshotStore) List() (metas []*raft.SnapshotMeta, err error) {
	s.mount.view().locked(func(d *disk) {
		for _, saved := range slices.Backward(d.snapshots) {
			meta := saved.meta
			metas = append(metas, &meta)
		}
	})
	return metas, nil
}

// Open implements raft.SnapshotStore. It refuses a snapshot whose data does not have the checksum with which it was written. Raft's own
// store does so, too.
func (s snapshotStore) Open(id string) (meta *raft.SnapshotMeta, reader io.ReadCloser, err error) {
	err = raft.ErrLogNotFound
	s.mount.view().locked(func(d *disk) {
		for _, saved := range d.snapshots {
			if saved.meta.ID == id && crc32.ChecksumIEEE(saved.data) == saved.sum {
				found := saved.meta
				meta, reader, err = &found, io.NopCloser(bytes.NewReader(saved.data)), nil
			}
		}
	})
	return meta, reader, err
}

type snapshotSink struct {
	mount *mount
	saved savedSnapshot
	data  bytes.Buffer
}

// Write implements raft.SnapshotSink. It takes as long as a disk write, so that others run while a snapshot is written.
func (s *snapshotSink) Write(p []byte) (int, error) {
	if err := s.mount.write(func(*disk) {}); err != nil {
		return 0, err
	}
	return s.data.Write(p)
}

// Close implements raft.SnapshotSink.
func (s *snapshotSink) Close() error {
	saved := s.saved
	saved.data = bytes.Clone(s.data.Bytes())
	saved.meta.Size, saved.sum = int64(len(saved.data)), crc32.ChecksumIEEE(saved.data)
	return s.mount.write(func(d *disk) {
		d.snapshots = append(slices.Clone(d.snapshots), &saved)
		slices.SortStableFunc(d.snapshots, func(a, b *savedSnapshot) int { // by their position in the log: they may be finished in another order
			return cmp.Or(cmp.Compare(a.meta.Term, b.meta.Term), cmp.Compare(a.meta.Index, b.meta.Index))
		})
		if len(d.snapshots) > 2 {
			d.snapshots = d.snapshots[1:]
		}
	})
}

// ID implements raft.SnapshotSink.
func (s *snapshotSink) ID() string { return s.saved.meta.ID }

// Cancel implements raft.SnapshotSink.
func (s *snapshotSink) Cancel() error { return nil }

// offerStore is a raftlog.OfferStore.
type offerStore struct{ mount *mount }

// Load implements raftlog.OfferStore.
func (s offerStore) Load() (data []byte, err error) {
	s.mount.view().locked(func(d *disk) { data = d.offered })
	return data, nil
}

// Save implements raftlog.OfferStore.
func (s offerStore) Save(data []byte) error {
	return s.mount.write(func(d *disk) { d.offered = bytes.Clone(data) })
}

// contactStore is an ingest.ContactStore: it keeps the time of the last contact with the broker. It syncs a saved 0 at once, and any other time with a
// chance of one in four. So a machine that has lost its power may have an older time, or none.
type contactStore struct{ mount *mount }

// Load implements ingest.ContactStore.
func (s contactStore) Load() (wall int64, ok bool) {
	s.mount.view().locked(func(d *disk) { wall, ok = d.contact, d.touched })
	return wall, ok
}

// Save implements ingest.ContactStore.
func (s contactStore) Save(wall int64) error {
	s.mount.view().locked(func(d *disk) {
		d.contact, d.touched = wall, true
		if wall == 0 || d.random.IntN(4) == 0 {
			d.synced, d.wasSynced = wall, true
		}
	})
	return nil
}
