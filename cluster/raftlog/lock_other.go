//go:build !unix

package raftlog

import "os"

// lockFile does nothing: there is no such lock here.
func lockFile(*os.File) error { return nil }
