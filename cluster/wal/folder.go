package wal

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"holdfast/internal/durable"
)

// Folder is the folder of a log. Its names have no path. It is safe for concurrent use.
type Folder interface {
	List() ([]string, error)
	// Open opens a file to read and write it. The error is fs.ErrNotExist if there is none.
	Open(name string) (File, error)
	// Create makes an empty file, or empties the one that has the name.
	Create(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync makes all names survive a crash, as they are now.
	Sync() error
}

// File is an open file of a Folder.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	Truncate(size int64) error
	// Allocate makes the file size bytes long, if it is shorter. The new bytes are 0.
	Allocate(size int64) error
	// Sync makes the content and the size survive a crash.
	Sync() error
}

// Dir is a Folder of the file system: its path.
type Dir string

// List implements Folder.
func (d Dir) List() (names []string, err error) {
	entries, err := os.ReadDir(string(d))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, err
}

// Open implements Folder.
func (d Dir) Open(name string) (File, error) { return d.open(name, 0) }

// Create implements Folder.
func (d Dir) Create(name string) (File, error) { return d.open(name, os.O_CREATE|os.O_TRUNC) }

func (d Dir) open(name string, flags int) (File, error) {
	file, err := os.OpenFile(filepath.Join(string(d), name), os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{file}, nil
}

// Rename implements Folder.
func (d Dir) Rename(from, to string) error {
	return os.Rename(filepath.Join(string(d), from), filepath.Join(string(d), to))
}

// Remove implements Folder.
func (d Dir) Remove(name string) error { return os.Remove(filepath.Join(string(d), name)) }

// Sync implements Folder.
func (d Dir) Sync() error { return durable.SyncDir(string(d)) }

type osFile struct{ *os.File }

// Size implements File.
func (f osFile) Size() (int64, error) {
	stat, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return stat.Size(), nil
}

// Allocate implements File. A file system that cannot allocate gets a file with a hole.
func (f osFile) Allocate(size int64) error {
	has, err := f.Size()
	if err != nil || has >= size {
		return err
	}
	if err := allocate(f.File, size); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return f.Truncate(size)
}

// Sync implements File.
func (f osFile) Sync() error { return syncData(f.File) }
