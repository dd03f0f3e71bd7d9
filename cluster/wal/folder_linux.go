package wal

import (
	"os"
	"syscall"
)

// allocate makes a file longer, and reserves the space on the disk.
func allocate(file *os.File, size int64) error {
	return withDescriptor(file, "fallocate", func(fd int) error {
		return syscall.Fallocate(fd, 0, 0, size)
	})
}

// syncData syncs what is needed to read the file again: not its times.
func syncData(file *os.File) error { return withDescriptor(file, "fdatasync", syscall.Fdatasync) }

// withDescriptor calls a system call until no signal interrupts it.
func withDescriptor(file *os.File, name string, call func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for failed = call(int(fd)); failed == syscall.EINTR; failed = call(int(fd)) {
		}
	})
	if err == nil && failed != nil {
		err = &os.PathError{Op: name, Path: file.Name(), Err: failed}
	}
	return err
}
