package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// frameHeaderSize is the size in bytes of a frame's header. Frames begin at multiples of it. A frame in a segment is an entry, a commit, or the index that
// seals the segment. IndexStart is the offset of the first byte after the header of the index.
const frameHeaderSize = 8

// mendWAL makes a WAL writable again that raft-wal v0.4.2 opens, and then refuses to append to (types.ErrSealed). The newest segment of such a WAL has an
// index, so it is sealed, but the metadata does not say so. There are two causes. Each needs a crash at the end of a segment:
//
//   - The segment was sealed, and the crash came before the metadata was written. mendWAL writes the metadata, as raft-wal would have.
//   - The write that was to seal the segment was torn, so raft-wal ignores its entries, but not its index. Or a
//     truncation of the end wrote an index and a commit alone (ForceSeal), and the crash came before the metadata was written. mendWAL erases the
//     index.
//
// It is called before wal.Open. meta is not open yet, or open at the path.
func mendWAL(path string, meta *metadb.BoltMetaDB) error {
	if err := mendNewestSegment(path, meta); err != nil {
		return fmt.Errorf("mend the end of the log: %w", err)
	}
	return nil
}

func mendNewestSegment(path string, meta *metadb.BoltMetaDB) error {
	state, err := meta.Load(path)
	if err != nil || len(state.Segments) == 0 {
		return err
	}
	newest := &state.Segments[len(state.Segments)-1]
	if !newest.SealTime.IsZero() {
		return nil
	}
	last, indexStart, err := endOfSegment(path, *newest, 0)
	if errors.Is(err, fs.ErrNotExist) { // raft-wal creates it
		return nil
	}
	if err != nil || indexStart == 0 {
		return err
	}
	before, _, err := endOfSegment(path, *newest, indexStart)
	if err != nil {
		return err
	}
	if last == before { // raft-wal finds no entry that was written with the index
		return eraseIndex(filepath.Join(path, segment.FileName(*newest)), indexStart)
	}
	newest.SealTime, newest.MaxIndex, newest.IndexStart = time.Now(), last, indexStart
	next := types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: last + 1, MinIndex: last + 1, SizeLimit: newest.SizeLimit, Codec: newest.Codec, CreateTime: time.Now(),
	}
	state.NextSegmentID++
	state.Segments = append(state.Segments, next)
	return meta.CommitState(state)
}

// endOfSegment returns the log index of the last entry that raft-wal finds in an unsealed segment. indexStart is the offset of the segment's index, 0 if it
// has none. If ignoredIndex is not 0, endOfSegment ignores the index at that offset and what was written with it.
func endOfSegment(path string, info types.SegmentInfo, ignoredIndex uint64) (last, indexStart uint64, err error) {
	tail, err := segment.NewFiler(path, maskedFiles{walfs.New(), ignoredIndex}).RecoverTail(info)
	if err != nil {
		return 0, 0, err
	}
	_, indexStart, err = tail.Sealed()
	return tail.LastIndex(), indexStart, errors.Join(err, tail.Close())
}

// eraseIndex erases the header of an index. After that raft-wal ignores what follows the header.
func eraseIndex(path string, indexStart uint64) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(make([]byte, frameHeaderSize), int64(indexStart)-frameHeaderSize)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// maskedFiles is a file system in whose files the header of the index at indexStart reads as zeros. If indexStart is 0, nothing is masked.
type maskedFiles struct {
	types.VFS
	indexStart uint64
}

// OpenWriter implements types.VFS.
func (f maskedFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	file, err := f.VFS.OpenWriter(dir, name)
	if err != nil || f.indexStart == 0 {
		return file, err
	}
	return maskedFile{file, int64(f.indexStart) - frameHeaderSize}, nil
}

type maskedFile struct {
	types.WritableFile
	header int64 // offset of the masked header
}

// ReadAt implements io.ReaderAt.
func (f maskedFile) ReadAt(p []byte, offset int64) (int, error) {
	n, err := f.WritableFile.ReadAt(p, offset)
	for i := max(f.header-offset, 0); i < min(f.header+frameHeaderSize-offset, int64(n)); i++ {
		p[i] = 0
	}
	return n, err
}
