// Package disk is a file system over a folder that behaves like the disk of a machine that may lose
// power. A sync makes writes durable. The disk can be slow, full, hang, or fail to sync.
//
// A write reaches the folder at once, or stays in memory until a sync and is lost with the process.
// Which of the two is drawn for each write: a kernel, too, writes back some unsynced data. So a
// crash leaves any mixture. Sizes (truncate) and names (create, rename, remove) are durable at
// once.
package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Trouble is what is wrong with a disk.
type Trouble struct {
	SyncDelay time.Duration // added to each sync
	FailSync  bool          // syncs fail with EIO
	Full      bool          // writes and truncations that make a file longer fail with ENOSPC
	Hang      bool          // writes, syncs and changes of a size wait until Hang is false
}

// Disk is a disk's state. Its methods may be called from several goroutines.
type Disk struct {
	mu      sync.Mutex
	changed *sync.Cond // trouble has changed
	trouble Trouble
	files   map[uint64]*unsynced // open files, and files with unsynced data, by inode
}

// New returns a disk without trouble.
func New() *Disk {
	d := &Disk{files: make(map[uint64]*unsynced)}
	d.changed = sync.NewCond(&d.mu)
	return d
}

// SetTrouble replaces the faults of the disk.
func (d *Disk) SetTrouble(t Trouble) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trouble = t
	d.changed.Broadcast()
}

// awaitWhileHanging returns what is wrong, after waiting for as long as the disk hangs.
func (d *Disk) awaitWhileHanging() Trouble {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.trouble.Hang {
		d.changed.Wait()
	}
	return d.trouble
}

// unsynced is the state of a file that is open or has unsynced data. That data is in memory only,
// and not in the folder.
type unsynced struct {
	mu      sync.Mutex
	inode   uint64
	opened  int      // number of open handles; guarded by Disk.mu
	file    *os.File // a descriptor of its own, which stays when all handles are closed
	extents []extent // the unsynced writes, oldest first
	size    int64    // size of the file as a reader sees it
}

type extent struct {
	offset int64
	data   []byte
}

func (e *extent) end() int64 { return e.offset + int64(len(e.data)) }

// attach counts a handle that is being opened, and returns the state of its file.
func (d *Disk) attach(f *os.File) (*unsynced, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.files[st.Ino]
	if u == nil {
		own, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		u = &unsynced{inode: st.Ino, size: st.Size, file: own}
		d.files[st.Ino] = u
	}
	u.opened++
	return u, nil
}

// detach counts a handle as closed. Unsynced data stays for the next handle, unless the last handle
// is closed and the file has no name any more.
func (d *Disk) detach(u *unsynced) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u.opened--
	d.dropIfUnusedLocked(u)
}

// dropIfUnused is called when a file has lost a name. If the file has no name and no handle left,
// it drops the unsynced data, because another file may get its inode.
func (d *Disk) dropIfUnused(inode uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if u := d.files[inode]; u != nil {
		d.dropIfUnusedLocked(u)
	}
}

// dropIfUnusedLocked removes a file from d.files if it has no open handle and, besides, either no
// unsynced data or no name.
func (d *Disk) dropIfUnusedLocked(u *unsynced) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var st syscall.Stat_t
	named := syscall.Fstat(int(u.file.Fd()), &st) == nil && st.Nlink > 0
	if u.opened == 0 && (!named || len(u.extents) == 0) {
		delete(d.files, u.inode)
		_ = u.file.Close() // its data was written, or has no name any more
	}
}

// WriteBack writes all that is in memory, as the kernel of a machine that keeps running does.
func (d *Disk) WriteBack() (faults error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, u := range d.files {
		faults = errors.Join(faults, u.sync(u.file))
	}
	return faults
}

// size returns the size of a file as a reader sees it. It returns false for a file that is not in
// d.files: its size in the folder is right.
func (d *Disk) size(inode uint64) (int64, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.files[inode]
	if u == nil {
		return 0, false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.size, true
}

// read reads as if all had been written.
func (u *unsynced) read(f *os.File, to []byte, offset int64) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	to = to[:max(0, min(int64(len(to)), u.size-offset))]
	if n, _ := f.ReadAt(to, offset); n < len(to) {
		// what lies beyond the end is in an extent, or a hole
		clear(to[n:])
	}
	for _, e := range u.extents {
		from, until := max(e.offset, offset), min(e.end(), offset+int64(len(to)))
		if from < until {
			copy(to[from-offset:until-offset], e.data[from-e.offset:])
		}
	}
	return len(to), nil
}

// write keeps data in memory, and drops the unsynced writes that data covers as a whole. With
// through, it writes data to the file at once instead, unless data overlaps another unsynced write
// in part.
func (u *unsynced) write(f *os.File, data []byte, offset int64, through bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	added := extent{offset, append([]byte(nil), data...)}
	u.extents = slices.DeleteFunc(u.extents,
		func(e extent) bool { return added.offset <= e.offset && e.end() <= added.end() })
	for _, e := range u.extents {
		through = through && (e.end() <= added.offset || added.end() <= e.offset)
	}
	u.size = max(u.size, added.end())
	if through {
		_, err := f.WriteAt(data, offset)
		return err
	}
	u.extents = append(u.extents, added)
	return nil
}

// sync writes the unsynced data to the file.
func (u *unsynced) sync(f *os.File) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, e := range u.extents {
		if _, err := f.WriteAt(e.data, e.offset); err != nil {
			return err
		}
	}
	u.extents = nil
	return nil
}

// truncate changes the size, at once.
func (u *unsynced) truncate(f *os.File, size int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	var left []extent
	for _, e := range u.extents {
		if e.offset < size {
			e.data = e.data[:min(int64(len(e.data)), size-e.offset)]
			left = append(left, e)
		}
	}
	u.extents, u.size = left, size
	return f.Truncate(size)
}

// drawThrough draws whether a write reaches the folder before it is synced.
func drawThrough() bool { return rand.IntN(2) == 0 }
