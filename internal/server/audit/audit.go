// Package audit writes down who changed which key, and by which rule of the policy that was
// allowed, as JSON lines.
//
// Every member writes what it applies, in the order of the log. Each line has its place in the log,
// so the files of several members can be merged. Lines for the same place differ only in Member and
// Time. Changes that a member got in a snapshot are not in its file.
//
// Writes that the policy denied are in a file of their own, FILE.denied: a client that is denied a
// thousand times a second must not rotate the changes away.
package audit

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"
	"unicode/utf8"

	"holdfast/fsm"
)

// Config says where the audit log is, how large it may become, and what to call when a record
// cannot be written.
type Config struct {
	File     string // the file of changes; denials are in FILE.denied
	MaxBytes int64  // the size of a file at which the next one is begun
	Files    int    // the number of earlier files that are kept, as FILE.1 (the latest) to FILE.n
	// Member is the raft id of the member that writes. If the last line of the file has another id,
	// the member lost its data, and writes all that it applies.
	Member string
	// LastTerm and LastIndex are those of the last entry that the member's log has. Records beyond
	// it are of a log that was replaced by older data.
	LastTerm, LastIndex uint64
	Wall                func() time.Time
	Log                 *slog.Logger
	// Lost is called with the number of lines that could not be written. Two goroutines may call it
	// at once.
	Lost func(lines int)
	// Dropped is called with the number of denials that were dropped because the queue was full.
	Dropped func(lines int)
	// Deadline is how long the state machine may wait for room in the queue of changes. After that
	// Exit is called; it must not return. Without a deadline, a node whose disk hangs would keep
	// the leadership and apply nothing.
	Deadline time.Duration
	Exit     func(error)
}

// ErrHangs says that the log could not be written to in time.
var ErrHangs = errors.New("the audit log hangs")

// Record is one line.
type Record struct {
	// Term and Index are those of the log entry. Position is the index of the command in the entry,
	// from 0 on. Operation is the number of the operation in a transaction, from 1 on; it is 0
	// outside of transactions. Together they order all records, on every member.
	Term      uint64    `json:"term"`
	Index     uint64    `json:"index"`
	Position  int       `json:"position"`
	Operation int       `json:"operation,omitempty"`
	Member    string    `json:"member"`
	Time      time.Time `json:"time"` // when this member applied it
	Command   string    `json:"command"`
	ClientID  string    `json:"clientId,omitempty"`
	Username  string    `json:"username,omitempty"`
	Key       string    `json:"key,omitempty"`
	// instead of Key, for a key that is not valid UTF-8
	KeyBase64 string `json:"keyBase64,omitempty"`
	// instead of Key, for a key that is longer than maxName
	KeyHash string `json:"keySha256,omitempty"`
	Outcome string `json:"outcome"` // "done" or "not authorized"
	// the number of the policy rule that allowed the command, from 1 on
	Rule    uint16 `json:"rule,omitempty"`
	Version string `json:"version,omitempty"` // of the value that was written or deleted
}

// maxName is the size in bytes of the longest key, client id or user name that is written. A longer
// one is replaced by its SHA-256, so that no client decides how long a line is.
const maxName = 256

// Log is an audit log. One goroutine calls Applied, and it must not do so once Close is called.
type Log struct {
	config           Config
	changes, denials *journal
}

// place is the position of a record in the log, by which records are ordered. When an operator puts
// older data back, the log repeats indexes and terms.
type place struct {
	term, index         uint64
	position, operation int
}

// endOf returns a place behind all records of a log entry.
func endOf(term, index uint64) place { return place{term, index, math.MaxInt, math.MaxInt} }

func (r *Record) place() place { return place{r.Term, r.Index, r.Position, r.Operation} }

func (p place) before(other place) bool {
	return cmp.Or(cmp.Compare(p.term, other.term), cmp.Compare(p.index, other.index),
		cmp.Compare(p.position, other.position), cmp.Compare(p.operation, other.operation)) < 0
}

// Open opens the log. Records up to the last one in the files are not written again.
func Open(config Config) (*Log, error) {
	changes, err := openJournal(config)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	denied := config
	denied.File += deniedSuffix
	denials, err := openJournal(denied)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("audit log: %w", err), changes.close())
	}
	return &Log{config: config, changes: changes, denials: denials}, nil
}

// deniedSuffix is what the name of the file of denials ends with.
const deniedSuffix = ".denied"

// Close writes the queued records, and closes the files.
func (l *Log) Close() error { return errors.Join(l.changes.close(), l.denials.close()) }

// Applied queues the changes and denied writes of a log entry. It must be called in the order of
// the log. It waits, up to Config.Deadline for each record, while the queue of changes is full.
func (l *Log) Applied(outcome *fsm.EntryOutcome) {
	if outcome.Skipped {
		return
	}
	for i := range outcome.Commands {
		command, result, at := &outcome.Commands[i], &outcome.Results[i],
			place{outcome.Term, outcome.Index, i, 0}
		if command.Kind != fsm.KindTxn {
			l.applied(at, command, result)
			continue
		}
		for j := range command.Operations {
			at.operation = j + 1
			switch {
			case result.Repeat:
			case result.Code == fsm.CodeReplies:
				l.applied(at, &command.Operations[j], &result.Replies[j])
			case int(result.Operation) == j:
				l.applied(at, &command.Operations[j], result)
			}
		}
	}
}

// applied queues the record of a command, or of an operation of a transaction, if it has one that
// was not written before.
func (l *Log) applied(at place, command *fsm.Command, result *fsm.Result) {
	record, ok := recordOf(command, result)
	if !ok {
		return
	}
	journal := l.changes
	if record.Outcome == outcomeDenied {
		journal = l.denials
	}
	if !journal.last.before(at) { // the log is applied again after a restart
		return
	}
	record.Term, record.Index, record.Position, record.Operation = at.term, at.index, at.position,
		at.operation
	record.Member, record.Time = l.config.Member, l.config.Wall()
	if journal == l.denials {
		l.queueDenial(record)
	} else {
		l.queueChange(record)
	}
}

// queueChange queues a change. It waits for room, but not longer than Config.Deadline.
func (l *Log) queueChange(record Record) {
	select {
	case l.changes.queue <- record:
		return
	default:
	}
	timer := time.NewTimer(l.config.Deadline)
	defer timer.Stop()
	select {
	case l.changes.queue <- record:
	case <-timer.C:
		l.config.Exit(fmt.Errorf("%w: nothing was written for %v", ErrHangs, l.config.Deadline))
	}
}

// queueDenial queues a denial, or drops it if the queue is full: denials must not block the state
// machine.
func (l *Log) queueDenial(record Record) {
	select {
	case l.denials.queue <- record:
	default:
		l.config.Dropped(1)
	}
}

// The outcomes that are written.
const (
	outcomeDone   = "done"
	outcomeDenied = "not authorized"
)

// recordOf returns the record of a command that changed something, or was not allowed to.
func recordOf(command *fsm.Command, result *fsm.Result) (record Record, ok bool) {
	switch command.Kind {
	case fsm.KindSet:
		record.Command = "SET"
	case fsm.KindDel:
		record.Command = "DEL"
	case fsm.KindVDel:
		record.Command = "VDEL"
	case fsm.KindRestore:
		record.Command = "RESTORE" // of all keys, by an administrator
	default:
		return record, false
	}
	switch {
	case result.Repeat:
		return record, false
	case result.Code == fsm.CodeOK, result.Code == fsm.CodeDeleted:
		record.Outcome = outcomeDone
	case result.Code == fsm.CodeError && result.Error == fsm.ErrorNotAuthorized:
		record.Outcome = outcomeDenied
	default:
		return record, false
	}
	if command.Kind == fsm.KindRestore {
		return record, true
	}
	record.ClientID, record.Username, record.Rule = bounded(command.Principal.ClientID),
		bounded(command.Principal.Username), result.Rule
	switch {
	case len(command.Key) > maxName:
		sum := sha256.Sum256(command.Key)
		record.KeyHash = hex.EncodeToString(sum[:])
	case utf8.Valid(command.Key):
		record.Key = string(command.Key)
	default:
		record.KeyBase64 = base64.StdEncoding.EncodeToString(command.Key)
	}
	if version, has := result.Version(); has && record.Outcome == outcomeDone {
		record.Version = version.String()
	}
	return record, true
}

// bounded returns a name, or its hash when it is too long.
func bounded(name string) string {
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// encode returns the line of a record.
func encode(record *Record) []byte {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(record) // never fails: a record has only texts, numbers and a time
	return line.Bytes()
}
