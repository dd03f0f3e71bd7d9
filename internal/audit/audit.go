// Package audit writes down who changed which key, and by which rule of the policy that was allowed, as JSON lines.
//
// Every member writes what it applies, in the order of the log, and each line has the place in the log: the files of the members say the
// same, and can be put together. What a member got by a snapshot only is not in its file.
package audit

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"holdfast/fsm"
)

// Config says where and how much.
type Config struct {
	File     string
	MaxBytes int64 // of a file, before the next one is begun
	Files    int   // that are kept beside it, as FILE.1 (the latest) to FILE.n
	// Member is who writes. One that begins anew without its data has another id, and what it applies is no repetition.
	Member string
	Wall   func() time.Time
	Log    *slog.Logger
	// Lost is told how many lines could not be written.
	Lost func(lines int)
	// Deadline is how long the state machine may wait for the log; then Exit is called, which does not return. Without an end to it a
	// node whose disk hangs would lead and do nothing.
	Deadline time.Duration
	Exit     func(error)
}

// ErrHangs says that the log could not be written to in time.
var ErrHangs = errors.New("the audit log hangs")

// Record is one line.
type Record struct {
	// Term and Index are those of the log entry, Position is that of the command in it. Together they order all records, on every member.
	Term     uint64    `json:"term"`
	Index    uint64    `json:"index"`
	Position int       `json:"position"`
	Member   string    `json:"member"`
	Time     time.Time `json:"time"` // when this member applied it
	Command  string    `json:"command"`
	ClientID string    `json:"clientId,omitempty"`
	Username string    `json:"username,omitempty"`
	Key      string    `json:"key,omitempty"`
	KeyBytes string    `json:"keyBase64,omitempty"` // of a key that is no text
	Outcome  string    `json:"outcome"`
	Rule     uint16    `json:"rule,omitempty"`    // of the policy, from 1 on
	Version  string    `json:"version,omitempty"` // of the value that was written or deleted
}

// maxQueue bounds the records that wait to be written, with keys of up to 64 KiB each as a rule. When it is full, the state machine waits: an
// audit log with holes is worth little. What cannot be written at all is another matter: a full disk must not stop the store.
const maxQueue = 4096

// Log is an audit log. It is safe for concurrent use.
type Log struct {
	config Config
	files  *files
	last   place // that was written, in this run or an earlier one
	queue  chan Record
	done   sync.WaitGroup
	closed sync.Once
}

// place orders records. The log after a restore of old data repeats indexes, in a later term.
type place struct {
	term, index uint64
	position    int
}

func (p place) before(other place) bool {
	return cmp.Or(cmp.Compare(p.term, other.term), cmp.Compare(p.index, other.index), cmp.Compare(p.position, other.position)) < 0
}

// Open opens the log, and goes on behind its last line.
func Open(config Config) (*Log, error) {
	opened, last, err := openFiles(config)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	l := &Log{config: config, files: opened, last: last, queue: make(chan Record, maxQueue)}
	l.done.Go(l.write)
	return l, nil
}

// Close writes what waits, and closes the file. Nothing may be added any more.
func (l *Log) Close() error {
	l.closed.Do(func() { close(l.queue) })
	l.done.Wait()
	return l.files.close()
}

// Applied takes the changes of a log entry. It is called for one entry after the other.
func (l *Log) Applied(outcome *fsm.Outcome) {
	if outcome.Skipped {
		return
	}
	for i := range outcome.Commands {
		if !l.last.before(place{outcome.Term, outcome.Index, i}) { // the log is applied again after a restart
			continue
		}
		if record, ok := recordOf(&outcome.Commands[i], &outcome.Results[i]); ok {
			record.Term, record.Index, record.Position, record.Member, record.Time = outcome.Term, outcome.Index, i, l.config.Member, l.config.Wall()
			l.add(record)
		}
	}
}

// add queues a record. It waits for room, up to a point.
func (l *Log) add(record Record) {
	select {
	case l.queue <- record:
		return
	default:
	}
	timer := time.NewTimer(l.config.Deadline)
	defer timer.Stop()
	select {
	case l.queue <- record:
	case <-timer.C:
		l.config.Exit(fmt.Errorf("%w: nothing was written for %v", ErrHangs, l.config.Deadline))
	}
}

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
		record.Outcome = "done"
	case result.Code == fsm.CodeError && result.Error == fsm.ErrorNotAuthorized:
		record.Outcome = "not authorized"
	default:
		return record, false
	}
	if command.Kind == fsm.KindRestore {
		return record, true
	}
	record.ClientID, record.Username, record.Rule = command.Principal.ClientID, command.Principal.Username, result.Rule
	if utf8.Valid(command.Key) {
		record.Key = string(command.Key)
	} else {
		record.KeyBytes = base64.StdEncoding.EncodeToString(command.Key)
	}
	if version, has := result.Version(); has && record.Outcome == "done" {
		record.Version = version.String()
	}
	return record, true
}

// maxBatch is how many bytes are gathered to be written at once, and a quarter of a file at most.
const maxBatch = 256 << 10

// write writes records until the queue is closed.
func (l *Log) write() {
	var batch []byte
	most := min(maxBatch, int(l.config.MaxBytes/4))
	lines, failing := 0, false
	for record := range l.queue {
		batch = append(batch, encode(&record)...)
		lines++
		if len(l.queue) > 0 && len(batch) < most {
			continue
		}
		err := l.files.append(batch)
		if err != nil {
			l.config.Lost(lines)
		}
		if (err != nil) != failing {
			failing = err != nil
			l.config.Log.Error("the audit log", "file", l.config.File, "lines_are_lost", failing, "error", err)
		}
		batch, lines = batch[:0], 0
	}
}

// encode returns the line of a record.
func encode(record *Record) []byte {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(record) // a record of texts and numbers always can be
	return line.Bytes()
}
