package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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
		File: filepath.Join(t.TempDir(), "log", "audit.jsonl"), MaxBytes: 64 << 10, Files: 2, Member: "n1.1", Wall: func() time.Time { return time.UnixMilli(1_000).UTC() },
		Log: slog.New(slog.DiscardHandler), Lost: func(int) { t.Error("a line is lost") },
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
	return fsm.Command{Kind: fsm.KindSet, Key: []byte(key), Value: []byte("v"), Principal: policy.Principal{ClientID: "press", Username: "u"}}
}

func outcome(index uint64, result fsm.Result, commands ...fsm.Command) *fsm.Outcome {
	o := &fsm.Outcome{Index: index, Commands: commands}
	for range commands {
		o.Results = append(o.Results, result)
	}
	return o
}

// Who changed what, and who was not allowed to, is written down; reads, repetitions, and what had no effect are not.
func TestWhatIsWrittenDown(t *testing.T) {
	c := config(t)
	l := open(t, c)
	done, denied := fsm.Result{Code: fsm.CodeOK, Rule: 3}, fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorNotAuthorized}
	l.Applied(outcome(1, done, set("k"), set("\xff")))
	l.Applied(outcome(2, fsm.Result{Code: fsm.CodeOK, Repeat: true}, set("repeated")))
	l.Applied(outcome(3, fsm.Result{Code: fsm.CodeNotApplied}, set("condition")))
	l.Applied(outcome(4, denied, fsm.Command{Kind: fsm.KindVDel, Key: []byte("k"), Principal: policy.Principal{ClientID: "robot"}}))
	l.Applied(outcome(5, done, fsm.Command{Kind: fsm.KindGet, Key: []byte("k")}, fsm.Command{Kind: fsm.KindKeyNotify, Key: []byte("k")}))
	l.Applied(outcome(6, fsm.Result{Code: fsm.CodeDeleted}, fsm.Command{Kind: fsm.KindDel, Key: []byte("k"), Principal: policy.Principal{ClientID: "press"}}))
	l.Applied(outcome(7, done, fsm.Command{Kind: fsm.KindRestore, Key: []byte("nonce")}))
	skipped := outcome(8, done, set("skipped"))
	skipped.Skipped = true
	l.Applied(skipped)
	closeLog(t, l)
	at := time.UnixMilli(1_000).UTC()
	want := []Record{
		{Index: 1, Member: "n1.1", Time: at, Command: "SET", ClientID: "press", Username: "u", Key: "k", Outcome: "done", Rule: 3},
		{Index: 1, Position: 1, Member: "n1.1", Time: at, Command: "SET", ClientID: "press", Username: "u", KeyBytes: "/w==", Outcome: "done", Rule: 3},
		{Index: 4, Member: "n1.1", Time: at, Command: "VDEL", ClientID: "robot", Key: "k", Outcome: "not authorized"},
		{Index: 6, Member: "n1.1", Time: at, Command: "DEL", ClientID: "press", Key: "k", Outcome: "done"},
		{Index: 7, Member: "n1.1", Time: at, Command: "RESTORE", Outcome: "done"},
	}
	if found := records(t, c.File); !slices.Equal(found, want) {
		t.Errorf("%+v", found)
	}
}

// After a restart the log is applied again from the last snapshot on. What was written down already is not written again, also when the
// last line was not finished; a member that begins anew writes everything.
func TestRestart(t *testing.T) {
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
	if found := records(t, c.File); len(found) != 6 || found[5].Index != 3 || found[5].Position != 1 {
		t.Errorf("%+v", found)
	}
	c.Member = "n1.2"
	if apply(); len(records(t, c.File)) != 12 {
		t.Error("a member that begins anew has not written everything")
	}
}

// Files are of limited size and number, and no line is lost between them; the place is found in the one before when the file is empty.
func TestRotation(t *testing.T) {
	c := config(t)
	c.MaxBytes = 1000
	done := fsm.Result{Code: fsm.CodeOK}
	l := open(t, c)
	for index := range uint64(100) {
		l.Applied(outcome(index+1, done, set(fmt.Sprint("key-", index))))
	}
	closeLog(t, l)
	var all []Record
	for _, name := range []string{c.File + ".2", c.File + ".1", c.File} {
		if info, err := os.Stat(name); err != nil || info.Size() > c.MaxBytes {
			t.Errorf("%s: %v", name, err)
		}
		all = append(all, records(t, name)...)
	}
	for i, r := range all {
		if r.Index != 100-uint64(len(all))+uint64(i)+1 {
			t.Fatalf("record %d is of entry %d", i, r.Index)
		}
	}
	if _, err := os.Stat(c.File + ".3"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file too many is kept: %v", err)
	}
	if err := os.Rename(c.File, c.File+".1"); err != nil {
		t.Fatal(err)
	}
	l = open(t, c)
	if l.last != (place{100, 0}) {
		t.Errorf("the last place is %+v", l.last)
	}
	closeLog(t, l)
}

// Lines that cannot be written are counted, and what comes later is written again when it can be.
func TestLostLines(t *testing.T) {
	c := config(t)
	lost := 0
	c.MaxBytes, c.Lost = 300, func(lines int) { lost += lines }
	l := open(t, c)
	folder := filepath.Dir(c.File)
	done := fsm.Result{Code: fsm.CodeOK}
	l.Applied(outcome(1, done, set("k")))
	if err := os.Mkdir(c.File+".2", 0o700); err != nil { // no file can be moved there
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.File+".2", "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for index := range uint64(10) {
		l.Applied(outcome(index+2, done, set("k")))
	}
	closeLog(t, l)
	if lost == 0 {
		t.Errorf("nothing is counted as lost in %s", folder)
	}
}
