package wal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// segment is a file of the log.
type segment struct {
	file   File
	number uint64
	chain  *chain
	end    int64 // where the next frame begins
}

const (
	segmentSuffix = ".wal"
	// temporaryName is the name of a segment that is being created. A crash may leave it.
	temporaryName = "segment.new"
)

func segmentName(number uint64) string { return fmt.Sprintf("%012d%s", number, segmentSuffix) }

// createSegment creates a segment of size bytes. When it returns, the segment survives a crash.
func createSegment(folder Folder, h header, size int64) (*segment, error) {
	file, err := folder.Create(temporaryName)
	if err != nil {
		return nil, err
	}
	err = reserve(file, size, 0)
	if err == nil {
		_, err = file.WriteAt(h.encode(), 0)
	}
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = folder.Rename(temporaryName, segmentName(h.number))
	}
	if err == nil {
		err = folder.Sync()
	}
	if err != nil { // what it has of a disk that is full must be free again
		_ = folder.Remove(temporaryName)
		return nil, errors.Join(err, file.Close())
	}
	return &segment{file: file, number: h.number, chain: newChain(&h), end: headerSize}, nil
}

// openSegment opens a segment, and returns its header.
func openSegment(folder Folder, number uint64) (*segment, header, error) {
	file, err := folder.Open(segmentName(number))
	if err != nil {
		return nil, header{}, err
	}
	encoded := make([]byte, headerSize)
	_, err = file.ReadAt(encoded, 0)
	var h header
	switch {
	case errors.Is(err, io.EOF):
		err = errHeader
	case err == nil:
		h, err = decodeHeader(encoded)
	}
	if err == nil && h.number != number {
		err = fmt.Errorf("%w: it is that of segment %d", errHeader, h.number)
	}
	if err != nil {
		return nil, header{}, errors.Join(err, file.Close())
	}
	return &segment{file: file, number: number, chain: newChain(&h), end: headerSize}, h, nil
}

// read calls a function for the payload of each frame, with the payload's offset in the file. It
// ends before the first frame without a right MAC.
func (s *segment) read(frame func(p raw, offset int64) error) error {
	size, err := s.file.Size()
	if err != nil {
		return err
	}
	const buffered = 256 << 10
	in := bufio.NewReaderSize(io.NewSectionReader(s.file, s.end, size-s.end), buffered)
	var p raw
	for {
		var head [frameHeaderSize]byte
		if size-s.end < frameHeaderSize {
			return nil
		}
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		length := int64(binary.LittleEndian.Uint32(head[:]))
		if length == 0 || length > maxPayload || length > size-s.end-frameHeaderSize {
			return nil
		}
		if int64(cap(p)) < length {
			p = make(raw, length)
		}
		p = p[:length]
		if _, err := io.ReadFull(in, p); err != nil {
			return err
		}
		want, err := s.chain.next(p)
		if err != nil {
			return err
		}
		if want != mac(head[4:]) {
			return nil
		}
		if err := frame(p, s.end+frameHeaderSize); err != nil {
			return err
		}
		s.chain.last, s.end = want, s.end+frameHeaderSize+length
	}
}

// append writes a frame at the end, and returns the offset of its payload. It does not sync.
func (s *segment) append(p payload, buffer *bufio.Writer) (offset int64, err error) {
	size := p.size()
	sum, err := s.chain.next(p)
	if err != nil {
		return 0, err
	}
	buffer.Reset(io.NewOffsetWriter(s.file, s.end))
	head := append(binary.LittleEndian.AppendUint32(nil, uint32(size)), sum[:]...)
	if _, err = buffer.Write(head); err == nil {
		err = p.writeTo(buffer)
	}
	if err == nil {
		err = buffer.Flush()
	}
	if err != nil {
		return 0, err
	}
	offset = s.end + frameHeaderSize
	s.chain.last, s.end = sum, offset+int64(size)
	return offset, nil
}

// erase removes what follows the end, and allocates size bytes anew.
func (s *segment) erase(size int64) error {
	if err := s.file.Truncate(s.end); err != nil {
		return err
	}
	if err := reserve(s.file, size, s.end); err != nil {
		return err
	}
	return s.file.Sync()
}

// reserve allocates the space of a segment. A disk that has no room for a whole segment may have
// some for what is to be written, for example for the deletion that frees a segment: then the file
// grows as it is written. used is the size of the file before; a failed allocation may have taken
// blocks.
func reserve(file File, size, used int64) error {
	if file.Allocate(size) == nil {
		return nil
	}
	return file.Truncate(used)
}
