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

// segmentSize is the size in bytes to which raft-wal allocates a segment. More and smaller segments would need more memory: see appendLimit.
const segmentSize = 64 << 20

// appendLimit bounds one append to a WAL, in bytes. A larger entry is appended alone. raft-wal v0.4.2 keeps a buffer of up to twice the largest
// append for each segment, for as long as the segment exists. Without the bound a member that caught up with values of 4 MiB took 1.4 GiB.
const appendLimit = 1 << 20

const (
	segmentSuffix  = ".wal"      // end of a segment's file name
	unlistedSuffix = ".unlisted" // appended to the file name of a segment that the metadata does not list
)

// trimSealed truncates sealed segments to the size that they use. When the end of the log is deleted, raft-wal seals the newest segment, even if it is
// nearly empty, and does not truncate it. Without trimSealed each such deletion would take segmentSize bytes of the disk until the next compaction.
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
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, io.EOF) { // compaction has deleted it, or it is too short, which raft-wal reports
			return fmt.Errorf("trim %s: %w", segment.FileName(info), err)
		}
	}
	return nil
}

// trimSegment truncates a sealed segment after its index frame and the commit frame that follows. It changes nothing if these are not where the metadata says.
func trimSegment(file string, info types.SegmentInfo) error {
	opened, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = trimFile(opened, info)
	return errors.Join(err, opened.Close())
}

func trimFile(file *os.File, info types.SegmentInfo) error {
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

// filesWith returns the paths of the files in a folder whose names have an extension.
func filesWith(extension, folder string) (paths []string, err error) {
	entries, err := os.ReadDir(folder)
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == extension {
			paths = append(paths, filepath.Join(folder, entry.Name()))
		}
	}
	return paths, err
}

// syncFiles syncs the segments and the metadata of a WAL before it is opened. If the process was killed between a write and its sync, entries may be in the page
// cache only. raft-wal finds them, and raft counts what it finds as stored.
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

// renameUnlisted renames the segments that the metadata does not list, because raft-wal deletes them when it opens, and returns their new names. Most are left
// over from a crash. If the metadata is damaged, they may have acknowledged entries that a repair needs.
func renameUnlisted(path string, meta *metadb.BoltMetaDB) (renamed []string, err error) {
	state, err := meta.Load(path)
	if err != nil {
		return nil, fmt.Errorf("look for unlisted segments: %w", err)
	}
	listed := make(map[string]bool)
	for _, info := range state.Segments {
		listed[segment.FileName(info)] = true
	}
	segments, err := filesWith(segmentSuffix, path)
	for _, name := range segments {
		if !listed[filepath.Base(name)] {
			err = errors.Join(err, os.Rename(name, name+unlistedSuffix))
			renamed = append(renamed, name+unlistedSuffix)
		}
	}
	return renamed, err
}

// removeUnlistedSegments removes the segments that were renamed when the WAL was opened. It is called only if the log has the entry that its end mark names.
// After a start without a mark the segments stay: the new mark is written from the log as it was found, and cannot show that entries are missing.
func (w *walStore) removeUnlistedSegments() (err error) {
	for _, name := range w.unlisted {
		err = errors.Join(err, os.Remove(name))
	}
	w.unlisted = nil
	return err
}
