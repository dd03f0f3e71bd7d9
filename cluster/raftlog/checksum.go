package raftlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// The checksum of an entry is in raft.Log.Extensions, a field that raft reserves for middleware and
// replicates. It has one byte for the version, then the CRC-32C of the index, the term, the type
// and the data. All numbers are big-endian. An entry that is read without such a checksum is
// damaged.
const (
	checksumVersion = 1
	checksumLength  = 1 + crc32.Size
)

// castagnoli returns the table of CRC-32C, which the standard library makes once.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func checksum(log *raft.Log) uint32 {
	var header [17]byte
	binary.BigEndian.PutUint64(header[:], log.Index)
	binary.BigEndian.PutUint64(header[8:], log.Term)
	header[16] = byte(log.Type)
	return crc32.Update(crc32.Checksum(header[:], castagnoli()), castagnoli(), log.Data)
}

// addChecksum gives an entry its checksum, if it has none. No other goroutine may have the entry.
func addChecksum(log *raft.Log) {
	if len(log.Extensions) == 0 {
		log.Extensions = binary.BigEndian.AppendUint32([]byte{checksumVersion}, checksum(log))
	}
}

// verifyLog returns an error that wraps fsm.ErrDamaged if an entry has no checksum, or a wrong one:
// that of the raft entry or, for a command, that in its data.
func verifyLog(log *raft.Log) error {
	switch {
	case len(log.Extensions) != checksumLength || log.Extensions[0] != checksumVersion:
		return fmt.Errorf("%w: raft log entry %d has no checksum of version %d", fsm.ErrDamaged,
			log.Index, checksumVersion)
	case binary.BigEndian.Uint32(log.Extensions[1:]) != checksum(log):
		return fmt.Errorf("%w: raft log entry %d has a wrong checksum", fsm.ErrDamaged, log.Index)
	case log.Type != raft.LogCommand:
		return nil
	}
	if err := fsm.VerifyEntry(log.Data); err != nil {
		return fmt.Errorf("raft log at index %d: %w", log.Index, err)
	}
	return nil
}
