package pki

import (
	"fmt"
	"os"
	"syscall"

	"holdfast/internal/durable"
)

// Write writes the pair to two files: the key for its owner alone, the certificate for everybody.
// Files that exist are replaced, and keep their owner and mode, so that whoever could read them can
// read the new ones.
func (p Pair) Write(certFile, keyFile string) error {
	const (
		secret   = 0o600
		readable = 0o644
	)
	if err := replace(keyFile, p.Key, secret); err != nil {
		return err
	}
	return replace(certFile, p.Certificate, readable)
}

func replace(file string, data []byte, mode os.FileMode) error {
	before, err := os.Stat(file)
	existed := err == nil
	if existed {
		mode = before.Mode().Perm()
	}
	if err := durable.WriteFile(file, data); err != nil {
		return err
	}
	if err := os.Chmod(file, mode); err != nil {
		return fmt.Errorf("mode of %s: %w", file, err)
	}
	if !existed {
		return nil
	}
	if owner, ok := before.Sys().(*syscall.Stat_t); ok {
		if err := os.Chown(file, int(owner.Uid), int(owner.Gid)); err != nil {
			return fmt.Errorf("owner of %s: %w", file, err)
		}
	}
	return nil
}
