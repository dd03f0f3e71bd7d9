//go:build !unix

package raftlog

import "os"

// lockFile does nothing: locking is implemented for Unix only. On other systems opening a WAL never returns ErrLocked.
func lockFile(*os.File) error { return nil }
