//go:build unix

package raftlog

import (
	"os"
	"syscall"
)

// lockFile takes an exclusive lock, or returns an error at once if another process has it. The lock ends when the file is closed or the process
// ends.
func lockFile(file *os.File) error {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
