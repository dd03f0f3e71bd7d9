// Package audit writes down who changed which key, and by which rule of the policy that was allowed, as JSON lines.
//
// Every member writes what it applies, in the order of the log, and each line has the place in the log: the files of the members say the
// same, and can be put together. What a member got by a snapshot only is not in its file.
package audit

import (
	"encoding/base64"
	"encoding/json"
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
}

// Record is one line.
type Record struct {
	// Index is that of the log entry, Position that of the command in it. Together they order all records, on every member.
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

// maxQueue bounds the records that wait to be written. When it is full, the state machine waits: an audit log with holes is worth little.
const maxQueue = 1 << 16

// Log is an audit log. It is safe for concurrent use.
type Log struct {
	config Config
	files  *files
	last   place // that was written, in this run or an earlier one
	queue  chan Record
	done   sync.WaitGroup
	closed sync.Once
}

// place orders records.
type place struct {
	index    uint64
	position int
}

func (p place) before(index uint64, position int) bool {
	return p.index < index || p.index == index && p.position < position
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
		if !l.last.before(outcome.Index, i) { // the log is applied again after a restart
			continue
		}
		if record, ok := recordOf(&outcome.Commands[i], &outcome.Results[i]); ok {
			record.Index, record.Position, record.Member, record.Time = outcome.Index, i, l.config.Member, l.config.Wall()
			l.queue <- record
		}
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

// write writes records until the queue is closed. What comes together is flushed together.
func (l *Log) write() {
	failing := false
	for record := range l.queue {
		err := l.files.append(&record)
		if err == nil && len(l.queue) == 0 {
			err = l.files.flush()
		}
		if err != nil {
			l.config.Lost(1)
		}
		if (err != nil) != failing {
			failing = err != nil
			l.config.Log.Error("the audit log", "file", l.config.File, "lines_are_lost", failing, "error", err)
		}
	}
	if err := l.files.flush(); err != nil {
		l.config.Log.Error("the audit log", "file", l.config.File, "lines_are_lost", true, "error", err)
	}
}

// encode returns the line of a record.
func encode(record *Record) ([]byte, error) {
	line, err := json.Marshal(record)
	return append(line, '\n'), err
}
