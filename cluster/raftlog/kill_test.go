package raftlog

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// † A node that is killed amid writes of 4 MiB has all entries that it has acknowledged, and only
// entries that it was given, however often that happens. HOLDFAST_KILLS says how often, 12 by
// default.
func TestKilledNodeHasItsEntriesAndNoOthers(t *testing.T) {
	kills := 12
	if text := os.Getenv("HOLDFAST_KILLS"); text != "" {
		kills, _ = strconv.Atoi(text)
	}
	dir, random := t.TempDir(), rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for range kills {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledProcess$")
		child.Env = append(os.Environ(), "HOLDFAST_KILLED="+dir)
		out, err := child.StdoutPipe()
		if err == nil {
			err = child.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		acknowledged, lines := uint64(0), bufio.NewScanner(out)
		patience := random.IntN(30)
		for lines.Scan() {
			if _, err := fmt.Sscanf(lines.Text(), "acknowledged %d", &acknowledged); err != nil {
				continue
			}
			if patience--; patience < 0 {
				time.AfterFunc(time.Duration(random.IntN(10))*time.Millisecond,
					func() { _ = child.Process.Kill() })
				patience = 1 << 20
			}
		}
		if err := child.Wait(); err == nil || acknowledged == 0 {
			t.Fatalf("the child ended by itself: %v", err)
		}
		checkKilled(t, dir, acknowledged)
	}
}

// checkKilled checks that a log has all entries up to an index, and only those of killedEntry.
func checkKilled(t *testing.T, dir string, acknowledged uint64) {
	t.Helper()
	stores := openStores(t, dir, WAL)
	log := NewCheckedLog(stores.Log,
		Guard{Deadline: time.Minute, Exit: func(err error) { t.Error(err) }}, 0)
	first, err := log.FirstIndex()
	last, lastErr := log.LastIndex()
	if err = errors.Join(err, lastErr); err != nil || last < acknowledged {
		t.Fatalf("the log ends at %d, acknowledged were %d: %v", last, acknowledged, err)
	}
	for index := first; index <= last; index++ {
		var got raft.Log
		want := killedEntry(index)
		if err := log.GetLog(index, &got); err != nil || got.Type != want.Type ||
			got.Term != want.Term || !bytes.Equal(got.Data, want.Data) {
			t.Fatalf("entry %d of %d to %d: %v, type %v, term %d", index, first, last, err,
				got.Type, got.Term)
		}
	}
	// Compaction keeps the folder small.
	if err := errors.Join(log.DeleteRange(first, last-min(last, 5)), stores.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestKilledProcess is no test: it is what the child process of
// TestKilledNodeHasItsEntriesAndNoOthers runs until it is killed.
func TestKilledProcess(t *testing.T) {
	dir := os.Getenv("HOLDFAST_KILLED")
	if dir == "" {
		t.Skip("TestKilledNodeHasItsEntriesAndNoOthers runs it")
	}
	stores := openStores(t, dir, WAL)
	log := NewCheckedLog(stores.Log,
		Guard{Deadline: time.Minute, Exit: func(err error) { t.Error(err) }}, 0)
	last, err := log.LastIndex()
	for err == nil {
		var logs []*raft.Log
		for range 1 + last%3 {
			last++
			logs = append(logs, killedEntry(last))
		}
		if err = log.StoreLogs(logs); err == nil {
			_, err = fmt.Printf("acknowledged %d\n", last)
		}
	}
	t.Fatal(err)
}

// killedEntry returns an entry whose value consists of frames of the log's format, at every
// alignment, and of the words that raft-wal's format has.
func killedEntry(index uint64) *raft.Log {
	size := []int{4 << 20, 100, 1 << 20, 5000}[index%4]
	frame := binary.LittleEndian.AppendUint32(nil, 17)
	frame = append(append(frame, make([]byte, 16)...), 2)
	frame = binary.LittleEndian.AppendUint64(frame, 0)
	frame = binary.LittleEndian.AppendUint64(frame, 1<<60)
	words := []byte{2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0}
	data := binary.LittleEndian.AppendUint64(make([]byte, 0, size+64), index)
	for len(data) < size {
		data = append(append(data, frame...), words...)
	}
	return &raft.Log{Index: index, Term: 3, Type: raft.LogConfiguration, Data: data}
}

// A boltdb file that was cut off is refused. To read it would end the process by SIGBUS, at each
// start.
func TestTruncatedBoltFileIsRefused(t *testing.T) {
	for _, kind := range []Kind{BoltDB, WAL} {
		t.Run(string(kind), func(t *testing.T) {
			dir := t.TempDir()
			if err := openStores(t, dir, kind).Close(); err != nil {
				t.Fatal(err)
			}
			file := BoltDB.path(dir)
			if kind == WAL {
				file = filepath.Join(WAL.path(dir), votesFile)
			}
			for _, pages := range []int64{3, 2, 1, 0} {
				if err := os.Truncate(file, pages*int64(os.Getpagesize())); err != nil {
					t.Fatal(err)
				}
				if _, err := OpenStores(dir, kind, quiet()); !errors.Is(err, ErrTruncated) {
					t.Errorf("with %d pages: %v, want ErrTruncated", pages, err)
				}
			}
		})
	}
}

// A crash while a boltdb file is created leaves a file of another name, which the next start
// replaces.
func TestInterruptedCreationOfABoltFileDoesNoHarm(t *testing.T) {
	dir := t.TempDir()
	if err := openStores(t, dir, BoltDB).Close(); err != nil {
		t.Fatal(err)
	}
	partial := BoltDB.path(dir) + newSuffix
	err := errors.Join(os.Rename(BoltDB.path(dir), partial),
		os.Truncate(partial, 2*int64(os.Getpagesize())))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := openStores(t, dir, BoltDB).Close(); err != nil {
			t.Fatal(err)
		}
	}
}
