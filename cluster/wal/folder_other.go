//go:build !linux

package wal

import (
	"errors"
	"os"
)

func allocate(*os.File, int64) error { return errors.ErrUnsupported }

func syncData(file *os.File) error { return file.Sync() }
