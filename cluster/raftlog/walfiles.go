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
	"github.com/hashicorp/raft-wal/types"

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
		err := trimSegment(filepath.Join(path, segment.FileName(info)), info)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // compaction deletes segments meanwhile
			return fmt.Errorf("trim segments: %w", err)
		}
	}
	return nil
}

// trimSegment cuts off what follows the index of a sealed segment and the commit behind it.
func trimSegment(file string, info types.SegmentInfo) error {
	opened, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = trimOpened(opened, info)
	return errors.Join(err, opened.Close())
}

func trimOpened(file *os.File, info types.SegmentInfo) error {
	var header [frameHeaderSize]byte
	if _, err := file.ReadAt(header[:], int64(info.IndexStart)-frameHeaderSize); err != nil {
		return err
	}
	const indexEntrySize = 4
	needed := int64(info.MaxIndex-info.BaseIndex+1) * indexEntrySize // also if the header is damaged
	index := max(int64(binary.LittleEndian.Uint32(header[4:])), needed)
	used := int64(info.IndexStart) + (index+frameHeaderSize-1)/frameHeaderSize*frameHeaderSize + frameHeaderSize
	stat, err := file.Stat()
	if err != nil || stat.Size() <= used {
		return err
	}
	return file.Truncate(used)
}

// syncFiles syncs the segments and the metadata of a WAL that is about to be opened. A process that was killed between a write and its sync leaves entries
// that raft-wal finds, and that are not on the disk. Raft counts an entry that it finds as stored.
func syncFiles(path string) error {
	segments, err := filepath.Glob(filepath.Join(path, "*.wal"))
	if err != nil {
		return err
	}
	for _, name := range append(segments, filepath.Join(path, metadb.FileName)) {
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return fmt.Errorf("sync the log: %w", err)
		}
	}
	return durable.SyncDir(path)
}
