package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/client/holdfasttest"
)

// Two commands with the same client id are two holders of a lock: the second one cannot acquire it,
// whether or not it waits.
func TestCommandsWithOneClientIDDoNotShareALock(t *testing.T) {
	store := holdfasttest.Start(t).Client(t)
	c := &connection{timeout: 10 * time.Second}
	for name, wait := range map[string]time.Duration{
		"one attempt": 0,
		"waiting":     500 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			lock, err := c.acquireLock(t.Context(), store, name, time.Minute, wait)
			if err != nil {
				t.Fatal(err)
			}
			var coded *codeError
			if _, err := c.acquireLock(t.Context(), store, name, time.Minute, wait); !errors.As(err,
				&coded) || coded.code != exitNoLock {
				t.Errorf("the second command: %v", err)
			}
			if err := lock.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A command is not started if the lock is lost before, for instance because the answer of the store
// took longer than --ttl.
func TestCommandIsNotStartedWithoutTheLock(t *testing.T) {
	store := holdfasttest.Start(t).Client(t)
	c := &connection{timeout: 10 * time.Second}
	lock, err := c.acquireLock(t.Context(), store, "lock", time.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = store.Close() // always nil; it ends the renewal, so the lock counts as lost
	<-lock.Lost()
	started := filepath.Join(t.TempDir(), "started")
	var coded *codeError
	if _, err := runLocked(&cobra.Command{}, lock, []string{"touch", started},
		time.Second); !errors.As(err, &coded) || coded.code != exitLockLost {
		t.Error(err)
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the command was started")
	}
}

// acquire acquires a lock for a command that a test runs.
func acquire(t *testing.T) *client.Lock {
	t.Helper()
	c := &connection{timeout: 10 * time.Second}
	lock, err := c.acquireLock(t.Context(), holdfasttest.Start(t).Client(t), "lock", time.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// What a command leaves behind in its process group ends before the lock is released.
func TestProcessesLeftBehindEnd(t *testing.T) {
	lock, out := acquire(t), filepath.Join(t.TempDir(), "pid")
	command := &cobra.Command{}
	command.SetContext(t.Context())
	began := time.Now()
	if code, err := runLocked(command, lock, []string{"sh", "-c", "sleep 600 & echo $! > " + out},
		10*time.Minute); code != 0 || err != nil {
		t.Fatalf("code %d, %v", code, err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the lock was kept for %v after the command", took)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil &&
		!strings.Contains(string(status), ") Z ") {
		t.Errorf("it still runs: %s", status)
	}
}

// Ctrl-Z (SIGTSTP) does not suspend the command: a suspended command would keep the lock and do
// nothing.
func TestCtrlZDoesNotSuspendTheCommand(t *testing.T) {
	lock := acquire(t)
	defer signal.Reset(syscall.SIGTSTP)
	command := &cobra.Command{}
	command.SetContext(t.Context())
	if code, err := runLocked(command, lock, []string{"sh", "-c", "kill -TSTP $$; exit 9"},
		time.Second); code != 9 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}
