package wal_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/hashicorp/raft"

	"holdfast/cluster/wal"
	"holdfast/test/crashdisk"
)

// TestCrashLeavesAcknowledgedEntriesAndNoOthers makes the states of a disk that a crash can leave
// at each step of a random workload with hostile values: a killed process, and a power failure that
// tears what was not synced. A log that opens has all acknowledged entries and no bytes that were
// not given to it. It goes on, crashes again, and so on. HOLDFAST_CRASH_STATES says how many states
// are tried.
func TestCrashLeavesAcknowledgedEntriesAndNoOthers(t *testing.T) {
	states := 1500
	if text := os.Getenv("HOLDFAST_CRASH_STATES"); text != "" {
		states, _ = strconv.Atoi(text)
	}
	tried := 0
	for seed := uint64(1); tried < states; seed++ {
		c := &crasher{random: rand.New(rand.NewPCG(seed, 0)), secrets: secrets(seed)}
		if err := c.run(crashdisk.New(c.random), &model{}, 25, 0); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		tried += c.tried
	}
	t.Logf("%d states of the disk", tried)
}

// model is what a log must have: the entries of the last acknowledged change and, until the change
// that runs is acknowledged, perhaps what it adds or no longer what it deletes.
type model struct {
	entries map[uint64]*raft.Log
	term    uint64
}

func (m *model) clone() *model { return &model{maps.Clone(m.entries), m.term} }

func (m *model) span() (first, last uint64) {
	if len(m.entries) == 0 {
		return 0, 0
	}
	indexes := slices.Sorted(maps.Keys(m.entries))
	return indexes[0], indexes[len(indexes)-1]
}

// crasher runs workloads, and tries the states that crashes at their steps leave.
type crasher struct {
	random  *rand.Rand
	secrets io.Reader
	tried   int
}

// maxDepth is how many crashes follow each other.
const maxDepth = 3

// run opens the log of a disk that has what m says, and changes it some times. At each step of the
// disk, it tries what a crash leaves.
func (c *crasher) run(disk *crashdisk.Disk, m *model, changes, depth int) error {
	before, after := m.clone(), m.clone()
	var failed error
	attempt := func(crashed *crashdisk.Disk, what string) {
		if failed == nil {
			c.tried++
			if err := c.check(crashed, before, after, depth); err != nil {
				failed = fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	hook := func(s crashdisk.Step) error {
		if depth == 0 || c.random.IntN(30) == 0 {
			attempt(disk.Clone(), "killed before "+s.Name)
			lost := disk.Clone()
			lost.LosePower(c.random, []int64{64, 512, 4096}[c.random.IntN(3)])
			attempt(lost, "no power before "+s.Name)
		}
		s.Apply()
		return failed
	}
	log, err := c.open(disk, hook)
	if err != nil {
		return err
	}
	for range changes {
		var change func(*wal.Log) error
		if change, after = c.draw(before); change == nil {
			continue
		}
		if err := change(log); err != nil || failed != nil {
			return errors.Join(err, failed)
		}
		before = after
		if c.random.IntN(8) == 0 {
			if log, err = c.open(disk, hook); err != nil {
				return errors.Join(err, failed)
			}
			if err := compare(log, before, before); err != nil {
				return err
			}
		}
	}
	return errors.Join(compare(log, before, before), failed)
}

func (c *crasher) open(disk *crashdisk.Disk, hook crashdisk.Hook) (*wal.Log, error) {
	return wal.Open(wal.Config{
		Folder: disk.Folder(hook), Random: c.secrets, SegmentSize: 3000, FrameSize: 300,
	})
}

// check opens the log of a crashed disk. What it has then counts as stored: a second crash takes
// nothing away. Then the log goes on.
func (c *crasher) check(disk *crashdisk.Disk, before, after *model, depth int) error {
	log, err := c.open(disk, nil)
	if err != nil {
		return err
	}
	if err := compare(log, before, after); err != nil {
		return err
	}
	found := &model{map[uint64]*raft.Log{}, after.term + 1}
	first, last := bounds(log)
	for index := first; index <= last && last > 0; index++ {
		found.entries[index] = after.entries[index]
		if found.entries[index] == nil {
			found.entries[index] = before.entries[index]
		}
	}
	disk.LosePower(c.random, 512)
	if log, err = c.open(disk, nil); err == nil {
		err = compare(log, found, found)
	}
	if err != nil {
		return fmt.Errorf("no power after it was opened: %w", err)
	}
	// A leader sends what was torn again: the first of the entries, byte for byte.
	var again []*raft.Log
	for index := last + 1; after.entries[index] != nil && len(again) < 2; index++ {
		again = append(again, after.entries[index])
	}
	if len(again) > 0 {
		if err := log.StoreLogs(again[:1+c.random.IntN(len(again))]); err != nil {
			return err
		}
		for index := last + 1; index <= lastOf(log); index++ {
			found.entries[index] = after.entries[index]
		}
	}
	if depth+1 < maxDepth && c.random.IntN(4) == 0 {
		return c.run(disk, found, 5, depth+1)
	}
	if log, err = c.open(disk, nil); err == nil {
		err = compare(log, found, found)
	}
	return err
}

func bounds(log *wal.Log) (first, last uint64) {
	first, _ = log.FirstIndex()
	return first, lastOf(log)
}

func lastOf(log *wal.Log) uint64 {
	last, _ := log.LastIndex()
	return last
}

// draw draws a change, and returns it with the model after it.
func (c *crasher) draw(m *model) (change func(*wal.Log) error, after *model) {
	after = m.clone()
	first, last := m.span()
	remove := func(from, to uint64) func(*wal.Log) error {
		for index := from; index <= to; index++ {
			delete(after.entries, index)
		}
		return func(log *wal.Log) error { return log.DeleteRange(from, to) }
	}
	switch x := c.random.IntN(20); {
	case x < 13 || last == 0:
		if last == 0 {
			last = c.random.Uint64N(50)
		}
		if after.entries == nil {
			after.entries = map[uint64]*raft.Log{}
		}
		var logs []*raft.Log
		for i := range 1 + c.random.Uint64N(5) {
			log := c.entry(last+1+i, m.term)
			after.entries[log.Index], logs = log, append(logs, log)
		}
		return func(log *wal.Log) error { return log.StoreLogs(logs) }, after
	case x < 16: // a conflict with a new leader
		after.term++
		return remove(max(first, last-min(last, c.random.Uint64N(6))), last), after
	case x < 19: // compaction
		if to := first + c.random.Uint64N(last-first+1); to < last {
			return remove(first, to), after
		}
		return nil, m
	default: // a snapshot was installed
		return remove(first, last), after
	}
}

func (c *crasher) entry(index, term uint64) *raft.Log {
	log := &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: hostile(c.random)}
	if c.random.IntN(2) == 0 {
		log.Extensions = []byte{1, 2, 3, 4, 5}
	}
	return log
}

// hostile returns a value that consists of frames of the format, with a MAC of 0.
func hostile(r *rand.Rand) []byte {
	size := []int{0, 10, 90, 400, 1500}[r.IntN(5)] + r.IntN(40)
	entry := binary.LittleEndian.AppendUint64(nil, 9) // term
	entry = append(entry, make([]byte, 8)...)
	entry = append(entry, byte(raft.LogConfiguration), 0, 0, 4, 0, 0, 0, 'e', 'v', 'i', 'l')
	entries := append(binary.LittleEndian.AppendUint64([]byte{1}, r.Uint64N(60)), entry...)
	deletion := binary.LittleEndian.AppendUint64([]byte{2}, 0)
	deletion = binary.LittleEndian.AppendUint64(deletion, 1<<60)
	data := make([]byte, r.IntN(20))
	for len(data) < size {
		payload := [][]byte{entries, deletion}[r.IntN(2)]
		data = binary.LittleEndian.AppendUint32(data, uint32(len(payload)))
		data = append(append(data, make([]byte, 16)...), payload...)
	}
	return data[:size]
}

// compare returns an error if the log lacks an entry that both models have, or has one that neither
// has.
func compare(log *wal.Log, before, after *model) error {
	first, last := bounds(log)
	for index, want := range before.entries {
		if after.entries[index] == want && (index < first || index > last) {
			return fmt.Errorf("entry %d is lost: the log has %d to %d", index, first, last)
		}
	}
	for index := first; index <= last && last > 0; index++ {
		var got raft.Log
		if err := log.GetLog(index, &got); err != nil {
			return fmt.Errorf("entry %d of %d to %d: %w", index, first, last, err)
		}
		if !same(&got, before.entries[index]) && !same(&got, after.entries[index]) {
			return fmt.Errorf("the log has an entry %d that it was not given", index)
		}
	}
	return nil
}

func same(got, want *raft.Log) bool {
	return want != nil && got.Index == want.Index && got.Term == want.Term &&
		got.Type == want.Type &&
		bytes.Equal(got.Data, want.Data) && bytes.Equal(got.Extensions, want.Extensions) &&
		got.AppendedAt.Equal(want.AppendedAt)
}

// secrets returns a source of keys.
func secrets(seed uint64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}
