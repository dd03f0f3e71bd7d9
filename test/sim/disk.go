package sim

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/raftlog"
	"holdfast/cluster/wal"
	"holdfast/test/crashdisk"
	"holdfast/test/sim/schedule"
)

// disk is what a machine stores: it outlives the processes that use it. The log is in files, of
// which a power failure takes what was not synced (package crashdisk). Each other write takes
// effect as a whole or not at all, as bbolt's do. For a write that is under way when the process
// dies, chance decides.
type disk struct {
	mu     schedule.Mutex
	random *rand.Rand
	// the node's incarnation: the random part of its Raft id; empty for a new machine
	incarnation string
	files       *crashdisk.Disk // of the log and its end mark
	stable      map[string][]byte
	snapshots   []*savedSnapshot // the newest last
	offered     []byte           // what the offerStore saved

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
	return &disk{
		random: random, latency: latency, files: newFiles(random),
		stable: make(map[string][]byte),
	}
}

func newFiles(random *rand.Rand) *crashdisk.Disk {
	return crashdisk.New(rand.New(rand.NewPCG(random.Uint64(), 1)))
}

// losePower takes away what was not synced.
func (d *disk) losePower() {
	d.locked(func(d *disk) {
		d.files.LosePower(d.random, 512)
	})
}

// wipe makes the disk a new one.
func (d *disk) wipe() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.incarnation, d.snapshots, d.offered = "", nil, nil
	d.files, d.stable = newFiles(d.random), make(map[string][]byte)
}

// inTrouble reports whether a fault has affected the disk a short time ago.
func (d *disk) inTrouble() bool {
	const recent = 10 * time.Second
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.trouble) < recent
}

// flip flips one bit of the newest snapshot, or of a segment of the log. It returns which of these
// it damaged, or "" if there is neither.
func (d *disk) flip() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.snapshots) > 0 && d.random.IntN(3) == 0 {
		saved := *d.snapshots[len(d.snapshots)-1]
		saved.data = d.flipped(saved.data)
		d.snapshots[len(d.snapshots)-1] = &saved
		return fmt.Sprintf("the snapshot at %d", saved.meta.Index)
	}
	segments := slices.DeleteFunc(d.files.Names(),
		func(name string) bool { return !strings.HasSuffix(name, ".wal") })
	if len(segments) == 0 {
		return ""
	}
	name := segments[d.random.IntN(len(segments))]
	offset := d.random.Int64N(d.files.Used(name))
	d.files.Flip(name, offset, uint(d.random.IntN(8)))
	return fmt.Sprintf("%s at %d", name, offset)
}

func (d *disk) flipped(data []byte) []byte {
	damaged := bytes.Clone(data)
	if len(damaged) > 0 {
		damaged[d.random.IntN(len(damaged))] ^= 1 << d.random.IntN(8)
	}
	return damaged
}

// split returns a disk for a process that has died: what still runs of the process reads and writes
// that. The process has open files, so these go with it, and d goes on with copies.
func (d *disk) split() *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() { d.files = d.files.Clone() }()
	return &disk{
		random: rand.New(rand.NewPCG(d.random.Uint64(), 0)), incarnation: d.incarnation,
		files:  d.files,
		stable: maps.Clone(d.stable), snapshots: slices.Clone(d.snapshots), offered: d.offered,
	}
}

// mount is a process's view of a disk. After the process has died, its remaining goroutines write
// to a copy that no other process sees.
type mount struct {
	exit func(error)

	mu      schedule.Mutex
	disk    *disk
	dead    chan struct{} // closed when the process dies
	over    bool          // the process has died
	writing []*diskWrite  // in the order in which they began
}

// diskWrite is a write that is under way. If the process dies meanwhile, the write takes effect at
// that moment or never. It must not take effect later, when another process may use the disk.
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
		m.over, m.disk = true, m.disk.split()
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

// diedWhileWaiting waits for c or the death of the process, and reports whether the process has
// died.
func diedWhileWaiting[T any](m *mount, c <-chan T) bool {
	select {
	case <-c:
		return false
	case <-m.dead:
		return true
	}
}

// stores returns what a node keeps its state in. The log is the product's own, in files of this
// disk.
func (m *mount) stores(log *slog.Logger) (raftlog.Stores, error) {
	stable := stableStore{m}
	d := m.view()
	d.mu.Lock()
	files, secrets := d.files, rand.New(rand.NewPCG(d.random.Uint64(), 2))
	d.mu.Unlock()
	// small, so that segments end and entries have several frames
	const segmentSize, frameSize = 64 << 10, 2 << 10
	entries, err := raftlog.OpenLog(wal.Config{
		Folder: files.Folder(m.step), Random: randomBytes{secrets}, SegmentSize: segmentSize,
		FrameSize: frameSize,
	}, stable, log)
	return raftlog.Stores{
		Log: entries, Stable: stable, Snapshots: snapshotStore{m}, Offered: offerStore{m},
		Close: func() error { return nil },
	}, err
}

// step is a crashdisk.Hook: a sync takes the time of a write. Some writes are interrupted, so that
// a process is killed in their middle.
func (m *mount) step(s crashdisk.Step) error {
	if s.Syncs {
		return m.write(func(*disk) { s.Apply() })
	}
	d, pause := m.view(), false
	d.locked(func(d *disk) { pause = d.latency > 0 && d.random.IntN(8) == 0 })
	if pause {
		timer := time.NewTimer(time.Microsecond)
		diedWhileWaiting(m, timer.C)
		timer.Stop()
	}
	s.Apply()
	return nil
}

// randomBytes is a source of keys that a seed decides.
type randomBytes struct{ random *rand.Rand }

// Read implements io.Reader.
func (r randomBytes) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.random.Uint32())
	}
	return len(p), nil
}

// stableStore is a raft.StableStore. A write that fails ends the process, because raft would panic.
type stableStore struct{ mount *mount }

var errNotFound = errors.New("not found") // the text is raft's

// Set implements raft.StableStore.
func (s stableStore) Set(key, value []byte) error {
	if err := s.mount.write(func(
		d *disk,
	) {
		d.stable[string(key)] = bytes.Clone(value)
	}); err != nil {
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
func (s snapshotStore) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	return &snapshotSink{mount: s.mount, saved: savedSnapshot{meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d-%d", term, index, time.Now().UnixNano()),
		Index: index, Term: term,
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

// Open implements raft.SnapshotStore. It refuses a snapshot whose data does not have the checksum
// with which it was written. Raft's own store does so, too.
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

// Write implements raft.SnapshotSink. It takes as long as a disk write, so that others run while a
// snapshot is written.
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
		slices.SortStableFunc(d.snapshots, func(a, b *savedSnapshot) int {
			// by their position in the log: they may be finished in another order
			return cmp.Or(cmp.Compare(a.meta.Term, b.meta.Term),
				cmp.Compare(a.meta.Index, b.meta.Index))
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
