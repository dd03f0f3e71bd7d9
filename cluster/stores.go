package cluster

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Stores is where a member keeps what must survive.
type Stores struct {
	Log       raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	// Offered keeps the settings that this node offered last.
	Offered OfferStore
	Close   func() error
}

// HasState reports whether the stores belong to a member of a cluster.
func (s *Stores) HasState() (bool, error) {
	has, err := raft.HasExistingState(s.Log, s.Stable, s.Snapshots)
	if err != nil {
		return false, fmt.Errorf("look for existing state: %w", err)
	}
	return has, nil
}

// LastEntry returns the term and the index of the last entry in the log or, where the log is empty, of the newest snapshot.
func (s *Stores) LastEntry() (term, index uint64, err error) {
	last, err := s.Log.LastIndex()
	if err != nil {
		return 0, 0, fmt.Errorf("read the log: %w", err)
	}
	if last > 0 {
		var log raft.Log
		if err := s.Log.GetLog(last, &log); err != nil {
			return 0, 0, fmt.Errorf("read the log: %w", err)
		}
		return log.Term, log.Index, nil
	}
	snapshots, err := s.Snapshots.List()
	if err != nil || len(snapshots) == 0 {
		return 0, 0, err
	}
	return snapshots[0].Term, snapshots[0].Index, nil
}

// OfferStore keeps a small blob. Load returns nil when there is none.
type OfferStore interface {
	Load() ([]byte, error)
	Save([]byte) error
}

// ErrLocked says that another process uses the data folder.
var ErrLocked = errors.New("the data folder is in use by another process")

// retainedSnapshots is how many snapshots are kept: the newest, and one in case it is damaged.
const retainedSnapshots = 2

// OpenStores opens the stores in a folder, which is made where it is missing.
func OpenStores(dataDir string, kind LogStore, log *slog.Logger) (Stores, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return Stores{}, fmt.Errorf("open stores: %w", err)
	}
	if kind.other().exists(dataDir) {
		return Stores{}, fmt.Errorf("open stores: %s: %w", kind.other().path(dataDir), ErrOtherStore)
	}
	store, err := kind.open(kind.path(dataDir), log)
	if err != nil {
		return Stores{}, fmt.Errorf("open stores: %s: %w", kind.path(dataDir), err)
	}
	if kind.other().exists(dataDir) { // it was just converted
		return Stores{}, fmt.Errorf("open stores: %s: %w", kind.other().path(dataDir), errors.Join(ErrOtherStore, store.Close()))
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dataDir, retainedSnapshots, RaftLogger(log))
	if err != nil {
		return Stores{}, fmt.Errorf("open stores: %w", errors.Join(err, store.Close()))
	}
	return Stores{
		Log: store, Stable: store, Snapshots: snapshots,
		Offered: offerFile(filepath.Join(dataDir, "offered")), Close: store.Close,
	}, nil
}

type offerFile string

func (f offerFile) Load() ([]byte, error) {
	data, err := os.ReadFile(string(f))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

func (f offerFile) Save(data []byte) error { return writeFile(string(f), data) }

// deadlineStore ends the process when a call of the stable store fails or takes too long: a vote that is written after the
// node was given up for dead would land on top of a newer one.
type deadlineStore struct {
	raft.StableStore
	guard guard
	terms *sync.Mutex
}

func (s deadlineStore) Set(key, value []byte) error {
	return s.guard.do("vote", func() error { return s.StableStore.Set(key, value) })
}

// SetUint64 implements raft.StableStore. A term never goes back: raft's heartbeats are handled beside its main goroutine, and one that was
// overtaken by an election of this node must not put an older term in the place of the one in which the node was elected.
func (s deadlineStore) SetUint64(key []byte, value uint64) error {
	return s.guard.do("term", func() error {
		s.terms.Lock()
		defer s.terms.Unlock()
		if before, err := s.StableStore.GetUint64(key); err == nil && before > value {
			return fmt.Errorf("%w: %s from %d to %d", ErrTermBack, key, before, value)
		}
		return s.StableStore.SetUint64(key, value)
	})
}

// ErrTermBack says that a term was about to be replaced by an older one.
var ErrTermBack = errors.New("a term would go back")

// guard runs store calls under a deadline. A call is never abandoned while the process lives.
type guard struct {
	deadline time.Duration
	exit     func(error)
	stored   func(what string, took time.Duration) // may be nil
}

// ErrDisk says that the disk under the stores failed or hangs.
var ErrDisk = errors.New("the disk failed")

func (g guard) do(what string, call func() error) error {
	watch := g.watch(what)
	began := time.Now()
	err := call()
	watch.stop()
	if g.stored != nil {
		g.stored(what, time.Since(began))
	}
	if err != nil {
		err = fmt.Errorf("%w: write the %s: %w", ErrDisk, what, err)
		g.exit(err)
	}
	return err
}

// storeWatch ends the process when a store call takes longer than its deadline. The time is counted in parts, so that a process
// that was stopped and goes on, or a machine that slept, is not taken for a disk that hangs.
type storeWatch struct {
	guard guard
	what  string

	mu    sync.Mutex
	left  int // parts of the deadline
	timer *time.Timer
}

const watchParts = 10

func (g guard) watch(what string) *storeWatch {
	w := &storeWatch{guard: g, what: what, left: watchParts}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(g.deadline/watchParts, w.passed)
	return w
}

// passed is called after each part of the deadline.
func (w *storeWatch) passed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == 0 {
		return // the call has ended
	}
	if w.left--; w.left == 0 {
		w.guard.exit(fmt.Errorf("%w: writing the %s takes longer than %v", ErrDisk, w.what, w.guard.deadline))
		return
	}
	w.timer.Reset(w.guard.deadline / watchParts)
}

func (w *storeWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = 0
	w.timer.Stop()
}

// meteredSnapshots reports the size of the snapshots that are written.
type meteredSnapshots struct {
	raft.SnapshotStore
	written func(bytes int64)
}

func (s meteredSnapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
	if err != nil {
		return nil, err
	}
	return &meteredSink{SnapshotSink: sink, written: s.written}, nil
}

type meteredSink struct {
	raft.SnapshotSink
	bytes   int64
	written func(int64)
}

func (s *meteredSink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	s.bytes += int64(n)
	return n, err
}

func (s *meteredSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil {
		s.written(s.bytes)
	}
	return err
}

var _ io.WriteCloser = (*meteredSink)(nil)
