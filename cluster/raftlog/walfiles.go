package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"holdfast/internal/durable"
)

// segmentSize is how many bytes of disk space a WAL takes at once. Smaller segments would be more of them, and so more memory: see appendLimit.
const segmentSize = 64 << 20

// appendLimit bounds what is appended to a WAL at once, in bytes, unless an entry alone is larger. raft-wal v0.4.2 keeps a buffer of up to twice the largest
// append for each segment, for as long as the segment exists. Without the bound a member that caught up with values of 4 MiB took 1.4 GiB.
const appendLimit = 1 << 20

// segmentSuffix is that of the names of a WAL's segments. unlisted is appended to those that the metadata does not list.
const (
	segmentSuffix = ".wal"
	unlisted      = ".unlisted"
)

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
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, io.EOF) { // compaction deletes segments meanwhile; raft-wal reports a file that is too short
			return fmt.Errorf("trim %s: %w", segment.FileName(info), err)
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
	var header, commit [frameHeaderSize]byte
	if _, err := file.ReadAt(header[:], int64(info.IndexStart)-frameHeaderSize); err != nil {
		return err
	}
	size := int64(binary.LittleEndian.Uint32(header[4:]))
	end := int64(info.IndexStart) + (size+frameHeaderSize-1)/frameHeaderSize*frameHeaderSize
	if _, err := file.ReadAt(commit[:], end); err != nil {
		return err
	}
	const indexEntrySize = 4
	needed := int64(info.MaxIndex-info.BaseIndex+1) * indexEntrySize
	isIndex := bytes.Equal(header[:4], []byte{segment.FrameIndex, 0, 0, 0}) && size >= needed
	if !isIndex || !bytes.Equal(commit[:4], []byte{segment.FrameCommit, 0, 0, 0}) {
		return nil // the segment or the metadata is damaged: nothing is removed
	}
	stat, err := file.Stat()
	if err != nil || stat.Size() <= end+frameHeaderSize {
		return err
	}
	return file.Truncate(end + frameHeaderSize)
}

// filesWith returns the paths of the files in a folder whose names end with a suffix.
func filesWith(suffix, folder string) (paths []string, err error) {
	entries, err := os.ReadDir(folder)
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == suffix {
			paths = append(paths, filepath.Join(folder, entry.Name()))
		}
	}
	return paths, err
}

// syncFiles syncs the segments and the metadata of a WAL that is about to be opened. A process that was killed between a write and its sync leaves entries
// that raft-wal finds, and that are not on the disk. Raft counts an entry that it finds as stored.
func syncFiles(path string) error {
	segments, err := filesWith(segmentSuffix, path)
	if err != nil {
		return err
	}
	for _, name := range append(segments, filepath.Join(path, metadb.FileName)) {
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) { // the metadata of a new WAL
			continue
		}
		if err != nil {
			return err
		}
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return fmt.Errorf("sync the log: %w", err)
		}
	}
	return durable.SyncDir(path)
}

// keepUnlisted renames the segments that the metadata does not list. raft-wal would delete them when it opens. Most are left over from a crash, but damaged
// metadata may not list acknowledged entries: then they are there for a repair.
func keepUnlisted(path string, meta *metadb.BoltMetaDB) error {
	state, err := meta.Load(path)
	if err != nil {
		return fmt.Errorf("look for unlisted segments: %w", err)
	}
	listed := make(map[string]bool)
	for _, info := range state.Segments {
		listed[segment.FileName(info)] = true
	}
	segments, err := filesWith(segmentSuffix, path)
	for _, name := range segments {
		if !listed[filepath.Base(name)] {
			err = errors.Join(err, os.Rename(name, name+unlisted))
		}
	}
	return err
}

// removeUnlisted removes the segments that keepUnlisted renamed. It is called when the end mark has shown that the log has its end.
func removeUnlisted(path string) error {
	segments, err := filesWith(unlisted, path)
	for _, name := range segments {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}
