//go:build unix

package raftlog

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes an exclusive lock. The error is ErrLocked, at once, if another process has it. The lock ends when the file is closed or the process ends.
func lockFile(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}
