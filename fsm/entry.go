package fsm

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/encoding/protowire"
)

// Entry is the content of one raft log entry: a batch of commands with the leader's clocks. See
// entry.proto.
type Entry struct {
	Term   uint64 // raft term of the leader's LeaderStart; 0 in the entry of a LeaderStart
	Number uint64 // 1, 2, 3 … since the LeaderStart
	// milliseconds of the leader's monotonic clock since it applied its LeaderStart
	Elapsed int64
	Wall    int64 // milliseconds since the Unix epoch: the cluster clock
	// delivery watermark: no reply or notification up to this index is outstanding
	Published  uint64
	StorageLow bool // the leader, or a member that answered its last poll, is short of disk space
	// HorizonAge is how long before this entry, in milliseconds of cluster time, the horizon was:
	// the moment after which the broker received all that it has not seen acknowledged. At least 1;
	// 0 says nothing new.
	HorizonAge int64
	Commands   []Command
}

// checksumNumber is the number of the field that ends every entry: the checksum, a fixed32.
// checksumSize is the size of that field with its tag.
const checksumNumber protowire.Number = 15

const checksumSize = 5

// AppendEntry appends the encoded entry to dst.
func AppendEntry(dst []byte, entry *Entry) []byte {
	start := len(dst)
	dst = appendUint(dst, 1, entry.Term)
	dst = appendUint(dst, 2, entry.Number)
	dst = appendUint(dst, 3, uint64(entry.Elapsed))
	dst = appendUint(dst, 4, uint64(entry.Wall))
	dst = appendUint(dst, 5, entry.Published)
	dst = appendBool(dst, 6, entry.StorageLow)
	for i := range entry.Commands {
		command := &entry.Commands[i]
		dst = appendMessage(dst, 7, func(b []byte) []byte { return appendCommand(b, command) })
	}
	dst = appendUint(dst, 8, uint64(entry.HorizonAge))
	sum := crc32.Checksum(dst[start:], castagnoli())
	return appendChecksum(dst, sum)
}

// appendChecksum appends the checksum field. sum is the CRC-32C of the entry's bytes so far.
func appendChecksum(dst []byte, sum uint32) []byte {
	return protowire.AppendFixed32(protowire.AppendTag(dst, checksumNumber, protowire.Fixed32Type),
		sum)
}

// VerifyEntry checks the checksum of an encoded entry. The error is ErrDamaged.
func VerifyEntry(data []byte) error {
	body := len(data) - checksumSize
	if body < 0 {
		return fmt.Errorf("%w: log entry of %d bytes", ErrDamaged, len(data))
	}
	number, kind, n := protowire.ConsumeTag(data[body:])
	if n != 1 || number != checksumNumber || kind != protowire.Fixed32Type ||
		binary.LittleEndian.Uint32(data[body+1:]) != crc32.Checksum(data[:body], castagnoli()) {
		return fmt.Errorf("%w: log entry with a wrong checksum", ErrDamaged)
	}
	return nil
}

// DecodeEntry checks and decodes an entry. Byte slices of its commands are slices of data. The
// error is ErrDamaged or ErrUnknown.
func DecodeEntry(data []byte) (*Entry, error) {
	if err := VerifyEntry(data); err != nil {
		return nil, err
	}
	entry := &Entry{}
	r := reader{rest: data[:len(data)-checksumSize], names: names{}}
	if count := countCommands(r); count > 0 {
		entry.Commands = make([]Command, 0, count)
	}
	for r.next() {
		switch r.field {
		case 1:
			entry.Term = r.uint()
		case 2:
			entry.Number = r.uint()
		case 3:
			entry.Elapsed = r.int()
		case 4:
			entry.Wall = r.int()
		case 5:
			entry.Published = r.uint()
		case 6:
			entry.StorageLow = r.bool()
		case 7:
			entry.Commands = append(entry.Commands, Command{})
			command := &entry.Commands[len(entry.Commands)-1]
			inner := r.enter()
			readCommand(&inner, command)
			r.leave(&inner)
		case 8:
			entry.HorizonAge = r.int()
		default:
			r.unknown("Entry")
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	return entry, nil
}

// countCommands counts the commands of an entry, so that their slice is allocated once. A command
// takes hundreds of bytes decoded and as few as four encoded; the count is bounded, and beyond it
// the slice grows as it is filled.
func countCommands(r reader) int {
	const most = 1024
	count := 0
	for count < most && r.next() {
		n := protowire.ConsumeFieldValue(r.field, r.kind, r.rest)
		if n < 0 {
			return count
		}
		r.rest = r.rest[n:]
		if r.field == 7 {
			count++
		}
	}
	return count
}

// castagnoli returns the table of CRC-32C, which the standard library makes once.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func appendCommand(b []byte, c *Command) []byte {
	b = appendUint(b, 1, uint64(c.Kind))
	if !c.ID.IsZero() {
		b = appendElement(b, 2, c.ID[:])
	}
	b = appendBytes(b, 3, c.Principal.ClientID)
	b = appendBytes(b, 4, c.Principal.Username)
	b = appendAttributes(b, 5, c.Principal.Attributes)
	b = appendUint(b, 6, uint64(c.Dialect))
	b = appendBytes(b, 7, c.Key)
	b = appendBytes(b, 8, c.Value)
	b = appendBytes(b, 9, c.Expected)
	b = appendUint(b, 10, uint64(c.Condition))
	b = appendUint(b, 11, uint64(c.TTL))
	b = appendTimestamp(b, 12, &c.Timestamp)
	b = appendTimestamp(b, 13, &c.Token)
	b = appendUint(b, 14, uint64(c.Lifetime))
	b = appendUint(b, 15, uint64(c.CaseError))
	b = appendUint(b, 16, uint64(c.Error))
	b = appendUint(b, 17, uint64(c.LateError))
	b = appendBool(b, 18, c.Oversize)
	b = appendBool(b, 19, c.Unidentified)
	b = appendUint(b, 20, uint64(c.BrokerTime))
	b = appendBool(b, 21, c.Everyone)
	for i := range c.Rejected {
		b = appendMessage(b, 22,
			func(b []byte) []byte { return appendRejection(b, &c.Rejected[i]) })
	}
	b = appendUint(b, 23, c.NotificationIndex)
	b = appendUint(b, 24, uint64(c.ChangedAt))
	b = appendUint(b, 25, c.Nonce)
	b = appendUint(b, 26, uint64(c.Version))
	if c.Settings != nil {
		b = appendMessage(b, 27, func(b []byte) []byte { return appendSettings(b, c.Settings) })
	}
	b = appendBool(b, 28, c.KeepPolicy)
	if c.Floor != (Floor{}) {
		b = appendMessage(b, 29, func(b []byte) []byte { return appendFloor(b, &c.Floor) })
	}
	b = appendUint(b, 30, c.Offset)
	b = appendTimestamp(b, 31, &c.ExpectedVersion)
	b = appendBool(b, 32, c.Pattern)
	for i := range c.Operations {
		own := c.Operations[i].ownFields()
		b = appendMessage(b, 33, func(b []byte) []byte { return appendCommand(b, &own) })
	}
	return appendUint(b, 34, uint64(c.MaxReply))
}

func readCommand(r *reader, c *Command) {
	for r.next() {
		if r.field <= 13 {
			readCommandSubject(r, c)
			continue
		}
		switch r.field {
		case 14:
			c.Lifetime = r.int()
		case 15:
			c.CaseError = ErrorCode(r.small(uint64(errorCodes)))
		case 16:
			c.Error = ErrorCode(r.small(uint64(errorCodes)))
		case 17:
			c.LateError = ErrorCode(r.small(uint64(errorCodes)))
		case 18:
			c.Oversize = r.bool()
		case 19:
			c.Unidentified = r.bool()
		case 20:
			c.BrokerTime = r.int()
		case 21:
			c.Everyone = r.bool()
		case 22:
			c.Rejected = append(c.Rejected, r.rejection())
		case 23:
			c.NotificationIndex = r.uint()
		case 24:
			c.ChangedAt = r.int()
		case 25:
			c.Nonce = r.uint()
		case 26:
			c.Version = r.version()
		case 27:
			c.Settings = r.settings()
		case 28:
			c.KeepPolicy = r.bool()
		case 29:
			c.Floor = r.floor()
		case 30:
			c.Offset = r.uint()
		case 31:
			c.ExpectedVersion = r.timestamp()
		case 32:
			c.Pattern = r.bool()
		case 33:
			c.Operations = append(c.Operations, r.operation())
		case 34:
			c.MaxReply = r.int()
		default:
			r.unknown("Command")
		}
	}
	if r.err == nil && c.Kind == 0 {
		r.fail(ErrDamaged)
	}
	if r.err == nil && c.Kind == KindConfigure && c.Settings == nil {
		r.fail(ErrDamaged)
	}
	c.inherit()
}

// readCommandSubject reads one of the fields up to 13: who sent the command, and what it is to do.
func readCommandSubject(r *reader, c *Command) {
	switch r.field {
	case 1:
		c.Kind = Kind(r.small(uint64(lastKind) + 1))
	case 2:
		c.ID = r.id()
	case 3:
		c.Principal.ClientID = r.name()
	case 4:
		c.Principal.Username = r.name()
	case 5:
		c.Principal.Attributes = append(c.Principal.Attributes, r.attribute())
	case 6:
		c.Dialect = Dialect(r.small(uint64(SDK) + 1))
	case 7:
		c.Key = r.bytes()
	case 8:
		c.Value = r.bytes()
	case 9:
		c.Expected = r.bytes()
	case 10:
		c.Condition = Condition(r.small(uint64(IfVersion) + 1))
	case 11:
		c.TTL = r.int()
	case 12:
		c.Timestamp = r.timestamp()
	case 13:
		c.Token = r.timestamp()
	default:
		r.fail(ErrDamaged) // field number 0
	}
}

func appendRejection(b []byte, rejection *Rejection) []byte {
	b = appendElement(b, 1, rejection.ID[:])
	b = appendBytes(b, 2, rejection.ClientID)
	b = appendUint(b, 3, uint64(rejection.Lifetime))
	b = appendUint(b, 4, uint64(rejection.Dialect))
	return appendBool(b, 5, rejection.Silent)
}

func (r *reader) rejection() (rejection Rejection) {
	inner := r.enter()
	for inner.next() {
		switch inner.field {
		case 1:
			rejection.ID = inner.id()
		case 2:
			rejection.ClientID = inner.string()
		case 3:
			rejection.Lifetime = inner.int()
		case 4:
			rejection.Dialect = Dialect(inner.small(uint64(SDK) + 1))
		case 5:
			rejection.Silent = inner.bool()
		default:
			inner.unknown("Rejection")
		}
	}
	r.leave(&inner)
	return rejection
}

func appendFloor(b []byte, floor *Floor) []byte {
	b = appendUint(b, 1, uint64(floor.Clock.Wall))
	b = appendUint(b, 2, floor.Clock.Counter)
	b = appendUint(b, 3, uint64(floor.Now))
	return appendUint(b, 4, uint64(floor.Wall))
}

func (r *reader) floor() (floor Floor) {
	inner := r.enter()
	for inner.next() {
		switch inner.field {
		case 1:
			floor.Clock.Wall = inner.int()
		case 2:
			floor.Clock.Counter = inner.uint()
		case 3:
			floor.Now = inner.int()
		case 4:
			floor.Wall = inner.int()
		default:
			inner.unknown("Floor")
		}
	}
	r.leave(&inner)
	return floor
}

// Version is the newest version of the log that this build can apply. It grows with every new kind
// of command or field of the log format, and with every rule that changes an outcome. The members
// tell each other theirs, and a leader proposes nothing that the oldest of them does not know: the
// version in force is what every member can apply.
const Version = 1

// version reads a log version that is in force, or comes into force. One above Version is
// ErrUnknown, because this build does not know its rules: after a downgrade the older build stops,
// as at an unknown kind.
func (r *reader) version() uint32 {
	version := r.uint()
	if version > Version {
		r.fail(fmt.Errorf("%w: version %d of the log is in force, and this build knows %d",
			ErrUnknown, version, Version))
	}
	return uint32(version)
}

// lastKind is the newest kind that this build knows.
const lastKind = KindTxn
