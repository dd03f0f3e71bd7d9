// Package durable writes files so that they survive a crash.
package durable

import (
	"fmt"
	"os"
	"path/filepath"
)

// WriteFile replaces a file atomically: after a crash it has its complete old content or its
// complete new content. The new file has the mode 0600.
func WriteFile(file string, data []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	// after a success the name is gone, and Remove fails
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.Write(data)
	if closeErr := temporary.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = Rename(temporary.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// Rename syncs a file and gives it another name. When it returns nil, the content and the new name
// survive a crash.
func Rename(from, to string) error {
	file, err := os.OpenFile(from, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = file.Sync()
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(from, to)
	}
	if err == nil {
		err = SyncDir(filepath.Dir(to))
	}
	return err
}

// SyncDir makes what was created, renamed or removed in a folder survive a crash.
func SyncDir(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = folder.Sync()
	if closeErr := folder.Close(); err == nil {
		err = closeErr
	}
	return err
}
