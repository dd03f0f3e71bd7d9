package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"holdfast/internal/durable"
)

// ErrTruncated says that a boltdb file is shorter than its own metadata says. The file was cut off.
// To read it would end the process by SIGBUS.
var ErrTruncated = errors.New(
	"the boltdb file is cut off: if the members that are up are a majority " +
		"without this one, empty the data folder, and this node joins anew; otherwise restore the folder")

// newSuffix ends the name of a boltdb file that is being created.
const newSuffix = ".new"

// openBolt opens a boltdb file. A new one gets its name when it is complete: bbolt itself would
// leave a file without its last pages if the power fails while it is created.
func openBolt(path string) (*raftboltdb.BoltStore, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := createBolt(path); err != nil {
			return nil, fmt.Errorf("create %s: %w", path, err)
		}
	}
	if err := checkBoltSize(path); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return newBolt(path)
}

func createBolt(path string) error {
	if err := os.RemoveAll(path + newSuffix); err != nil {
		return err
	}
	store, err := newBolt(path + newSuffix)
	if err != nil {
		return err
	}
	if err := store.Close(); err != nil {
		return err
	}
	return durable.Rename(path+newSuffix, path)
}

func newBolt(path string) (*raftboltdb.BoltStore, error) {
	store, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		BoltOptions: &bbolt.Options{
			Timeout: 2 * time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		},
		MsgpackUseNewTimeFormat: true,
	})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%w: %s", ErrLocked, path)
	}
	return store, err
}

// checkBoltSize returns ErrTruncated if a boltdb file is shorter than one of its meta pages says. A
// meta page that is damaged is for bbolt to find: it uses the other one.
func checkBoltSize(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read
	stat, err := file.Stat()
	if err != nil {
		return err
	}
	pageSize := int64(os.Getpagesize())
	if stat.Size() < 2*pageSize {
		// a new file gets its name when it is complete; bbolt would make an empty one a new one
		return fmt.Errorf("%w: it has %d bytes", ErrTruncated, stat.Size())
	}
	for page := range int64(2) {
		used, ok, err := boltPages(io.NewSectionReader(file, page*pageSize, pageSize))
		if err != nil {
			return err
		}
		if ok && used > uint64(stat.Size()/pageSize) {
			return fmt.Errorf("%w: it has %d bytes, and %d pages of %d", ErrTruncated, stat.Size(),
				used, pageSize)
		}
	}
	return nil
}

// boltPages returns how many pages a meta page says that its file has. ok is false if it is no meta
// page of this machine's byte order and page size, or has a wrong checksum. The format is that of
// bbolt: common.Meta, behind the 16 bytes of a page's header.
func boltPages(page io.ReaderAt) (used uint64, ok bool, err error) {
	const header, magic, checked = 16, 0xED0CDAED, 56
	var meta [header + 64]byte
	if _, err := page.ReadAt(meta[:], 0); err != nil {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return 0, false, err
	}
	field := meta[header:]
	sum := fnv.New64a()
	_, _ = sum.Write(field[:checked]) // a hash never fails
	ok = binary.NativeEndian.Uint32(field) == magic &&
		binary.NativeEndian.Uint32(field[8:]) == uint32(os.Getpagesize()) &&
		binary.NativeEndian.Uint64(field[checked:]) == sum.Sum64()
	return binary.NativeEndian.Uint64(field[40:]), ok, nil
}
