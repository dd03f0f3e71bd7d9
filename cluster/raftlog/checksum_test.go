package raftlog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// The bytes of a checksum must not change: logs on disks and older members have them.
func TestChecksumIsStable(t *testing.T) {
	log := &raft.Log{
		Index: 0x0102030405060708, Term: 9, Type: raft.LogConfiguration,
		Data: []byte("data"),
	}
	if addChecksum(log); hex.EncodeToString(log.Extensions) != goldenChecksum {
		t.Errorf("%x", log.Extensions)
	}
}

const goldenChecksum = "0175c2156e"

// † An entry that was changed on the disk or on the way between members ends the process before the
// entry is stored or used, whatever part was changed. So does an entry that is read without a
// checksum. One that is stored without gets one: it is the leader's own.
func TestChangedEntryIsNoticed(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*raft.Log)
		noticed bool
		stored  bool // it is stored nevertheless
	}{
		"nothing":                   {func(*raft.Log) {}, false, true},
		"the index":                 {func(log *raft.Log) { log.Index++ }, true, false},
		"the term":                  {func(log *raft.Log) { log.Term ^= 4 }, true, false},
		"the type":                  {func(log *raft.Log) { log.Type = raft.LogNoop }, true, false},
		"the data":                  {func(log *raft.Log) { log.Data[0] ^= 1 }, true, false},
		"the checksum":              {func(log *raft.Log) { log.Extensions[4] ^= 1 }, true, false},
		"a checksum of a newer one": {func(log *raft.Log) { log.Extensions[0] = 200 }, true, false},
		"no checksum":               {func(log *raft.Log) { log.Extensions = nil }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			store := raft.NewInmemStore()
			var ended error
			guard := Guard{Deadline: time.Minute, Exit: func(err error) { ended = err }}
			if err := NewCheckedLog(store, guard,
				1).StoreLog(&raft.Log{
				Index: 7, Term: 3, Type: raft.LogConfiguration,
				Data: []byte("members"),
			}); err != nil {
				t.Fatal(err)
			}
			var stored raft.Log
			if err := store.GetLog(7, &stored); err != nil {
				t.Fatal(err)
			}
			stored.Data, stored.Extensions = bytes.Clone(stored.Data),
				bytes.Clone(stored.Extensions)
			test.change(&stored)
			sent := stored
			err := NewCheckedLog(raft.NewInmemStore(), guard, 1).StoreLog(&sent)
			if errors.Is(err, fsm.ErrDamaged) == test.stored ||
				errors.Is(ended, fsm.ErrDamaged) == test.stored {
				t.Errorf("when it was sent: %v, the process ends with %v", err, ended)
			}
			ended = nil
			disk := raft.NewInmemStore()
			at := stored.Index
			if err := disk.StoreLog(&stored); err != nil {
				t.Fatal(err)
			}
			if err := NewCheckedLog(disk, guard, 1).GetLog(at, &raft.Log{}); err != nil ||
				errors.Is(ended, fsm.ErrDamaged) != test.noticed {
				t.Errorf("when it is read: %v, the process ends with %v", err, ended)
			}
		})
	}
}
