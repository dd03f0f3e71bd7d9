package raftlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// damaged is the effect of a flipped bit in a node's log.
type damaged string

const (
	harmless damaged = "harmless"            // the bit is in a part that is not in use
	noticed  damaged = "noticed"             // an error, a panic, or the end of the process
	cut      damaged = "cut without notice"  // the log ends sooner, or begins later
	changed  damaged = "read without notice" // an entry differs
)

const (
	damageEntries = 400
	damageTerm    = 7
)

// commandEntries returns entries of the kind that a busy leader writes.
func commandEntries(from, to uint64) (logs []*raft.Log) {
	random := rand.New(rand.NewPCG(from, to))
	for index := from; index <= to; index++ {
		var commands []fsm.Command
		for range 1 + random.IntN(3) {
			id := make([]byte, 16)
			for i := range id {
				id[i] = byte(random.IntN(256))
			}
			commands = append(commands, fsm.Command{
				Kind: fsm.KindSet, Key: fmt.Appendf(nil, "line-%d", random.IntN(100)),
				Value: bytes.Repeat([]byte("v"), random.IntN(150)), ID: fsm.RequestID(id),
			})
		}
		logs = append(logs, &raft.Log{
			Index: index, Term: damageTerm, Type: raft.LogCommand,
			Data: fsm.AppendEntry(nil, &fsm.Entry{Commands: commands}),
		})
	}
	return logs
}

// writeDamageLog writes the log that the test damages: entries in batches of three, and the term.
// Before one batch it stores two conflicting entries of an older term and deletes them. The term
// has no checksum, and readDamaged does not read it.
func writeDamageLog(t *testing.T, dir string, kind Kind) {
	t.Helper()
	stores := openStores(t, dir, kind)
	log := NewCheckedLog(stores.Log,
		Guard{Deadline: time.Minute, Exit: func(err error) { t.Error(err) }}, 1000)
	logs := commandEntries(1, damageEntries)
	err := stores.Stable.SetUint64([]byte("CurrentTerm"), damageTerm)
	for from := 0; from < len(logs); from += 3 {
		if from == damageEntries/4*3 { // those of a leader that was deposed
			conflicting := []*raft.Log{
				{
					Index: uint64(from + 1), Term: damageTerm - 1,
					Type: raft.LogNoop,
				},
				{Index: uint64(from + 2), Term: damageTerm - 1, Type: raft.LogNoop},
			}
			err = errors.Join(err, log.StoreLogs(conflicting),
				log.DeleteRange(uint64(from+1), uint64(from+2)))
		}
		err = errors.Join(err, log.StoreLogs(logs[from:min(from+3, len(logs))]))
	}
	if err = errors.Join(err, stores.Close()); err != nil {
		t.Fatal(err)
	}
}

// readDamaged opens a log as a starting node does, reads it, and returns the effect of the damage.
// It may panic, or never return.
func readDamaged(dir string, kind Kind, want []*raft.Log) (what damaged) {
	stores, err := OpenStores(dir, kind, quiet())
	if err != nil {
		return noticed
	}
	defer func() { _ = stores.Close() }() // perhaps of a damaged file
	var ended error
	log := NewCheckedLog(stores.Log,
		Guard{Deadline: time.Minute, Exit: func(err error) { ended = err }}, 1)
	first, firstErr := log.FirstIndex()
	last, lastErr := log.LastIndex()
	if firstErr != nil || lastErr != nil {
		return noticed
	}
	what = harmless
	for index := first; index <= min(last, damageEntries+10); index++ {
		var got raft.Log
		if err := log.GetLog(index, &got); err != nil || ended != nil {
			return noticed
		}
		if index >= 1 && index <= damageEntries {
			if w := want[index-1]; got.Index != w.Index || got.Term != w.Term ||
				got.Type != w.Type || !bytes.Equal(got.Data, w.Data) {
				what = changed
			}
		}
	}
	if what == harmless && (first != 1 || last != damageEntries) {
		return cut
	}
	return what
}

// places returns how many bits are flipped in each file, one at a time: HOLDFAST_FLIPS, or 80.
func places(t *testing.T) int {
	text := os.Getenv("HOLDFAST_FLIPS")
	if text == "" {
		return 80
	}
	count, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// A node notices a flipped bit in any part of its log that is in use, before it serves what it
// read. Two kinds look like an unfinished write, so the store drops entries: for the WAL, a bit in
// a frame of the newest segment; for boltdb, one in the newest meta page. The end mark (the file
// log-end, which names the last acknowledged entry) shows that entries are missing.
func TestFlippedBitInALogIsNoticed(t *testing.T) {
	for _, kind := range []Kind{BoltDB, WAL} {
		t.Run(string(kind), func(t *testing.T) {
			dir := t.TempDir()
			writeDamageLog(t, dir, kind)
			files := readTree(t, dir)
			if found := inProcess(t, dir, kind); found != harmless {
				t.Fatalf("the undamaged log: %s", found)
			}
			for name, file := range files {
				found, used := make(map[damaged]int), file.data
				random := rand.New(rand.NewPCG(1, uint64(len(used))))
				for range places(t) {
					fresh, place := t.TempDir(), random.IntN(len(used))
					writeTree(t, fresh, files)
					flip(t, filepath.Join(fresh, name), int64(place), used[place]^1<<random.IntN(8))
					found[inProcess(t, fresh, kind)]++
					_ = os.RemoveAll(fresh) // t.TempDir does it again at the end
				}
				t.Logf("%s, %d bytes, %v", name, len(used), found)
				// A damaged end mark is no error: it is written anew. votes.db has one key, and
				// readDamaged reads no votes. In each other file some of the flipped bits are in
				// use.
				mustNotice := name != markFile && filepath.Base(name) != votesFile
				if found[noticed] == 0 && mustNotice || found[changed]+found[cut] > 0 {
					t.Error("a flipped bit was not noticed")
				}
			}
		})
	}
}

// inProcess calls readDamaged in a child process, because a damaged file may crash it. A child that
// fails or hangs has noticed the damage.
func inProcess(t *testing.T, dir string, kind Kind) damaged {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestHelperProcess$")
	// the race detector sleeps for a second otherwise
	child.Env = append(os.Environ(), "HOLDFAST_DAMAGED="+dir, "HOLDFAST_DAMAGED_KIND="+string(kind),
		"GORACE=atexit_sleep_ms=0")
	out, err := child.Output()
	if err != nil { // ended, or hangs
		return noticed
	}
	for _, what := range []damaged{harmless, noticed, cut, changed} {
		if bytes.Contains(out, []byte("found: "+what)) {
			return what
		}
	}
	t.Fatalf("%s", out)
	return ""
}

// TestHelperProcess is no test: it is what the child process of inProcess runs.
func TestHelperProcess(t *testing.T) {
	dir := os.Getenv("HOLDFAST_DAMAGED")
	if dir == "" {
		t.Skip("TestFlippedBitInALogIsNoticed runs it")
	}
	fmt.Println("found: " + readDamaged(dir, Kind(os.Getenv("HOLDFAST_DAMAGED_KIND")),
		commandEntries(1, damageEntries)))
}

func flip(t *testing.T, path string, place int64, value byte) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteAt([]byte{value}, place)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

// savedFile is the content of a file without the zeros at its end, and the size of the file with
// them.
type savedFile struct {
	data []byte
	size int64
}

func saved(data []byte) savedFile {
	return savedFile{
		bytes.TrimRight(data, "\x00"),
		int64(len(data)),
	}
}

// readTree returns the files of a log that are not empty, by their paths in the folder.
func readTree(t *testing.T, dir string) map[string]savedFile {
	files := make(map[string]savedFile)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || len(data) == 0 {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files[name] = saved(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// writeTree writes files. The zeros at their ends are holes, which take no disk space.
func writeTree(t *testing.T, dir string, files map[string]savedFile) {
	for name, file := range files {
		path := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
			os.WriteFile(path, file.data, 0o600), os.Truncate(path, file.size))
		if err != nil {
			t.Fatal(err)
		}
	}
}
