package wal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/raft"
)

var (
	// ErrDamaged says that the files are not what a crash can leave.
	ErrDamaged = errors.New("the write-ahead log is damaged")
	// ErrRefused says that a change of the log is impossible: entries that do not follow each other
	// or the log, an entry that is too large, or a deletion in the middle. Nothing was changed.
	ErrRefused = errors.New("refused to change the write-ahead log")
)

// Config says where a log is.
type Config struct {
	Folder Folder
	// Random is where the keys of segments are read from. It must be unpredictable, as crypto/rand
	// is.
	Random io.Reader
	// SegmentSize is the size in bytes to which a segment is allocated; 0 stands for 64 MiB.
	SegmentSize int64
	// FrameSize bounds the entries of a frame, in bytes; 0 stands for 1 MiB. A larger entry has a
	// frame of its own.
	FrameSize int
}

const (
	defaultSegmentSize = 64 << 20
	defaultFrameSize   = 1 << 20
	bufferSize         = 64 << 10
	// maxData bounds the data of an entry, in bytes, so that it fits into a payload.
	maxData = maxPayload - entriesSize - entryHeaderSize - math.MaxUint16
)

// Log is a raft.LogStore in append-only files. After a change that failed, all changes fail: what
// is on the disk is not known.
type Log struct {
	config Config

	changing chan struct{} // has one token, which a change takes
	failed   error         // of the change that failed first
	clean    bool          // nothing follows the end of the newest segment
	buffer   *bufio.Writer

	mu sync.RWMutex // also needed to change the fields below; a change may read them without it
	// segments are consecutive, the newest last. There is at least one.
	segments  []*segment
	positions positions
}

// Open opens a log, and creates it if the folder has no segment. It syncs what it finds. Apart from
// that, it changes nothing in a folder that has a segment. The error wraps ErrDamaged if the files
// are not what a crash can leave.
func Open(config Config) (*Log, error) {
	if config.SegmentSize == 0 {
		config.SegmentSize = defaultSegmentSize
	}
	if config.FrameSize == 0 {
		config.FrameSize = defaultFrameSize
	}
	l := &Log{
		config: config, changing: make(chan struct{}, 1),
		buffer: bufio.NewWriterSize(nil, bufferSize),
	}
	l.changing <- struct{}{}
	numbers, err := segmentNumbers(config.Folder)
	if err == nil && len(numbers) == 0 {
		err = l.addSegment(1, mac{}, span{}, 0)
		l.clean = true
	}
	for i, number := range numbers {
		if err == nil {
			err = l.load(number, i == 0)
		}
	}
	if lost := l.positions.lost; err == nil && !lost.isEmpty() {
		err = fmt.Errorf("%w: entries %d to %d are missing", ErrDamaged, lost.first, lost.last)
	}
	if err == nil && len(numbers) > 0 {
		err = l.sync()
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Exists reports whether a folder has segments of a log.
func Exists(folder Folder) (bool, error) {
	numbers, err := segmentNumbers(folder)
	return len(numbers) > 0, err
}

// segmentNumbers returns the numbers of the segments in a folder, ascending.
func segmentNumbers(folder Folder) (numbers []uint64, err error) {
	names, err := folder.List()
	for _, name := range names {
		digits, isSegment := strings.CutSuffix(name, segmentSuffix)
		if !isSegment {
			continue
		}
		var number uint64
		if _, err := fmt.Sscanf(digits, "%d", &number); err != nil || segmentName(number) != name {
			return nil, fmt.Errorf("%w: %s is not the name of a segment", ErrDamaged, name)
		}
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	return numbers, err
}

// load reads the next segment of the log. The oldest says what the log was when it was created.
func (l *Log) load(number uint64, oldest bool) error {
	if n := len(l.segments); n > 0 && l.segments[n-1].number+1 != number {
		return fmt.Errorf("%w: segment %d is missing", ErrDamaged, l.segments[n-1].number+1)
	}
	s, h, err := openSegment(l.config.Folder, number)
	if errors.Is(err, errHeader) {
		return fmt.Errorf("%w: segment %d: %w", ErrDamaged, number, err)
	}
	if err != nil {
		return err
	}
	if oldest {
		l.positions.lost = h.state
	} else if h.previous != l.newest().chain.last || h.state != l.positions.all() {
		return fmt.Errorf("%w: segment %d has a frame that is wrong, at %d bytes",
			errors.Join(ErrDamaged, s.file.Close()), number-1, l.newest().end)
	}
	l.segments = append(l.segments, s)
	return s.read(func(p raw, offset int64) error {
		err := p.decode(func(index uint64, at, size int) error {
			if !l.positions.canAppend(index) {
				return fmt.Errorf("entry %d follows %d", index, l.positions.all().last)
			}
			l.positions.add(index, place{s, uint32(offset) + uint32(at), uint32(size)})
			return nil
		}, l.positions.delete)
		if err != nil {
			return fmt.Errorf("%w: segment %d: %w", ErrDamaged, number, err)
		}
		return nil
	})
}

// sync makes the log as it was read survive a crash. A killed process may have left it unsynced.
func (l *Log) sync() error {
	for _, s := range l.segments {
		if err := s.file.Sync(); err != nil {
			return err
		}
	}
	return l.config.Folder.Sync()
}

func (l *Log) newest() *segment { return l.segments[len(l.segments)-1] }

// addSegment creates the segment in which the log goes on. state is the span of the log. The
// segment has room for a frame of need bytes.
func (l *Log) addSegment(number uint64, previous mac, state span, need int64) error {
	h := header{number: number, previous: previous, state: state}
	if _, err := io.ReadFull(l.config.Random, h.key[:]); err != nil {
		return fmt.Errorf("make the key of a segment: %w", err)
	}
	s, err := createSegment(l.config.Folder, h, max(l.config.SegmentSize, headerSize+need))
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segments = append(l.segments, s)
	return nil
}

// FirstIndex implements raft.LogStore.
func (l *Log) FirstIndex() (uint64, error) { return l.span().first, nil }

// LastIndex implements raft.LogStore.
func (l *Log) LastIndex() (uint64, error) { return l.span().last, nil }

func (l *Log) span() span {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.positions.known()
}

// GetLog implements raft.LogStore. It does not verify the MAC of an entry that was stored or read
// since Open: the error wraps ErrDamaged only if the entry cannot be decoded.
func (l *Log) GetLog(index uint64, log *raft.Log) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	at, ok := l.positions.find(index)
	if !ok {
		return raft.ErrLogNotFound
	}
	encoded := make([]byte, at.size)
	if _, err := at.segment.file.ReadAt(encoded, int64(at.offset)); err != nil {
		return fmt.Errorf("read entry %d: %w", index, err)
	}
	decoded, size, err := decodeEntry(encoded, index)
	if err == nil && size != len(encoded) {
		err = errEntry
	}
	if err != nil {
		return fmt.Errorf("%w: entry %d: %w", ErrDamaged, index, err)
	}
	*log = decoded
	return nil
}

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. The entries follow each other and the log; an empty log takes
// any index. When it returns nil, the entries survive a crash. After an error other than
// ErrRefused, any number of them may.
func (l *Log) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	return l.change(func() error {
		if err := l.checkAppend(logs); err != nil {
			return err
		}
		return l.store(logs)
	})
}

func (l *Log) checkAppend(logs []*raft.Log) error {
	if !l.positions.canAppend(logs[0].Index) {
		return fmt.Errorf("%w: entry %d follows %d", ErrRefused, logs[0].Index,
			l.positions.known().last)
	}
	for i, log := range logs {
		if want := logs[0].Index + uint64(i); log.Index != want {
			return fmt.Errorf("%w: entry %d in place of %d", ErrRefused, log.Index, want)
		}
		if len(log.Extensions) > math.MaxUint16 || len(log.Data) > maxData {
			return fmt.Errorf("%w: entry %d of %d bytes is too large", ErrRefused, log.Index,
				len(log.Data))
		}
	}
	return nil
}

// store writes entries in frames, and syncs them once.
func (l *Log) store(logs []*raft.Log) error {
	first := logs[0].Index
	places := make([]place, 0, len(logs))
	for len(logs) > 0 {
		batch := logs[:frameLength(logs, l.config.FrameSize)]
		logs = logs[len(batch):]
		offset, err := l.append(entries(batch), l.positions.with(first, len(places)))
		if err != nil {
			return err
		}
		at := uint32(offset) + entriesSize
		for _, log := range batch {
			size := uint32(entrySize(log))
			places = append(places, place{l.newest(), at, size})
			at += size
		}
	}
	if err := l.newest().file.Sync(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.positions.add(first, places...)
	return nil
}

// frameLength returns how many entries are written in the next frame, of limit bytes or one entry.
func frameLength(logs []*raft.Log, limit int) int {
	count, size := 1, entrySize(logs[0])
	for count < len(logs) && size+entrySize(logs[count]) <= limit {
		size += entrySize(logs[count])
		count++
	}
	return count
}

// DeleteRange implements raft.LogStore. The log need not have all of the range. What it has must be
// at its beginning or its end, else the error is ErrRefused. DeleteRange then removes the segments
// that have no entry of the log any more.
func (l *Log) DeleteRange(first, last uint64) error {
	return l.change(func() error {
		log := l.positions.known()
		deleted := log.clip(span{first, last})
		if deleted.isEmpty() {
			return nil
		}
		if deleted.first > log.first && deleted.last < log.last {
			return fmt.Errorf("%w: delete %d to %d of %d to %d", ErrRefused, first, last, log.first,
				log.last)
		}
		if _, err := l.append(deletion(deleted), log); err != nil {
			return err
		}
		if err := l.newest().file.Sync(); err != nil {
			return err
		}
		l.mu.Lock()
		l.positions.delete(deleted)
		unused := l.detachUnused()
		l.mu.Unlock()
		return l.remove(unused)
	})
}

// detachUnused takes out the segments before that of the first entry. mu must be held.
func (l *Log) detachUnused() (unused []*segment) {
	keep := len(l.segments) - 1
	if len(l.positions.places) > 0 {
		keep = slices.Index(l.segments, l.positions.places[0].segment)
	}
	unused = l.segments[:keep]
	l.segments = slices.Clone(l.segments[keep:])
	return unused
}

// remove removes segments, the oldest first, and syncs the folder after each. So a crash leaves no
// segment that a removed one precedes.
func (l *Log) remove(unused []*segment) error {
	var err error
	for _, s := range unused {
		err = errors.Join(err, s.file.Close())
	}
	for _, s := range unused {
		if err == nil {
			err = l.config.Folder.Remove(segmentName(s.number))
		}
		if err == nil {
			err = l.config.Folder.Sync()
		}
	}
	return err
}

// change runs a change of the log alone. After a change that failed, no other runs.
func (l *Log) change(run func() error) error {
	<-l.changing
	defer func() { l.changing <- struct{}{} }()
	if l.failed != nil {
		return l.failed
	}
	err := run()
	if err != nil && !errors.Is(err, ErrRefused) {
		l.failed = err
	}
	return err
}

// append writes a frame, in a new segment if the newest has no room. It does not sync the frame.
// state is the span of the log before the frame.
func (l *Log) append(p payload, state span) (offset int64, err error) {
	need := int64(frameHeaderSize + p.size())
	newest := l.newest()
	isFull := newest.end > headerSize && newest.end+need > l.config.SegmentSize
	if isFull {
		err = l.roll(state, need)
	} else if !l.clean {
		// a crash may have left it, and the disk may be full
		_ = l.config.Folder.Remove(temporaryName)
		err = newest.erase(max(l.config.SegmentSize, newest.end+need))
	}
	if err != nil {
		return 0, err
	}
	l.clean = true
	return l.newest().append(p, l.buffer)
}

// roll ends the newest segment, and creates the next one, with room for a frame of need bytes.
func (l *Log) roll(state span, need int64) error {
	ended := l.newest()
	if err := ended.file.Truncate(ended.end); err != nil {
		return err
	}
	if err := ended.file.Sync(); err != nil {
		return err
	}
	return l.addSegment(ended.number+1, ended.chain.last, state, need)
}

// Close closes the files. It must be called once, after all other calls have returned.
func (l *Log) Close() (err error) {
	for _, s := range l.segments {
		err = errors.Join(err, s.file.Close())
	}
	return err
}
