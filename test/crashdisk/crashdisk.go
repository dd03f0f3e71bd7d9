// Package crashdisk keeps files in memory as a machine has them: what programs see, and what of it
// is on the disk. It makes the states that a crash can leave:
//
//	disk := crashdisk.New(rng)
//	log, err := wal.Open(wal.Config{Folder: disk.Folder(nil), ...})
//	...
//	crashed := disk.Clone()      // a killed process: everything that was written is there
//	crashed.LosePower(rng, 4096) // a power failure: of what was not synced, some pages are there
package crashdisk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"holdfast/cluster/wal"
)

// Disk is a folder of files. It is safe for concurrent use.
type Disk struct {
	mu    sync.Mutex
	names map[string]*file
	// synced are the names as they were at the last sync of the folder; changed are the names that
	// changed since, each once, in the order of their first change.
	synced  map[string]*file
	changed []string
	random  *rand.Rand // draws where a write is split
}

// file is the content of a file. change describes what was done since it was last synced.
type file struct {
	seen    []byte // what a program reads
	synced  []byte
	changes []change
}

// change is a write at an offset or, if data is nil, a new size.
type change struct {
	offset int64
	data   []byte
}

// maxUnsynced is how many changes of a file may be unsynced. As a kernel does, the disk syncs the
// oldest ones by itself when there are more.
const maxUnsynced = 256

// writeBack syncs the oldest changes, so that at most limit are left. seen is what synced becomes
// by all changes.
func (f *file) writeBack(limit int) {
	for _, c := range f.changes[:max(0, len(f.changes)-limit)] {
		if c.data == nil {
			f.synced = resize(f.synced, c.offset)
		} else {
			f.synced = write(f.synced, c.data, c.offset)
		}
	}
	f.changes = slices.Clone(f.changes[max(0, len(f.changes)-limit):])
}

// New returns an empty disk. The random source draws where a write is split.
func New(random *rand.Rand) *Disk {
	return &Disk{names: map[string]*file{}, synced: map[string]*file{}, random: random}
}

// split returns how many bytes of a write are its first step.
func (d *Disk) split(size int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.IntN(size + 1)
}

// Clone returns a copy of the disk. Open files stay files of d.
func (d *Disk) Clone() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	copies := map[*file]*file{}
	clone := func(names map[string]*file) map[string]*file {
		cloned := make(map[string]*file, len(names))
		for name, f := range names {
			if copies[f] == nil {
				copies[f] = &file{
					bytes.Clone(f.seen), bytes.Clone(f.synced),
					slices.Clone(f.changes),
				}
			}
			cloned[name] = copies[f]
		}
		return cloned
	}
	return &Disk{
		names: clone(d.names), synced: clone(d.synced), changed: slices.Clone(d.changed),
		random: rand.New(rand.NewPCG(d.random.Uint64(), 0)),
	}
}

// LosePower takes away what was not synced: of each write a random half of its pages stays, of
// other changes a random half. Nothing that stays is unsynced any more.
func (d *Disk) LosePower(random *rand.Rand, page int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range d.changed {
		if f, has := d.names[name]; random.IntN(2) == 0 {
			if delete(d.synced, name); has {
				d.synced[name] = f
			}
		}
	}
	d.names, d.changed = maps.Clone(d.synced), nil
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		// a file has one name, but for a moment
		f := d.names[name]
		for _, c := range f.changes {
			f.synced = c.survive(f.synced, random, page)
		}
		f.seen, f.changes = bytes.Clone(f.synced), nil
	}
}

func (c change) survive(content []byte, random *rand.Rand, page int64) []byte {
	if c.data == nil {
		if random.IntN(2) == 0 {
			content = resize(content, c.offset)
		}
		return content
	}
	for at := c.offset; at < c.offset+int64(len(c.data)); {
		end := min((at/page+1)*page, c.offset+int64(len(c.data)))
		if random.IntN(2) == 0 {
			content = write(content, c.data[at-c.offset:end-c.offset], at)
		}
		at = end
	}
	return content
}

func resize(content []byte, size int64) []byte {
	if size <= int64(len(content)) {
		return content[:size:size] // append copies: what was behind the end does not come back
	}
	return append(content, make([]byte, size-int64(len(content)))...)
}

func write(content, data []byte, offset int64) []byte {
	if end := offset + int64(len(data)); end > int64(len(content)) {
		content = resize(content, end)
	}
	copy(content[offset:], data)
	return content
}

// Names returns the names of the files, in order.
func (d *Disk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.names))
}

// Flip flips a bit of a file, on the disk.
func (d *Disk) Flip(name string, offset int64, bit uint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.names[name]
	f.seen[offset] ^= 1 << bit
	if offset < int64(len(f.synced)) {
		f.synced[offset] ^= 1 << bit
	}
}

// Used returns the size of a file without the zeros at its end, 0 if there is no such file.
func (d *Disk) Used(name string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.names[name]; f != nil {
		return int64(len(bytes.TrimRight(f.seen, "\x00")))
	}
	return 0
}

// Step is a change of a disk that is about to happen. A write is two steps: a killed process leaves
// a part of it.
type Step struct {
	Name  string // of the operation and the file, for messages
	Syncs bool   // it is a sync
	Apply func()
}

// Hook is called for each step. It calls Apply, or returns an error that the operation then
// returns.
type Hook func(Step) error

// Folder returns the disk as a folder of a program. hook may be nil.
func (d *Disk) Folder(hook Hook) wal.Folder {
	if hook == nil {
		hook = func(s Step) error { s.Apply(); return nil }
	}
	return folder{d, hook}
}

type folder struct {
	disk *Disk
	hook Hook
}

// step runs a change of the disk.
func (f folder) step(name string, apply func()) error {
	return f.hook(Step{Name: name, Apply: f.locked(apply)})
}

func (f folder) locked(apply func()) func() {
	return func() {
		f.disk.mu.Lock()
		defer f.disk.mu.Unlock()
		apply()
	}
}

func (d *Disk) setName(name string, f *file) {
	if delete(d.names, name); f != nil {
		d.names[name] = f
	}
	if !slices.Contains(d.changed, name) {
		d.changed = append(d.changed, name)
	}
}

// List implements wal.Folder.
func (f folder) List() (names []string, err error) {
	f.locked(func() { names = slices.Sorted(maps.Keys(f.disk.names)) })()
	return names, nil
}

// Open implements wal.Folder.
func (f folder) Open(name string) (wal.File, error) {
	var found *file
	f.locked(func() { found = f.disk.names[name] })()
	if found == nil {
		return nil, fmt.Errorf("open %s: %w", name, fs.ErrNotExist)
	}
	return openFile{f, name, found}, nil
}

// Create implements wal.Folder.
func (f folder) Create(name string) (wal.File, error) {
	created := &file{}
	err := f.step("create "+name, func() { f.disk.setName(name, created) })
	return openFile{f, name, created}, err
}

// Rename implements wal.Folder. A crash may leave both names or, if the new one was there, its old
// file.
func (f folder) Rename(from, to string) error {
	return f.step("rename to "+to, func() {
		moved := f.disk.names[from]
		f.disk.setName(to, moved)
		f.disk.setName(from, nil)
	})
}

// Remove implements wal.Folder.
func (f folder) Remove(name string) error {
	return f.step("remove "+name, func() { f.disk.setName(name, nil) })
}

// Sync implements wal.Folder.
func (f folder) Sync() error {
	return f.hook(Step{Name: "sync folder", Syncs: true, Apply: f.locked(func() {
		f.disk.synced, f.disk.changed = maps.Clone(f.disk.names), nil
	})})
}

type openFile struct {
	folder
	name string
	file *file
}

// ReadAt implements io.ReaderAt.
func (f openFile) ReadAt(p []byte, offset int64) (n int, err error) {
	f.locked(func() {
		if offset < int64(len(f.file.seen)) {
			n = copy(p, f.file.seen[offset:])
		}
	})()
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt.
func (f openFile) WriteAt(p []byte, offset int64) (int, error) {
	written := 0
	for _, end := range []int{f.disk.split(len(p)), len(p)} {
		data, at := bytes.Clone(p[written:end]), offset+int64(written)
		err := f.step(fmt.Sprintf("write %d at %d of %s", len(data), at, f.name), func() {
			f.file.seen = write(f.file.seen, data, at)
			f.file.changes = append(f.file.changes, change{at, data})
			f.file.writeBack(maxUnsynced)
		})
		if err != nil {
			return written, err
		}
		written = end
	}
	return len(p), nil
}

// Size implements wal.File.
func (f openFile) Size() (size int64, err error) {
	f.locked(func() { size = int64(len(f.file.seen)) })()
	return size, nil
}

// Truncate implements wal.File.
func (f openFile) Truncate(size int64) error {
	return f.step("truncate "+f.name, func() {
		f.file.seen = resize(f.file.seen, size)
		f.file.changes = append(f.file.changes, change{offset: size})
	})
}

// Allocate implements wal.File.
func (f openFile) Allocate(size int64) error {
	if has, _ := f.Size(); has >= size {
		return nil
	}
	return f.Truncate(size)
}

// Sync implements wal.File.
func (f openFile) Sync() error {
	return f.hook(Step{Name: "sync " + f.name, Syncs: true, Apply: f.locked(func() {
		f.file.writeBack(0)
	})})
}

// Close implements io.Closer.
func (f openFile) Close() error { return nil }

// ErrCrashed is what operations of a crashed program return.
var ErrCrashed = errors.New("crashed")
