package disk

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Mount mounts a folder at a path by FUSE, with the faults of the disk. The caller unmounts.
func (d *Disk) Mount(folder, path string) (*fuse.Server, error) {
	loopback := &fs.LoopbackRoot{Path: folder}
	root := &node{LoopbackNode: fs.LoopbackNode{RootData: loopback}, disk: d}
	loopback.RootNode = root
	none := time.Duration(0)
	server, err := fs.Mount(path, root, &fs.Options{
		AttrTimeout: &none, EntryTimeout: &none,
		MountOptions: fuse.MountOptions{
			DirectMount: true, AllowOther: true, FsName: "chaos",
			MaxBackground: 64,
		},
	})
	if err != nil {
		return nil, err
	}
	return server, setCloseOnExec()
}

// setCloseOnExec sets close-on-exec on every open file but the standard three. A child that
// inherited the FUSE connection would keep it open after this process has died, and the kernel
// would wait for its answers without end.
func setCloseOnExec() error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range open {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}

// node is an inode of the file system.
type node struct {
	fs.LoopbackNode
	disk *Disk
}

var (
	_ fs.NodeWrapChilder = (*node)(nil)
	_ fs.NodeOpener      = (*node)(nil)
	_ fs.NodeCreater     = (*node)(nil)
	_ fs.NodeGetattrer   = (*node)(nil)
	_ fs.NodeSetattrer   = (*node)(nil)
	_ fs.NodeStatfser    = (*node)(nil)
	_ fs.NodeUnlinker    = (*node)(nil)
	_ fs.NodeRenamer     = (*node)(nil)
)

// WrapChild implements fs.NodeWrapChilder.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{
		LoopbackNode: fs.LoopbackNode{RootData: ops.(*fs.LoopbackNode).RootData},
		disk:         n.disk,
	}
}

func (n *node) path() string { return filepath.Join(n.RootData.Path, n.Path(n.Root())) }

// Open implements fs.NodeOpener.
func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	opened, err := os.OpenFile(n.path(),
		int(flags)&^(syscall.O_APPEND|syscall.O_TRUNC)&^syscall.O_ACCMODE|syscall.O_RDWR, 0)
	if err != nil {
		return nil, 0, fs.ToErrno(err)
	}
	f, err := n.disk.open(opened)
	if err == nil && flags&syscall.O_TRUNC != 0 {
		if err = f.unsynced.truncate(opened, 0); err != nil {
			f.Release(ctx) // the kernel does not release what was not opened
		}
	}
	return f, 0, fs.ToErrno(err)
}

// Create implements fs.NodeCreater.
func (n *node) Create(ctx context.Context, name string, flags, mode uint32,
	out *fuse.EntryOut,
) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, handle, _, errno := n.LoopbackNode.Create(ctx, name, flags&^syscall.O_APPEND, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	_ = handle.(fs.FileReleaser).Release(ctx)
	opened, err := os.OpenFile(filepath.Join(n.path(), name), os.O_RDWR, 0)
	if err != nil {
		return nil, nil, 0, fs.ToErrno(err)
	}
	f, err := n.disk.open(opened)
	return inode, f, 0, fs.ToErrno(err)
}

// Getattr implements fs.NodeGetattrer.
func (n *node) Getattr(ctx context.Context, f fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if own, ok := f.(*file); ok {
		return own.Getattr(ctx, out)
	}
	errno := n.LoopbackNode.Getattr(ctx, nil, out)
	n.disk.addUnsynced(n.path(), out)
	return errno
}

// Setattr implements fs.NodeSetattrer.
func (n *node) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn,
	out *fuse.AttrOut,
) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		own, isOwn := f.(*file)
		if !isOwn {
			opened, err := os.OpenFile(n.path(), os.O_RDWR, 0)
			if err != nil {
				return fs.ToErrno(err)
			}
			if own, err = n.disk.open(opened); err != nil {
				return fs.ToErrno(err)
			}
			defer own.Release(ctx)
		}
		if errno := own.resize(int64(size)); errno != 0 {
			return errno
		}
		in.Valid &^= fuse.FATTR_SIZE
	}
	if errno := n.LoopbackNode.Setattr(ctx, nil, in, out); errno != 0 {
		return errno
	}
	n.disk.addUnsynced(n.path(), out)
	return 0
}

// Unlink implements fs.NodeUnlinker.
func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	inode := inodeOf(filepath.Join(n.path(), name))
	errno := n.LoopbackNode.Unlink(ctx, name)
	n.disk.dropIfUnused(inode)
	return errno
}

// Rename implements fs.NodeRenamer.
func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, newName string,
	flags uint32,
) syscall.Errno {
	to := parent.(*node)
	replaced := inodeOf(filepath.Join(to.path(), newName))
	errno := fs.ToErrno(unix.Renameat2(unix.AT_FDCWD, filepath.Join(n.path(), name), unix.AT_FDCWD,
		filepath.Join(to.path(), newName), uint(flags)))
	n.disk.dropIfUnused(replaced)
	return errno
}

// inodeOf returns the inode of a name, 0 for none.
func inodeOf(path string) uint64 {
	var st syscall.Stat_t
	if syscall.Lstat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// Statfs implements fs.NodeStatfser.
func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	errno := n.LoopbackNode.Statfs(ctx, out)
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.disk.trouble.Full {
		out.Bfree, out.Bavail = 0, 0
	}
	return errno
}

// addUnsynced replaces the size in out by the size with unsynced writes.
func (d *Disk) addUnsynced(path string, out *fuse.AttrOut) {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return
	}
	if size, ok := d.size(st.Ino); ok {
		out.Size = uint64(size)
	}
}

// file is an open file.
type file struct {
	disk     *Disk
	file     *os.File
	unsynced *unsynced
}

var (
	_ fs.FileReader    = (*file)(nil)
	_ fs.FileWriter    = (*file)(nil)
	_ fs.FileFsyncer   = (*file)(nil)
	_ fs.FileFlusher   = (*file)(nil)
	_ fs.FileReleaser  = (*file)(nil)
	_ fs.FileGetattrer = (*file)(nil)
)

func (d *Disk) open(f *os.File) (*file, error) {
	u, err := d.attach(f)
	if err != nil {
		_ = f.Close() // the error of attach is returned
		return nil, err
	}
	return &file{disk: d, file: f, unsynced: u}, nil
}

// Read implements fs.FileReader.
func (f *file) Read(_ context.Context, to []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	n, err := f.unsynced.read(f.file, to, offset)
	return fuse.ReadResultData(to[:n]), fs.ToErrno(err)
}

// Write implements fs.FileWriter.
func (f *file) Write(_ context.Context, data []byte, offset int64) (uint32, syscall.Errno) {
	trouble := f.disk.awaitWhileHanging()
	if trouble.Full && f.grows(offset+int64(len(data))) {
		return 0, syscall.ENOSPC
	}
	if err := f.unsynced.write(f.file, data, offset, drawThrough()); err != nil {
		return 0, fs.ToErrno(err)
	}
	return uint32(len(data)), 0
}

func (f *file) grows(size int64) bool {
	f.unsynced.mu.Lock()
	defer f.unsynced.mu.Unlock()
	return size > f.unsynced.size
}

func (f *file) resize(size int64) syscall.Errno {
	if f.disk.awaitWhileHanging().Full && f.grows(size) {
		return syscall.ENOSPC
	}
	return fs.ToErrno(f.unsynced.truncate(f.file, size))
}

// Fsync implements fs.FileFsyncer.
func (f *file) Fsync(context.Context, uint32) syscall.Errno {
	trouble := f.disk.awaitWhileHanging()
	time.Sleep(trouble.SyncDelay)
	if trouble.FailSync {
		return syscall.EIO
	}
	return fs.ToErrno(f.unsynced.sync(f.file))
}

// Flush implements fs.FileFlusher. To close a file does not sync it.
func (f *file) Flush(context.Context) syscall.Errno { return 0 }

// Release implements fs.FileReleaser.
func (f *file) Release(context.Context) syscall.Errno {
	f.disk.detach(f.unsynced)
	return fs.ToErrno(f.file.Close())
}

// Getattr implements fs.FileGetattrer.
func (f *file) Getattr(_ context.Context, out *fuse.AttrOut) syscall.Errno {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.file.Fd()), &st); err != nil {
		return fs.ToErrno(err)
	}
	out.FromStat(&st)
	f.unsynced.mu.Lock()
	defer f.unsynced.mu.Unlock()
	out.Size = uint64(f.unsynced.size)
	return 0
}
