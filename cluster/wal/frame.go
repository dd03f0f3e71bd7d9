package wal

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"math"
	"time"

	"github.com/hashicorp/raft"
)

// Sizes of the format, in bytes.
const (
	keySize         = 32
	macSize         = 16
	headerSize      = 8 + 8 + keySize + macSize + 8 + 8 + crc32.Size
	frameHeaderSize = 4 + macSize
	entriesSize     = 1 + 8 // what precedes the entries in a payload
	entryHeaderSize = 8 + 8 + 1 + 2 + 4
	deletionSize    = 1 + 8 + 8
)

// Kinds of payloads.
const (
	kindEntries  = 1
	kindDeletion = 2
)

// magic begins each segment. Its last byte is the version of the format.
const magic = "hfwal\x00\x00\x01"

// header is the header of a segment.
type header struct {
	number   uint64
	key      [keySize]byte
	previous mac
	state    span // of the log when the segment was created
}

type mac [macSize]byte

// span is the first and the last index of a log. Both are 0 if the log is empty.
type span struct{ first, last uint64 }

func (h *header) encode() []byte {
	b := append(make([]byte, 0, headerSize), magic...)
	b = binary.LittleEndian.AppendUint64(b, h.number)
	b = append(b, h.key[:]...)
	b = append(b, h.previous[:]...)
	b = binary.LittleEndian.AppendUint64(b, h.state.first)
	b = binary.LittleEndian.AppendUint64(b, h.state.last)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli()))
}

// castagnoli returns the table of CRC-32C, which the standard library makes once.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

var errHeader = errors.New("the header of a segment is wrong")

func decodeHeader(b []byte) (h header, err error) {
	sum := headerSize - crc32.Size
	if len(b) != headerSize || string(b[:len(magic)]) != magic ||
		binary.LittleEndian.Uint32(b[sum:]) != crc32.Checksum(b[:sum], castagnoli()) {
		return header{}, errHeader
	}
	b = b[len(magic):]
	h.number, b = binary.LittleEndian.Uint64(b), b[8:]
	b = b[copy(h.key[:], b):]
	b = b[copy(h.previous[:], b):]
	h.state = span{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
	return h, nil
}

// chain makes the MACs of the frames of a segment. last is that of the newest frame.
type chain struct {
	hash hash.Hash
	last mac
}

func newChain(h *header) *chain {
	c := &chain{hash: hmac.New(sha256.New, h.key[:])}
	c.hash.Write(h.encode()) // a hash never fails
	c.last = c.sum()
	return c
}

func (c *chain) sum() (m mac) {
	var full [sha256.Size]byte
	copy(m[:], c.hash.Sum(full[:0]))
	return m
}

// next returns the MAC of a frame that follows the newest. The frame does not count as the newest
// before the caller sets last.
func (c *chain) next(p payload) (mac, error) {
	c.hash.Reset()
	c.hash.Write(c.last[:])
	c.hash.Write(binary.LittleEndian.AppendUint32(nil, uint32(p.size())))
	if err := p.writeTo(c.hash); err != nil {
		return mac{}, err
	}
	return c.sum(), nil
}

// payload is what a frame contains.
type payload interface {
	size() int // at most maxPayload
	writeTo(io.Writer) error
}

// maxPayload bounds a payload, in bytes.
const maxPayload = math.MaxInt32

// entries is a payload of consecutive entries.
type entries []*raft.Log

func (e entries) size() int {
	size := entriesSize
	for _, log := range e {
		size += entrySize(log)
	}
	return size
}

func entrySize(log *raft.Log) int { return entryHeaderSize + len(log.Extensions) + len(log.Data) }

func (e entries) writeTo(w io.Writer) error {
	head := binary.LittleEndian.AppendUint64([]byte{kindEntries}, e[0].Index)
	if _, err := w.Write(head); err != nil {
		return err
	}
	var buffer [entryHeaderSize]byte
	for _, log := range e {
		for _, part := range [][]byte{encodeEntry(buffer[:0], log), log.Extensions, log.Data} {
			if _, err := w.Write(part); err != nil {
				return err
			}
		}
	}
	return nil
}

// encodeEntry appends the header of an entry.
func encodeEntry(b []byte, log *raft.Log) []byte {
	at := int64(0)
	if !log.AppendedAt.IsZero() {
		at = log.AppendedAt.UnixNano()
	}
	b = binary.LittleEndian.AppendUint64(b, log.Term)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	b = append(b, byte(log.Type))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(log.Extensions)))
	return binary.LittleEndian.AppendUint32(b, uint32(len(log.Data)))
}

// decodeEntry decodes the entry at the beginning of b, and returns its size. The entry's slices are
// slices of b.
func decodeEntry(b []byte, index uint64) (log raft.Log, size int, err error) {
	if len(b) < entryHeaderSize {
		return raft.Log{}, 0, errEntry
	}
	extensions := int(binary.LittleEndian.Uint16(b[17:]))
	data := int(binary.LittleEndian.Uint32(b[19:]))
	size = entryHeaderSize + extensions + data
	if size > len(b) {
		return raft.Log{}, 0, errEntry
	}
	log = raft.Log{Index: index, Term: binary.LittleEndian.Uint64(b), Type: raft.LogType(b[16])}
	if at := int64(binary.LittleEndian.Uint64(b[8:])); at != 0 {
		log.AppendedAt = time.Unix(0, at)
	}
	rest := b[entryHeaderSize:size]
	if extensions > 0 {
		log.Extensions = rest[:extensions:extensions]
	}
	log.Data = rest[extensions:]
	return log, size, nil
}

var errEntry = errors.New("an entry has a wrong length")

// deletion is a payload that deletes the entries of a span.
type deletion span

func (d deletion) size() int { return deletionSize }

func (d deletion) writeTo(w io.Writer) error {
	b := binary.LittleEndian.AppendUint64([]byte{kindDeletion}, d.first)
	_, err := w.Write(binary.LittleEndian.AppendUint64(b, d.last))
	return err
}

// raw is a payload as it was read from a file.
type raw []byte

func (r raw) size() int { return len(r) }

func (r raw) writeTo(w io.Writer) error {
	_, err := w.Write(r)
	return err
}

// decode calls one of two functions for what the payload says: found for each entry, with its
// offset in the payload and its size; deleted for a deletion. The MAC of the payload is right, so
// an error means that a later release wrote it.
func (r raw) decode(found func(index uint64, offset, size int) error, deleted func(span)) error {
	switch {
	case len(r) > entriesSize && r[0] == kindEntries:
		index := binary.LittleEndian.Uint64(r[1:])
		for offset := entriesSize; offset < len(r); index++ {
			_, size, err := decodeEntry(r[offset:], index)
			if err == nil {
				err = found(index, offset, size)
			}
			if err != nil {
				return err
			}
			offset += size
		}
		return nil
	case len(r) == deletionSize && r[0] == kindDeletion:
		deleted(span{binary.LittleEndian.Uint64(r[1:]), binary.LittleEndian.Uint64(r[9:])})
		return nil
	}
	return fmt.Errorf("unknown frame that begins with %x", bytes.Clone(r[:min(len(r), 1)]))
}
