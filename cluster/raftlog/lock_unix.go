//go:build unix

package raftlog

import (
	"os"
	"syscall"
)

// lockFile takes an exclusive lock, which ends with the file or the process, or fails at once.
func lockFile(file *os.File) error {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
