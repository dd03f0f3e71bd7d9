package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"holdfast/internal/durable"
)

// Write writes the pair to two files: the key for its owner alone, the certificate for everybody.
// Files that exist are replaced, and keep their owner and mode, so that whoever could read them can
// read the new ones; of a symbolic link the target is replaced. Neither is replaced before both are
// written: after an error the old pair is there, unless the machine stopped between the two.
func (p Pair) Write(certFile, keyFile string) error {
	const (
		secret   = 0o600
		readable = 0o644
	)
	key, err := prepare(keyFile, p.Key, secret)
	if err != nil {
		return err
	}
	defer key.discard()
	certificate, err := prepare(certFile, p.Certificate, readable)
	if err != nil {
		return err
	}
	defer certificate.discard()
	return errors.Join(key.replace(), certificate.replace())
}

// prepared is a file that is written and has another name yet.
type prepared struct{ temporary, name string }

func prepare(name string, data []byte, mode os.FileMode) (*prepared, error) {
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*") // of mode 0600
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	p := &prepared{file.Name(), name}
	_, err = file.Write(data)
	if err == nil {
		err = likeBefore(file, name, mode)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		p.discard()
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	return p, nil
}

// likeBefore gives a file the owner and the mode of the one that it replaces, or a mode if there is
// none.
func likeBefore(file *os.File, name string, mode os.FileMode) error {
	before, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return file.Chmod(mode)
	case err != nil:
		return err
	}
	if owner, ok := before.Sys().(*syscall.Stat_t); ok {
		if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	return file.Chmod(before.Mode().Perm())
}

func (p *prepared) replace() error { return durable.Rename(p.temporary, p.name) }

// discard removes the file if it was not given its name.
func (p *prepared) discard() { _ = os.Remove(p.temporary) }
