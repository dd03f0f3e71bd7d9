package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"holdfast/client/holdfasttest"
)

// Two commands with one client id are two holders, however they wait for the lock.
func TestCommandsWithOneClientIDDoNotShareALock(t *testing.T) {
	store := holdfasttest.Start(t).Client(t)
	c := &connection{timeout: 10 * time.Second}
	for name, wait := range map[string]time.Duration{"one attempt": 0, "waiting": 500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			lock, err := c.acquireLock(t.Context(), store, name, time.Minute, wait)
			if err != nil {
				t.Fatal(err)
			}
			var coded *codeError
			if _, err := c.acquireLock(t.Context(), store, name, time.Minute, wait); !errors.As(err, &coded) || coded.code != exitNoLock {
				t.Errorf("the second command: %v", err)
			}
			if err := lock.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A command is not started if the lock is lost before, for instance because the answer of the store took longer than --ttl.
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
	if _, err := runLocked(&cobra.Command{}, lock, []string{"touch", started}, time.Second); !errors.As(err, &coded) || coded.code != exitLockLost {
		t.Error(err)
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the command was started")
	}
}
