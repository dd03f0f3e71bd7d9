package fsm

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tidwall/btree"
)

// A snapshot is
//
//	magic "holdfast"   8 bytes
//	format             4 bytes, little endian: SnapshotFormat
//	zstd stream        frames, each: section (1 byte), length (varint), a protobuf message
//	CRC-32C            4 bytes, little endian, over all that comes before
//
// The sections come in ascending order, and within each the frames in the order of their keys; the
// last frame is the end section with the number of frames before it. Two replicas at one index
// write the same bytes.
const (
	snapshotMagic = "holdfast"
	// SnapshotFormat is the version of the format that is written. Every format that was ever
	// released stays readable.
	SnapshotFormat = 1
	headerSize     = len(snapshotMagic) + 4
	trailerSize    = 4
)

type section byte

const (
	sectionMeta        section = 1
	sectionSettings    section = 2
	sectionValue       section = 3
	sectionWatch       section = 4
	sectionDedup       section = 5
	sectionUnpublished section = 6
	sectionEnd         section = 7
)

// Snapshot is the state at one index. It does not change while the machine goes on, until Release,
// and may be written from another goroutine.
type Snapshot struct {
	state   Machine // without values, watches, dedup table and unpublished events
	values  *btree.BTreeG[*record]
	release func() // releases the captured values
	watches *btree.BTreeG[*watch]
	dedup   captured
	replies *btree.BTreeG[*keptReplies] // of the transactions in the dedup table
	events  []Event                     // unpublished
}

// Snapshot captures the state. It takes a short time: of the dedup table it copies only a few words
// for each expiryGroup. It must not run beside Apply, Restore or another call of Snapshot. The
// caller calls Release when it needs the snapshot no more: until then each SET allocates a new
// record.
func (m *Machine) Snapshot() *Snapshot {
	values, release := m.values.capture()
	return &Snapshot{
		state: Machine{
			index: m.index, leader: m.leader, now: m.now, horizon: m.horizon, wall: m.wall,
			clock: m.clock, published: m.published,
			logVersion: m.logVersion, hash: m.hash, settings: m.settings, configured: m.configured,
			pinned: m.pinned,
			staged: m.staged, scanSecret: m.scanSecret, storeID: m.storeID,
		},
		values:  values,
		release: release,
		watches: m.watches.byKey.Copy(),
		dedup:   m.dedup.capture(),
		replies: m.dedup.replies.byID.Copy(),
		events:  m.Unpublished(),
	}
}

// Release ends the use of the snapshot: it must not be written after that. It is called at most
// once, from any goroutine.
func (s *Snapshot) Release() { s.release() }

// Index returns the index of the last entry in the snapshot.
func (s *Snapshot) Index() uint64 { return s.state.index }

// snapshotWindow is how far back the compressor looks, in bytes. It allocates twice as much for
// each snapshot, however small that is.
const snapshotWindow = 512 << 10

// Write writes the snapshot.
func (s *Snapshot) Write(w io.Writer) error {
	sum := crc32.New(castagnoli())
	buffered := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<16)
	header := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), SnapshotFormat)
	if _, err := buffered.Write(header); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	compressor, err := zstd.NewWriter(buffered, zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(snapshotWindow))
	if err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	frames := frameWriter{w: compressor}
	s.writeFrames(&frames)
	if err := compressor.Close(); frames.err == nil {
		frames.err = err
	}
	if err := buffered.Flush(); frames.err == nil {
		frames.err = err
	}
	if frames.err == nil {
		_, frames.err = w.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	}
	if frames.err != nil {
		return fmt.Errorf("write snapshot: %w", frames.err)
	}
	return nil
}

func (s *Snapshot) writeFrames(frames *frameWriter) {
	frames.write(sectionMeta, func(b []byte) []byte { return appendMeta(b, &s.state) })
	for rest := s.state.staged.data; len(rest) > 0; {
		part := rest[:min(len(rest), stagedFrame)]
		rest = rest[len(part):]
		frames.write(sectionMeta, func(b []byte) []byte { return appendBytes(b, 16, part) })
	}
	frames.write(sectionSettings,
		func(b []byte) []byte { return appendSettings(b, &s.state.settings) })
	s.values.Scan(func(r *record) bool {
		return frames.write(sectionValue, func(b []byte) []byte { return appendRecord(b, r) })
	})
	s.watches.Scan(func(w *watch) bool {
		return frames.write(sectionWatch, func(b []byte) []byte { return appendWatch(b, w) })
	})
	for m := range s.dedup.inOrder() {
		if !frames.write(sectionDedup, func(b []byte) []byte { return s.appendDedupEntry(b, m) }) {
			break
		}
	}
	for i := range s.events {
		frames.write(sectionUnpublished,
			func(b []byte) []byte { return appendEvent(b, &s.events[i]) })
	}
	count := frames.count
	frames.write(sectionEnd, func(b []byte) []byte { return appendUint(b, 1, count) })
}

type frameWriter struct {
	w       io.Writer
	head    []byte
	content []byte
	count   uint64
	err     error
}

// write writes a frame and reports whether to go on.
func (f *frameWriter) write(s section, content func([]byte) []byte) bool {
	if f.err != nil {
		return false
	}
	f.content = content(f.content[:0])
	if len(f.content) > maxFrame { // readContent refuses it
		f.err = fmt.Errorf("a frame of %d bytes", len(f.content))
		return false
	}
	f.head = protowire.AppendVarint(append(f.head[:0], byte(s)), uint64(len(f.content)))
	if _, f.err = f.w.Write(f.head); f.err == nil {
		_, f.err = f.w.Write(f.content)
	}
	f.count++
	return f.err == nil
}

// Restore replaces the state with that of a snapshot. When it fails, with ErrDamaged or ErrUnknown
// or an error of the reader, the state is as it was.
func (m *Machine) Restore(r io.Reader) error {
	restored := New()
	if err := readSnapshot(r, restored.readFrame); err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	*m = *restored
	return nil
}

// Inspect reads a snapshot to its end, as Restore does, and returns a summary of what is in it. It
// reads the snapshot in parts, and keeps one in memory: at most 10,000 frames of together 16 MiB,
// or one larger frame. It also keeps the data of an unfinished restore. Unpublished, NextDeadline,
// HasDeadline and TimeIsPending of the status stay zero. Its errors are those of Restore, but it
// finds keys out of order, and repeated keys, only within a part.
func Inspect(r io.Reader) (Status, error) {
	const (
		maxFrames = 10_000
		maxBytes  = 16 << 20
	)
	head, body, frames, size := New(), New(), 0, 0
	var total Status
	count := func() {
		s := body.Status()
		total.Keys, total.Bytes, total.Watches = total.Keys+s.Keys, total.Bytes+s.Bytes,
			total.Watches+s.Watches
		total.Remembered, total.ReplyBytes = total.Remembered+s.Remembered, total.ReplyBytes+
			s.ReplyBytes
		body, frames, size = New(), 0, 0
	}
	err := readSnapshot(r, func(kind section, content []byte) error {
		if kind <= sectionSettings {
			return head.readFrame(kind, content)
		}
		if frames == maxFrames || size+len(content) > maxBytes {
			count()
		}
		frames, size = frames+1, size+len(content)
		return body.readFrame(kind, content)
	})
	if err != nil {
		return Status{}, fmt.Errorf("inspect snapshot: %w", err)
	}
	count()
	status := head.Status()
	status.Keys, status.Bytes, status.Watches, status.Remembered, status.ReplyBytes = total.Keys,
		total.Bytes, total.Watches, total.Remembered, total.ReplyBytes
	return status, nil
}

// readSnapshot reads a snapshot and calls frame for each of its frames but the end section. The
// content is valid during the call only.
func readSnapshot(r io.Reader, frame func(section, []byte) error) error {
	body := &bodyReader{r: bufio.NewReaderSize(r, 1<<16), sum: crc32.New(castagnoli())}
	header := make([]byte, headerSize)
	if _, err := io.ReadFull(body, header); err != nil {
		return body.explain(err)
	}
	if string(header[:len(snapshotMagic)]) != snapshotMagic {
		return fmt.Errorf("%w: no holdfast snapshot", ErrDamaged)
	}
	if format := binary.LittleEndian.Uint32(header[len(snapshotMagic):]); format != SnapshotFormat {
		return fmt.Errorf("%w: snapshot format %d", ErrUnknown, format)
	}
	decompressor, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxWindow(64<<20))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer decompressor.Close()
	// If the checksum is wrong, the file is damaged, whatever error its content leads to. So the
	// checksum is verified before an error in the content is returned.
	fault := readFrames(bufio.NewReaderSize(decompressor, 1<<16), frame)
	if _, err := io.Copy(io.Discard, body); err != nil {
		return body.explain(err)
	}
	if err := body.verify(); err != nil {
		return err
	}
	return fault
}

// bodyReader reads all but the trailer of a snapshot and computes the checksum.
type bodyReader struct {
	r   *bufio.Reader
	sum hash.Hash32
	err error // error of the source, other than io.EOF
}

func (b *bodyReader) Read(p []byte) (int, error) {
	held, err := b.r.Peek(trailerSize + 1)
	if len(held) <= trailerSize {
		if err != io.EOF {
			b.err = err
		}
		return 0, err
	}
	n := min(len(p), max(b.r.Buffered()-trailerSize, 1))
	n, err = b.r.Read(p[:n])
	b.sum.Write(p[:n])
	return n, err
}

// explain returns the error of the source, if it failed. Otherwise the source ended too early, and
// the error wraps ErrDamaged.
func (b *bodyReader) explain(err error) error {
	if b.err != nil {
		return b.err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

func (b *bodyReader) verify() error {
	trailer := make([]byte, trailerSize)
	if _, err := io.ReadFull(b.r, trailer); err != nil {
		return b.explain(err)
	}
	if binary.LittleEndian.Uint32(trailer) != b.sum.Sum32() {
		return fmt.Errorf("%w: snapshot with a wrong checksum", ErrDamaged)
	}
	return nil
}

func readFrames(r *bufio.Reader, frame func(section, []byte) error) error {
	var content []byte
	last := section(0)
	for count := uint64(0); ; count++ {
		kind, err := r.ReadByte()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if section(kind) < last {
			return fmt.Errorf("%w: sections out of order", ErrDamaged)
		}
		last = section(kind)
		if content, err = readContent(r, content); err != nil {
			return err
		}
		if last == sectionEnd {
			return checkEnd(content, count)
		}
		if err := frame(last, content); err != nil {
			return err
		}
	}
}

// maxFrame, in bytes, is more than any frame needs: the largest hold a key, a value and the client
// ids of its watchers.
const maxFrame = 1 << 30

// readContent reads a length and as many bytes. It allocates memory in steps, as bytes arrive, and
// not at once for the claimed length.
func readContent(r *bufio.Reader, content []byte) ([]byte, error) {
	const step = 1 << 20
	size, err := binary.ReadUvarint(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if size > maxFrame {
		return nil, fmt.Errorf("%w: frame of %d bytes", ErrDamaged, size)
	}
	content = content[:0]
	for left := int(size); left > 0; {
		n := min(left, step)
		start := len(content)
		content = append(content, make([]byte, n)...)
		if _, err := io.ReadFull(r, content[start:]); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		left -= n
	}
	return content, nil
}

func checkEnd(content []byte, count uint64) error {
	r := reader{rest: content}
	var written uint64
	for r.next() {
		if r.field != 1 {
			r.unknown("End")
			break
		}
		written = r.uint()
	}
	if r.err == nil && written != count {
		r.fail(fmt.Errorf("%w: %d frames of %d", ErrDamaged, count, written))
	}
	return r.err
}
