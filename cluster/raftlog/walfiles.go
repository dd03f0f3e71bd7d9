package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"

	"holdfast/internal/durable"
)

// segmentSize is how many bytes of disk space a WAL takes at once. One that exists keeps the sizes of its segments.
const segmentSize = 16 << 20

// trimSealed frees the space that sealed segments do not use. raft-wal seals the newest segment when the end of the log is deleted, however little it
// holds, and never frees the rest: each change of the leader could take segmentSize bytes until the next compaction.
func trimSealed(path string, meta *metadb.BoltMetaDB) error {
	state, err := meta.Load(path)
	if err != nil {
		return fmt.Errorf("trim segments: %w", err)
	}
	for _, info := range state.Segments {
		if info.SealTime.IsZero() {
			continue
		}
		err := trimSegment(filepath.Join(path, segment.FileName(info)), int64(info.IndexStart))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // compaction deletes segments meanwhile
			return fmt.Errorf("trim segments: %w", err)
		}
	}
	return nil
}

// trimSegment cuts off what follows the index of a sealed segment and the commit behind it.
func trimSegment(file string, indexStart int64) error {
	opened, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = trimOpened(opened, indexStart)
	return errors.Join(err, opened.Close())
}

func trimOpened(file *os.File, indexStart int64) error {
	var header [frameHeaderSize]byte
	if _, err := file.ReadAt(header[:], indexStart-frameHeaderSize); err != nil {
		return err
	}
	if header[0] != segment.FrameIndex {
		return nil // damaged: the checksums of its entries tell
	}
	index := int64(binary.LittleEndian.Uint32(header[4:]))
	used := indexStart + (index+frameHeaderSize-1)/frameHeaderSize*frameHeaderSize + frameHeaderSize
	info, err := file.Stat()
	if err != nil || info.Size() <= used {
		return err
	}
	return file.Truncate(used)
}

// syncFiles syncs the segments of a WAL that is about to be opened. A process that was killed between a write and its sync leaves entries that raft-wal
// finds, and that are not on the disk. Raft counts an entry that it finds as stored.
func syncFiles(path string) error {
	names, err := filepath.Glob(filepath.Join(path, "*.wal"))
	if err != nil {
		return err
	}
	for _, name := range names {
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return fmt.Errorf("sync segments: %w", err)
		}
	}
	return durable.SyncDir(path)
}
