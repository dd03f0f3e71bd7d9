// Package wal is a write-ahead log of raft entries in append-only files. It is used so:
//
//	log, err := wal.Open(wal.Config{Folder: wal.Dir("/var/lib/holdfast/wal"), Random: rand.Reader})
//	...
//	err = log.StoreLogs(entries) // when it returns nil, the entries are on the disk
//	err = log.DeleteRange(1, 1000)
//
// # Format
//
// The log is a sequence of segments, files named by a number that grows by one. A segment is a
// header and frames. All numbers are little-endian.
//
//	header: magic (8) | number (8) | key (32) | previous (16) | first (8) | last (8) | CRC-32C (4)
//	frame:  length of the payload (4) | MAC (16) | payload
//	payload of entries:    1 (1) | index of the first (8) | entry...
//	entry:  term (8) | appended at, Unix ns, 0 for none (8) | type (1) |
//	        length of extensions (2) | length of data (4) | extensions | data
//	payload of a deletion: 2 (1) | first index (8) | last index (8)
//
// first and last are the indexes of the log when the segment was created, 0 for an empty log.
// previous is the MAC of the last frame of the segment before. The MAC of a frame is the first 16
// bytes of an HMAC-SHA-256 over the MAC of the frame before (for the first frame: over the header),
// the length and the payload. Its key is in the header. It is random, and new for each segment.
//
// # What a crash leaves
//
// A crash may leave any part of the frames that were not synced, and a write that replaces nothing
// may be found in pieces of any size. The values of clients are a part of these pieces. So a frame
// counts only if its MAC is right. To make a MAC one needs the key, which is on the disk alone.
//
// Open ends the log before the first frame without a right MAC. The first change after Open erases
// what follows the end, before it appends anything. So bytes that were not acknowledged cannot
// become an entry later. Open itself changes no file: if its caller finds that acknowledged entries
// are missing, the files are as they were found.
//
// Open syncs what it has found, because raft counts what it reads as stored. A segment gets its
// name when its header is on the disk, and after everything before it is. So a segment without a
// header, a segment that is missing between others, or a wrong frame in a segment that is not the
// newest is damage, and not the trace of a crash: Open returns ErrDamaged.
//
// # Concurrency
//
// A Log is safe for concurrent use. Changes exclude each other by a channel, changing, which is
// held during writes. mu guards the positions of the entries, and is held while an entry is read,
// but never during a write. changing is taken before mu.
package wal
