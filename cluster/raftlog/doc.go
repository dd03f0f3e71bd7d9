// Package raftlog keeps what a member must not lose: log, votes and snapshots. Entries are checked before they are stored and when they are read. A
// store that fails or hangs ends the process.
//
// Each lock is held alone.
package raftlog
