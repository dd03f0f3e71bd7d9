package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// mount mounts a disk for a test, and returns it, the folder behind it, and the path.
func mount(t *testing.T) (d *Disk, folder, path string) {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Getuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("this needs /dev/fuse, and root")
		}
		t.Skip("this needs /dev/fuse, and root")
	}
	d, folder, path = New(), t.TempDir(), t.TempDir()
	server, err := d.Mount(folder, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return d, folder, path
}

// What is read is what was written, and what was synced is in the folder.
func TestDiskReadsWhatWasWritten(t *testing.T) {
	_, folder, path := mount(t)
	f, err := os.Create(filepath.Join(path, "a"))
	if err != nil {
		t.Fatal(err)
	}
	want, end := make([]byte, 1<<16), 0
	for n := range 2000 {
		size, data := 1+rand.IntN(500), byte(n)
		offset := rand.IntN(len(want) - size)
		chunk := bytes.Repeat([]byte{data}, size)
		copy(want[offset:], chunk)
		end = max(end, offset+size)
		if _, err := f.WriteAt(chunk, int64(offset)); err != nil {
			t.Fatal(err)
		}
		if n%100 == 99 {
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		if n%50 == 0 || n == 1999 {
			got := make([]byte, len(want))
			read, err := f.ReadAt(got, 0)
			if read != end || err != nil && !errors.Is(err, io.EOF) ||
				!bytes.Equal(got[:read], want[:read]) {
				t.Fatalf("other contents after %d writes", n)
			}
		}
	}
	behind, err := os.ReadFile(filepath.Join(folder, "a"))
	if err != nil || !bytes.Equal(behind, want[:end]) {
		t.Fatal("what is behind differs", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Before a sync only some of the writes are in the folder, after it all are.
func TestOnlySyncMakesAllWritesDurable(t *testing.T) {
	_, folder, path := mount(t)
	f, err := os.Create(filepath.Join(path, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for n := range 100 {
		if _, err := f.WriteAt([]byte{1}, int64(n*4096)); err != nil {
			t.Fatal(err)
		}
	}
	count := func() int {
		behind, err := os.ReadFile(filepath.Join(folder, "a"))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(behind, []byte{1})
	}
	if n := count(); n == 0 || n == 100 {
		t.Errorf("%d of 100 writes are there without a sync", n)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 100 {
		t.Errorf("%d of 100 writes are there after a sync", n)
	}
}

// A place that is written again and again without a sync takes memory once, and what reaches the
// folder is one of the last writes.
func TestRewrittenPlaceIsKeptOnce(t *testing.T) {
	d, folder, path := mount(t)
	f, err := os.Create(filepath.Join(path, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	const last = 200
	for n := range last + 1 {
		if _, err := f.WriteAt([]byte{byte(n), byte(n)}, 0); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 2)
	if _, err := f.ReadAt(got, 0); err != nil || got[0] != last || got[1] != last {
		t.Errorf("read %v, %v", got, err)
	}
	behind, err := os.ReadFile(filepath.Join(folder, "a"))
	if err != nil || len(behind) != 2 || behind[0] != behind[1] || behind[0] < last-100 {
		t.Errorf("in the folder: %v, %v", behind, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, u := range d.files {
		u.mu.Lock()
		if len(u.extents) > 1 {
			t.Errorf("%d unsynced writes of one place", len(u.extents))
		}
		u.mu.Unlock()
	}
}

// A new file that gets the inode of a removed file has none of its data.
func TestRemovedIsForgotten(t *testing.T) {
	d, folder, path := mount(t)
	for _, replaced := range []bool{false, true} {
		t.Run(fmt.Sprintf("replaced %v", replaced), func(t *testing.T) {
			for range 20 { // until the inode comes again
				name := filepath.Join(path, "a")
				if err := os.WriteFile(name, make([]byte, 5000), 0o600); err != nil {
					t.Fatal(err)
				}
				if replaced {
					if err := os.WriteFile(filepath.Join(path, "b"), nil, 0o600); err != nil {
						t.Fatal(err)
					}
					if err := os.Rename(filepath.Join(path, "b"), name); err != nil {
						t.Fatal(err)
					}
				} else if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(path, "new"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if info, err := os.Stat(filepath.Join(path, "new")); err != nil ||
					info.Size() != 0 {
					t.Fatalf("a new file has %d bytes: %v", info.Size(), err)
				}
				if err := os.Remove(filepath.Join(path, "new")); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if err := os.WriteFile(filepath.Join(path, "kept"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteBack(); err != nil {
		t.Fatal(err)
	}
	if behind, err := os.ReadFile(filepath.Join(folder, "kept")); err != nil ||
		string(behind) != "kept" {
		t.Errorf("%q was written back: %v", behind, err)
	}
}

// Each kind of Trouble has the effect that its comment says.
func TestEachDiskFaultDoesWhatItSays(t *testing.T) {
	d, _, path := mount(t)
	f, err := os.Create(filepath.Join(path, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	d.SetTrouble(Trouble{FailSync: true})
	if err := f.Sync(); err == nil {
		t.Error("the sync did not fail")
	}
	d.SetTrouble(Trouble{Full: true})
	if _, err := f.WriteAt(make([]byte, 10), 0); err == nil {
		t.Error("there was room")
	}
	if err := syscall.Ftruncate(int(f.Fd()), 1000); err == nil {
		t.Error("there was room to grow")
	}
	d.SetTrouble(Trouble{SyncDelay: 50 * time.Millisecond})
	began := time.Now()
	if err := f.Sync(); err != nil || time.Since(began) < 50*time.Millisecond {
		t.Error("the sync was not slow", err)
	}
	d.SetTrouble(Trouble{Hang: true})
	written := make(chan error, 1)
	go func() { _, err := f.WriteAt([]byte{1}, 0); written <- err }()
	select {
	case <-written:
		t.Error("the write did not hang")
	case <-time.After(50 * time.Millisecond):
	}
	d.SetTrouble(Trouble{})
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// A bbolt database, which uses a memory map, works on the disk. It runs in a process of its own: a
// process that waits for a page of the map could not serve the disk.
func TestBboltWorksOnTheFaultyDisk(t *testing.T) {
	if path := os.Getenv("DISK_TEST_BOLT"); path != "" {
		useBolt(t, path)
		return
	}
	_, _, path := mount(t)
	child := exec.CommandContext(t.Context(), os.Args[0],
		"-test.run=^TestBboltWorksOnTheFaultyDisk$", "-test.timeout=20s")
	child.Env = append(os.Environ(), "DISK_TEST_BOLT="+path)
	if output, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
}

func useBolt(t *testing.T, path string) {
	db, err := bbolt.Open(filepath.Join(path, "db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 200 {
		err := db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("b"))
			if err != nil {
				return err
			}
			return b.Put([]byte{byte(n)}, bytes.Repeat([]byte{byte(n)}, 1000))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	err = db.View(func(tx *bbolt.Tx) error {
		for n := range 200 {
			if got := tx.Bucket([]byte("b")).Get([]byte{byte(n)}); !bytes.Equal(got,
				bytes.Repeat([]byte{byte(n)}, 1000)) {
				t.Errorf("%d: other contents", n)
			}
		}
		for err := range tx.Check() {
			t.Error(err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
