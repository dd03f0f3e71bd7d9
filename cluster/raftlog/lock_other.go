//go:build !unix

package raftlog

import "os"

// lockFile does nothing: locking is implemented for Unix only, so that opening a WAL never returns ErrLocked here.
func lockFile(*os.File) error { return nil }
