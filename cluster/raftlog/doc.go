// Package raftlog keeps what a member must not lose: log, votes and snapshots. The checksums of an
// entry are verified before it is stored and when it is read. A store that fails or hangs ends the
// process.
//
// No goroutine holds two locks of this package at once.
package raftlog
