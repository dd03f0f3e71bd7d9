package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/fsm"
	"holdfast/internal/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config(t *testing.T) Config {
	t.Helper()
	return Config{
		File: filepath.Join(t.TempDir(), "log", "audit.jsonl"), MaxBytes: 64 << 10, Files: 2,
		Member: "n1.1", LastTerm: math.MaxUint64,
		Wall: func() time.Time { return time.UnixMilli(1_000).UTC() },
		Log:  slog.New(slog.DiscardHandler), Lost: func(int) { t.Error("a line is lost") },
		Dropped:  func(int) { t.Error("a denial is dropped") },
		Deadline: time.Minute, Exit: func(err error) { t.Error(err) },
	}
}

func open(t *testing.T, c Config) *Log {
	t.Helper()
	l, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func closeLog(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func records(t *testing.T, name string) (all []Record) {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		all = append(all, r)
	}
	return all
}

func set(key string) fsm.Command {
	return fsm.Command{
		Kind: fsm.KindSet, Key: []byte(key), Value: []byte("v"),
		Principal: policy.Principal{ClientID: "press", Username: "u"},
	}
}

func outcome(index uint64, result fsm.Result, commands ...fsm.Command) *fsm.EntryOutcome {
	o := &fsm.EntryOutcome{Term: 1, Index: index, Commands: commands}
	for range commands {
		o.Results = append(o.Results, result)
	}
	return o
}

// Changes and denied writes are recorded. Reads, repeated requests, writes without an effect and
// skipped entries are not.
func TestOnlyEffectiveAndDeniedWritesAreRecorded(t *testing.T) {
	c := config(t)
	l := open(t, c)
	done, denied := fsm.Result{Code: fsm.CodeOK, Rule: 3},
		fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorNotAuthorized}
	l.Applied(outcome(1, done, set("k"), set("\xff")))
	l.Applied(outcome(2, fsm.Result{Code: fsm.CodeOK, Repeat: true}, set("repeated")))
	l.Applied(outcome(3, fsm.Result{Code: fsm.CodeNotApplied}, set("condition")))
	l.Applied(outcome(4, denied,
		fsm.Command{
			Kind: fsm.KindVDel, Key: []byte("k"),
			Principal: policy.Principal{ClientID: "robot"},
		}))
	l.Applied(outcome(5, done, fsm.Command{Kind: fsm.KindGet, Key: []byte("k")},
		fsm.Command{Kind: fsm.KindKeyNotify, Key: []byte("k")}))
	l.Applied(outcome(6, fsm.Result{Code: fsm.CodeDeleted},
		fsm.Command{
			Kind: fsm.KindDel, Key: []byte("k"),
			Principal: policy.Principal{ClientID: "press"},
		}))
	l.Applied(outcome(7, done, fsm.Command{Kind: fsm.KindRestore, Key: []byte("nonce")}))
	skipped := outcome(8, done, set("skipped"))
	skipped.Skipped = true
	l.Applied(skipped)
	closeLog(t, l)
	at := time.UnixMilli(1_000).UTC()
	want := []Record{
		{
			Term: 1, Index: 1, Member: "n1.1", Time: at, Command: "SET", ClientID: "press",
			Username: "u", Key: "k", Outcome: "done", Rule: 3,
		},
		{
			Term: 1, Index: 1, Position: 1, Member: "n1.1", Time: at, Command: "SET",
			ClientID: "press", Username: "u", KeyBase64: "/w==", Outcome: "done", Rule: 3,
		},
		{
			Term: 1, Index: 6, Member: "n1.1", Time: at, Command: "DEL", ClientID: "press",
			Key:     "k",
			Outcome: "done",
		},
		{Term: 1, Index: 7, Member: "n1.1", Time: at, Command: "RESTORE", Outcome: "done"},
	}
	if found := records(t, c.File); !slices.Equal(found, want) {
		t.Errorf("%+v", found)
	}
	denials := []Record{{
		Term: 1, Index: 4, Member: "n1.1", Time: at, Command: "VDEL",
		ClientID: "robot", Key: "k", Outcome: "not authorized",
	}}
	if found := records(t, c.File+".denied"); !slices.Equal(found, denials) {
		t.Errorf("%+v", found)
	}
}

// Each change of a transaction is recorded with the number of its operation. Of a denied
// transaction, only the denied operation is recorded. After a crash between two lines, the missing
// lines are written when the Raft log is applied again.
func TestOperationsOfATransactionAreRecorded(t *testing.T) {
	c := config(t)
	l := open(t, c)
	done := fsm.Result{
		Code: fsm.CodeReplies,
		Replies: []fsm.Result{
			{Code: fsm.CodeOK, Rule: 2},
			{Code: fsm.CodeValue},
			{Code: fsm.CodeMissing},
			{Code: fsm.CodeOK, Rule: 1},
		},
	}
	transaction := func(keys ...string) (txn fsm.Command) {
		txn.Kind = fsm.KindTxn
		for _, key := range keys {
			txn.Operations = append(txn.Operations, set(key))
		}
		txn.Operations[1].Kind = fsm.KindGet
		return txn
	}
	l.Applied(outcome(1, done, transaction("a", "b", "c", "d")))
	l.Applied(outcome(2, fsm.Result{
		Code: fsm.CodeError, Error: fsm.ErrorNotAuthorized,
		Operation: 2,
	}, transaction("a", "b", "c", "d")))
	l.Applied(outcome(3, fsm.Result{Code: fsm.CodeNotApplied, Operation: 3},
		transaction("a", "b", "c", "d")))
	repeated := done
	repeated.Repeat = true
	l.Applied(outcome(4, repeated, transaction("a", "b", "c", "d")))
	closeLog(t, l)
	check := func() {
		t.Helper()
		at := time.UnixMilli(1_000).UTC()
		want := []Record{
			{
				Term: 1, Index: 1, Operation: 1, Member: "n1.1", Time: at, Command: "SET",
				ClientID: "press", Username: "u", Key: "a", Outcome: "done", Rule: 2,
			},
			{
				Term: 1, Index: 1, Operation: 4, Member: "n1.1", Time: at, Command: "SET",
				ClientID: "press", Username: "u", Key: "d", Outcome: "done", Rule: 1,
			},
		}
		if found := records(t, c.File); !slices.Equal(found, want) {
			t.Errorf("%+v", found)
		}
	}
	check()
	denials := records(t, c.File+".denied")
	if len(denials) != 1 || denials[0].Index != 2 || denials[0].Operation != 3 ||
		denials[0].Key != "c" {
		t.Errorf("%+v", denials)
	}
	lines, err := os.ReadFile(c.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.File, lines[:bytes.IndexByte(lines, '\n')+1], 0o600); err != nil {
		t.Fatal(err)
	}
	l = open(t, c)
	l.Applied(outcome(1, done, transaction("a", "b", "c", "d")))
	closeLog(t, l)
	check()
}

// Denials never rotate a change out of the files, however many they are and however long their
// keys.
func TestDenialsPushNoChangeOut(t *testing.T) {
	c := config(t)
	c.MaxBytes, c.Files = 4000, 1
	c.Dropped = func(int) {} // how many are dropped depends on the disk
	l := open(t, c)
	l.Applied(outcome(1, fsm.Result{Code: fsm.CodeOK}, set("precious")))
	long := set(strings.Repeat("\x01", 64<<10))
	long.Principal = policy.Principal{
		ClientID: strings.Repeat("c", 60<<10),
		Username: strings.Repeat("u", 60<<10),
	}
	denied := fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorNotAuthorized}
	const many = 3 * maxQueue
	for index := range uint64(many) {
		l.Applied(outcome(index+2, denied, long))
	}
	closeLog(t, l)
	if found := records(t, c.File); len(found) != 1 || found[0].Key != "precious" {
		t.Errorf("%d changes are left", len(found))
	}
	found := records(t, c.File+".denied")
	if len(found) == 0 || found[0].Key != "" || len(found[0].KeyHash) != 64 ||
		!strings.HasPrefix(found[0].ClientID, "sha256:") ||
		!strings.HasPrefix(found[0].Username, "sha256:") {
		t.Errorf("%d denials, the first %+v", len(found), found[:min(1, len(found))])
	}
	if line := encode(&found[0]); len(line) > 1000 {
		t.Errorf("a line of %d bytes", len(line))
	}
}

// After a restart the Raft log is applied again from the last snapshot on. Records that are in the
// file are not written again, also if its last line is unfinished. A member with a new id writes
// all records.
func TestReplayAfterARestartIsNotRecordedTwice(t *testing.T) {
	c := config(t)
	done := fsm.Result{Code: fsm.CodeOK}
	apply := func() {
		l := open(t, c)
		for index := range uint64(3) {
			l.Applied(outcome(index+1, done, set("a"), set("b")))
		}
		closeLog(t, l)
	}
	apply()
	data, err := os.ReadFile(c.File)
	if err == nil {
		err = os.WriteFile(c.File, data[:len(data)-10], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	apply()
	if found := records(t, c.File); len(found) != 6 || found[5].Index != 3 ||
		found[5].Position != 1 {
		t.Errorf("%+v", found)
	}
	c.Member = "n1.2"
	if apply(); len(records(t, c.File)) != 12 {
		t.Error("a member that begins anew has not written everything")
	}
}

// Open skips a line that was written in part, or is not a record for another reason. So the node
// starts.
func TestBrokenLinesAreSkipped(t *testing.T) {
	for name, broken := range map[string]string{
		"glued":      "{\"index\":7,\"ke{\"index\":8}\n",
		"unfinished": "{\"index\":9", "long": strings.Repeat("x", 5<<20) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			l := open(t, c)
			l.Applied(outcome(1, fsm.Result{Code: fsm.CodeOK}, set("k")))
			closeLog(t, l)
			file, err := os.OpenFile(c.File, os.O_APPEND|os.O_WRONLY, 0)
			if err == nil {
				_, err = file.WriteString(broken)
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = file.Close()
			l = open(t, c)
			if l.changes.last != (place{1, 1, 0, 0}) {
				t.Errorf("%+v", l.changes.last)
			}
			closeLog(t, l)
		})
	}
}

// After older data was put back, the Raft log uses the same indexes again, in a later term. These
// entries are recorded. Within one run no record counts as written already: two terms with two
// calls each make four lines.
func TestSameIndexInALaterTermIsRecorded(t *testing.T) {
	c := config(t)
	for term := range uint64(2) {
		l := open(t, c)
		o := outcome(5, fsm.Result{Code: fsm.CodeOK}, set("k"))
		o.Term = term + 1
		l.Applied(o)
		l.Applied(o)
		closeLog(t, l)
	}
	if found := records(t, c.File); len(found) != 4 {
		t.Errorf("%d lines", len(found))
	}
}

// After an older copy of the data was put back, the Raft log ends before the last record in the
// file. The entries that this log has are not recorded again. Later entries are.
func TestRecordsOfALogThatWasReplacedDoNotCount(t *testing.T) {
	c := config(t)
	apply := func(term, index uint64) {
		o := outcome(index, fsm.Result{Code: fsm.CodeOK}, set("k"))
		o.Term = term
		l := open(t, c)
		l.Applied(o)
		closeLog(t, l)
	}
	apply(5, 90)
	apply(8, 5000)
	c.LastTerm, c.LastIndex = 5, 100
	apply(5, 90) // the log is applied again up to its end
	apply(6, 101)
	c.LastTerm, c.LastIndex = 6, 101
	apply(6, 101)
	var places []uint64
	for _, r := range records(t, c.File) {
		places = append(places, r.Term, r.Index)
	}
	if want := []uint64{5, 90, 8, 5000, 6, 101}; !slices.Equal(places, want) {
		t.Errorf("%d, want %d", places, want)
	}
}

// All lines that cannot be written are counted as lost. Later lines are written once the file can
// be written to again.
func TestUnwrittenLinesAreCounted(t *testing.T) {
	c := config(t)
	lost := 0
	c.Lost = func(lines int) { lost += lines }
	opened, _, err := openFiles(c)
	if err != nil {
		t.Fatal(err)
	}
	good := opened.file
	if opened.file, err = os.Open(c.File); err != nil { // it cannot be written to
		t.Fatal(err)
	}
	l := &journal{config: c, files: opened, queue: make(chan Record, 10)}
	for range 3 {
		l.queue <- Record{Index: 1}
	}
	close(l.queue)
	l.write()
	if lost != 3 {
		t.Errorf("%d lost", lost)
	}
	_ = opened.file.Close()
	opened.file = good
	if err := opened.append(encode(&Record{Index: 2})); err != nil {
		t.Error(err)
	}
	if err := opened.close(); err != nil {
		t.Error(err)
	}
	if found := records(t, c.File); len(found) != 1 || found[0].Index != 2 {
		t.Errorf("%+v", found)
	}
}

// If the queue of denials is full, a denial is dropped: it must not hold the state machine up.
func TestDenialsAreDroppedWhenTheDiskIsSlow(t *testing.T) {
	c := config(t)
	dropped := 0
	c.Dropped = func(lines int) { dropped += lines }
	// nothing writes
	l := &Log{config: c, changes: &journal{}, denials: &journal{queue: make(chan Record, 1)}}
	for index := range uint64(3) {
		l.Applied(outcome(index+1, fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorNotAuthorized},
			set("k")))
	}
	if dropped != 2 {
		t.Errorf("%d dropped", dropped)
	}
}

// If the queue of changes stays full for Config.Deadline, Exit is called, so that another member
// leads.
func TestHangingDiskEndsTheProcess(t *testing.T) {
	c := config(t)
	exits := 0
	c.Deadline, c.Exit = 10*time.Millisecond, func(err error) {
		if exits++; !errors.Is(err, ErrHangs) {
			t.Error(err)
		}
	}
	// nothing writes
	l := &Log{config: c, changes: &journal{queue: make(chan Record)}, denials: &journal{}}
	l.Applied(outcome(1, fsm.Result{Code: fsm.CodeOK}, set("k")))
	if exits != 1 {
		t.Errorf("%d exits", exits)
	}
}
