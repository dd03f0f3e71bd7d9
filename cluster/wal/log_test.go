package wal_test

import (
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/wal"
	"holdfast/test/crashdisk"
)

func newLog(t *testing.T) (*wal.Log, *crashdisk.Disk) {
	t.Helper()
	disk := crashdisk.New(rand.New(rand.NewPCG(1, 1)))
	return reopen(t, disk), disk
}

func reopen(t *testing.T, disk *crashdisk.Disk) *wal.Log {
	t.Helper()
	log, err := wal.Open(wal.Config{
		Folder: disk.Folder(nil), Random: secrets(7),
		SegmentSize: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func noops(from, to uint64) (logs []*raft.Log) {
	for index := from; index <= to; index++ {
		logs = append(logs, &raft.Log{Index: index, Term: 1, Type: raft.LogNoop})
	}
	return logs
}

// DeleteRange accepts a range that is in part or wholly outside the log. Raft may read the first
// index of an empty log, 0, and delete from there after another goroutine has stored entries.
func TestDeleteRangeMayExceedTheLog(t *testing.T) {
	for _, c := range []struct {
		name                          string
		from, to, wantFirst, wantLast uint64
	}{
		{"all", 0, 9, 0, 0},
		{"the front", 0, 6, 7, 8},
		{"the end", 7, 20, 5, 6},
		{"nothing below the log", 0, 4, 5, 8},
		{"nothing above the log", 9, 12, 5, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			log, disk := newLog(t)
			if err := errors.Join(log.StoreLogs(noops(5, 8)),
				log.DeleteRange(c.from, c.to)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if first, last := bounds(log); first != c.wantFirst || last != c.wantLast {
					t.Errorf("the log goes from %d to %d, want %d to %d", first, last, c.wantFirst,
						c.wantLast)
				}
				for index := uint64(4); index <= 9; index++ {
					has := log.GetLog(index, new(raft.Log)) == nil
					if want := c.wantFirst != 0 && c.wantFirst <= index &&
						index <= c.wantLast; has != want {
						t.Errorf("entry %d is there: %v, want %v", index, has, want)
					}
				}
				log = reopen(t, disk)
			}
		})
	}
}

// A change that would leave a gap is refused, and does no harm.
func TestGapsAreRefused(t *testing.T) {
	log, _ := newLog(t)
	if err := log.StoreLogs(noops(5, 9)); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"entries behind the end": func() error { return log.StoreLogs(noops(11, 12)) },
		"entries that are there": func() error { return log.StoreLogs(noops(9, 12)) },
		"entries without another": func() error {
			return log.StoreLogs(append(noops(10, 10),
				noops(12, 12)...))
		},
		"a deletion amid the log": func() error { return log.DeleteRange(6, 8) },
		"too large extensions": func() error {
			return log.StoreLog(&raft.Log{Index: 10, Extensions: make([]byte, 1<<16)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := change(); !errors.Is(err, wal.ErrRefused) {
				t.Errorf("%v, want ErrRefused", err)
			}
		})
	}
	if err := log.StoreLogs(noops(10, 10)); err != nil || lastOf(log) != 10 {
		t.Errorf("the log ends at %d: %v", lastOf(log), err)
	}
}

// After a failed change nothing is known of what is on the disk, so nothing more is appended.
func TestFailedLogStaysFailed(t *testing.T) {
	disk := crashdisk.New(rand.New(rand.NewPCG(1, 1)))
	broken, fails := errors.New("input/output error"), false
	log, err := wal.Open(wal.Config{
		Random: secrets(1),
		Folder: disk.Folder(func(s crashdisk.Step) error {
			if fails && s.Syncs {
				return broken
			}
			s.Apply()
			return nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	fails = true
	if err := log.StoreLogs(noops(1, 1)); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	fails = false
	if err := log.StoreLogs(noops(1, 1)); !errors.Is(err, broken) || lastOf(log) != 0 {
		t.Errorf("%v: the log goes on after a failed sync", err)
	}
}

// fullDisk is a folder on a disk that cannot allocate a segment.
type fullDisk struct{ wal.Folder }

func (d fullDisk) Open(name string) (wal.File, error) {
	file, err := d.Folder.Open(name)
	return fullFile{file}, err
}

func (d fullDisk) Create(name string) (wal.File, error) {
	file, err := d.Folder.Create(name)
	return fullFile{file}, err
}

type fullFile struct{ wal.File }

func (f fullFile) Allocate(size int64) error {
	// as fallocate on ext4, it keeps what it got
	return errors.Join(f.File.Allocate(size/2), errors.New("no space left on device"))
}

// † A disk without room for a whole segment takes entries, and the deletion that frees space, as
// long as it has room for these.
func TestSegmentNeedNotBeAllocated(t *testing.T) {
	disk := crashdisk.New(rand.New(rand.NewPCG(1, 1)))
	for next := uint64(1); next < 300; next += 100 {
		log, err := wal.Open(wal.Config{
			Folder: fullDisk{disk.Folder(nil)}, Random: secrets(next),
			SegmentSize: 1000,
		})
		if err != nil {
			t.Fatal(err)
		}
		for index := next; index < next+100; index++ {
			if err := log.StoreLogs(noops(index, index)); err != nil {
				t.Fatal(err)
			}
		}
		if err := log.DeleteRange(0, next+50); err != nil {
			t.Fatal(err)
		}
	}
	if first, last := bounds(reopen(t, disk)); first != 252 || last != 300 {
		t.Errorf("the log goes from %d to %d", first, last)
	}
}

// A segment that could not be created leaves no file, which would keep a full disk full; nor does
// one that a crash left.
func TestUnfinishedSegmentIsRemoved(t *testing.T) {
	disk := crashdisk.New(rand.New(rand.NewPCG(1, 1)))
	fails := errors.New("no space left on device")
	open := func(hook crashdisk.Hook) *wal.Log {
		log, err := wal.Open(wal.Config{
			Folder: disk.Folder(hook), Random: secrets(1),
			SegmentSize: 1000,
		})
		if err != nil {
			t.Fatal(err)
		}
		return log
	}
	log := open(func(s crashdisk.Step) error {
		if strings.HasPrefix(s.Name, "write") && strings.Contains(s.Name, "segment.new") &&
			disk.Used("000000000001.wal") > 500 {
			return fails
		}
		s.Apply()
		return nil
	})
	var err error
	for index := uint64(1); err == nil; index++ {
		err = log.StoreLogs(noops(index, index))
	}
	if !errors.Is(err, fails) || slices.Contains(disk.Names(), "segment.new") {
		t.Errorf("%v; files %v", err, disk.Names())
	}
	if _, err := disk.Folder(nil).Create("segment.new"); err != nil {
		t.Fatal(err)
	}
	log = open(nil)
	if err := log.StoreLogs(noops(lastOf(log)+1, lastOf(log)+1)); err != nil ||
		slices.Contains(disk.Names(), "segment.new") {
		t.Errorf("%v; files %v", err, disk.Names())
	}
}

// Files that no crash can leave are refused.
func TestDamageIsRefused(t *testing.T) {
	segment := func(n int) string {
		return []string{
			"000000000001.wal", "000000000002.wal",
			"000000000003.wal",
		}[n-1]
	}
	for name, damage := range map[string]func(*crashdisk.Disk, wal.Folder) error{
		"a segment is missing": func(_ *crashdisk.Disk,
			f wal.Folder,
		) error {
			return f.Remove(segment(2))
		},
		"the oldest is missing": func(_ *crashdisk.Disk, f wal.Folder) error {
			return f.Remove(segment(1))
		},
		"segments have swapped names": func(_ *crashdisk.Disk, f wal.Folder) error {
			return errors.Join(f.Rename(segment(1), "x"), f.Rename(segment(2), segment(1)),
				f.Rename("x", segment(2)))
		},
		"a bit of a header": func(d *crashdisk.Disk,
			_ wal.Folder,
		) error {
			d.Flip(segment(3), 20, 1)
			return nil
		},
		"a bit of a frame": func(d *crashdisk.Disk,
			_ wal.Folder,
		) error {
			d.Flip(segment(1), 200, 1)
			return nil
		},
		"another file's name": func(_ *crashdisk.Disk, f wal.Folder) error {
			_,
				err := f.Create("1.wal")
			return err
		},
		"an empty segment": func(_ *crashdisk.Disk, f wal.Folder) error {
			_,
				err := f.Create(segment(3))
			return err
		},
		"a segment that ends sooner": func(d *crashdisk.Disk, f wal.Folder) error {
			file, err := f.Open(segment(1))
			return errors.Join(err, file.Truncate(500))
		},
	} {
		t.Run(name, func(t *testing.T) {
			log, disk := newLog(t)
			for index := uint64(1); disk.Used(segment(3)) == 0; index++ {
				if err := log.StoreLogs(noops(index, index)); err != nil {
					t.Fatal(err)
				}
			}
			if err := damage(disk, disk.Folder(nil)); err != nil {
				t.Fatal(err)
			}
			_, err := wal.Open(wal.Config{
				Folder: disk.Folder(nil), Random: secrets(7),
				SegmentSize: 1000,
			})
			if !errors.Is(err, wal.ErrDamaged) {
				t.Errorf("%v, want ErrDamaged", err)
			}
		})
	}
}

// The bytes on the disk must not change: a release reads what each earlier one wrote.
func TestFormatIsStable(t *testing.T) {
	log, disk := newLog(t)
	at := time.Unix(1_700_000_000, 42)
	err := errors.Join(log.StoreLogs([]*raft.Log{
		{
			Index: 3, Term: 2, Type: raft.LogConfiguration, Data: []byte("data"),
			Extensions: []byte{1, 2}, AppendedAt: at,
		},
		{Index: 4, Term: 2, Type: raft.LogNoop},
	}), log.DeleteRange(4, 4))
	if err != nil {
		t.Fatal(err)
	}
	file, err := disk.Folder(nil).Open("000000000001.wal")
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, disk.Used("000000000001.wal"))
	if _, err := file.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if want := strings.Join(strings.Fields(golden), ""); hex.EncodeToString(got) != want {
		t.Errorf("%x, want %s", got, want)
	}
	// And it is read.
	written, _ := hex.DecodeString(strings.Join(strings.Fields(golden), ""))
	other := crashdisk.New(rand.New(rand.NewPCG(1, 1)))
	old, err := other.Folder(nil).Create("000000000001.wal")
	if err == nil {
		_, err = old.WriteAt(append(written, make([]byte, 40)...), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	var entry raft.Log
	log = reopen(t, other)
	if err := log.GetLog(3, &entry); err != nil || string(entry.Data) != "data" ||
		!entry.AppendedAt.Equal(at) || lastOf(log) != 3 {
		t.Errorf("%+v, %v: the log ends at %d", entry, err, lastOf(log))
	}
}

const golden = `
	686677616c00000101000000000000000e42d4cae8864908e0b8c7520e360aa404427c9053d9a667be544c14e69fa482
	00000000000000000000000000000000000000000000000000000000000000000df185283d000000b75ab77376cd5880
	d4ef703b9ae09c7701030000000000000002000000000000002a002a36fe9c9717050200040000000102646174610200
	00000000000000000000000000000100000000000011000000a6945303aa1f83d0052bdce57229a05e02040000000000
	000004`
