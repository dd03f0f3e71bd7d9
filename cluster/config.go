package cluster

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/offer"
	"holdfast/cluster/peer"
	"holdfast/cluster/propose"
	"holdfast/cluster/raftlog"
	"holdfast/fsm"
)

// Timing has raft's timeouts, and the deadline for the disk. For Heartbeat, Election and Commit,
// raft waits a random time of one to two times the value.
type Timing struct {
	// a follower that hears from no leader for this long starts an election
	Heartbeat time.Duration
	// a candidate that is not elected within this time starts another election
	Election time.Duration
	// a leader that reaches no majority for this long steps down; reads do not rely on it
	LeaderLease time.Duration
	// without new entries, the leader sends its commit index after this time; a follower applies so
	// much later
	Commit       time.Duration
	DiskDeadline time.Duration // a store call that takes longer ends the process
}

// LAN is the timing for machines with good disks in one network.
func LAN() Timing {
	return Timing{
		Heartbeat: 300 * time.Millisecond, Election: 300 * time.Millisecond,
		LeaderLease: 200 * time.Millisecond,
		Commit:      100 * time.Millisecond, DiskDeadline: 5 * time.Second,
	}
}

// Edge is the timing for slow disks, SD cards and crowded machines.
func Edge() Timing {
	return Timing{
		Heartbeat: 2 * time.Second, Election: 2 * time.Second, LeaderLease: 1500 * time.Millisecond,
		Commit: 500 * time.Millisecond, DiskDeadline: 30 * time.Second,
	}
}

// Config configures a Node. DefaultConfig sets all but ID, Address and Members.
type Config struct {
	ID      raft.ServerID      // raft id of this member, unique for ever: see Identity
	Address raft.ServerAddress // address at which the other members reach this one
	Timing  Timing
	// the first configuration, with which a node without state bootstraps the cluster; nil never
	// bootstraps
	Members []raft.Server

	// Offer is what this node wants the cluster's settings to be.
	Offer offer.Offer

	Proposals propose.Config

	// SnapshotBytes is the least number of bytes of log entries that are applied between two
	// snapshots. If the newest snapshot is larger than that, its size counts instead, up to four
	// times SnapshotBytes.
	SnapshotBytes int64
	// TrailingEntries is how many of the newest log entries compaction keeps although a snapshot
	// covers them.
	TrailingEntries uint64
	// MaxClockOffset is how far this node's wall clock may be off the cluster's clock, in either
	// direction, without a warning.
	MaxClockOffset time.Duration
	// CacheBytes bounds the entries that are kept in memory for followers that are a little behind.
	CacheBytes int
}

// DefaultConfig returns a configuration that lacks only ID, Address and Members.
func DefaultConfig() Config {
	return Config{
		Timing: LAN(),
		Offer:  offer.Offer{Settings: fsm.DefaultSettings()},
		Proposals: propose.Config{
			BatchBytes: 1 << 20, BatchCommands: 1024, InFlight: 2,
			MinPipelined: 32, ProposalAge: 5 * time.Second,
		},
		SnapshotBytes: 64 << 20, TrailingEntries: 512, CacheBytes: 32 << 20,
		MaxClockOffset: 5 * time.Second,
	}
}

// Validate reports the first field that makes no sense. It does not check Address, Members, Offer
// and TrailingEntries.
func (c *Config) Validate() error {
	positive := []struct {
		name  string
		value int64
	}{
		{"Timing.Heartbeat", int64(c.Timing.Heartbeat)},
		{"Timing.Election", int64(c.Timing.Election)},
		{"Timing.LeaderLease", int64(c.Timing.LeaderLease)},
		{"Timing.Commit", int64(c.Timing.Commit)},
		{"Timing.DiskDeadline", int64(c.Timing.DiskDeadline)},
		{"Proposals.BatchBytes", int64(c.Proposals.BatchBytes)},
		{"Proposals.BatchCommands", int64(c.Proposals.BatchCommands)},
		{"Proposals.InFlight", int64(c.Proposals.InFlight)},
		{"Proposals.MinPipelined", int64(c.Proposals.MinPipelined)},
		{"Proposals.ProposalAge", int64(c.Proposals.ProposalAge)},
		{"SnapshotBytes", c.SnapshotBytes},
		{"CacheBytes", int64(c.CacheBytes)},
		{"MaxClockOffset", int64(c.MaxClockOffset)},
	}
	for _, field := range positive {
		if field.value <= 0 {
			return fmt.Errorf("cluster config: %s is %d: must be positive", field.name, field.value)
		}
	}
	switch {
	case c.ID == "":
		return fmt.Errorf("cluster config: ID is %q: must not be empty", c.ID)
	case c.Timing.LeaderLease > c.Timing.Heartbeat:
		return fmt.Errorf("cluster config: Timing.LeaderLease is %v: must not be above Timing.Heartbeat (%v)", c.Timing.LeaderLease, c.Timing.Heartbeat)
	case c.Timing.Election < c.Timing.Heartbeat:
		return fmt.Errorf("cluster config: Timing.Election is %v: must not be below Timing.Heartbeat (%v)", c.Timing.Election, c.Timing.Heartbeat)
	}
	return nil
}

// maxAppendEntries bounds the entries in one message to a follower; raft has no bound in bytes. By
// default an entry has at most 1 MiB (propose.Config.BatchBytes), or a single larger command.
const maxAppendEntries = 8

// raftConfig returns the settings of raft.
func raftConfig(c *Config, log *slog.Logger) *raft.Config {
	config := raft.DefaultConfig()
	config.LocalID = c.ID
	config.HeartbeatTimeout = c.Timing.Heartbeat
	config.ElectionTimeout = c.Timing.Election
	config.LeaderLeaseTimeout = c.Timing.LeaderLease
	config.CommitTimeout = c.Timing.Commit
	config.MaxAppendEntries = maxAppendEntries
	config.ShutdownOnRemove = false // memberWatch ends a node that was removed, with a message
	config.BatchApplyCh = true
	config.TrailingLogs = c.TrailingEntries
	// so high that raft never decides: Snapshots does, by SnapshotBytes
	config.SnapshotThreshold = 1 << 20
	config.NoLegacyTelemetry = true
	config.Logger = raftlog.Logger(log)
	return config
}

// Environment is all that a Node touches outside of its own memory.
type Environment struct {
	Stores    raftlog.Stores
	Transport raft.Transport
	Client    peer.Client
	Clock     Clock
	// Random returns 64 bits that nobody can predict. Each leader draws a nonce from it. One of
	// these nonces becomes the secret of SCAN's continuation tokens.
	Random func() uint64
	// FreeSpace returns the bytes that are free where the stores are, and whether that is too
	// little.
	FreeSpace func() (free uint64, low bool)
	// AutoTotalBytes is the limit on keys and values that this member's memory allows, in bytes.
	AutoTotalBytes int64
	// Broker is how this member is connected to its broker.
	Broker Broker
	// Exit ends the process: this node was removed (ErrRemoved), or its state or its disk cannot be
	// trusted any more. In a simulation it may return. If the state or the disk cannot be trusted,
	// the node then applies nothing more.
	Exit    func(error)
	Log     *slog.Logger
	Metrics *Metrics
}

// close closes the transport and then the stores.
func (w *Environment) close() (err error) {
	if closer, ok := w.Transport.(io.Closer); ok {
		err = closer.Close()
	}
	return errors.Join(err, w.Stores.Close())
}

// Clock is the node's sources of time.
type Clock struct {
	Wall      func() int64         // milliseconds since the Unix epoch
	Monotonic func() time.Duration // since any fixed moment; never goes back
}

// SystemClock returns the machine's clock.
func SystemClock() Clock {
	start := time.Now()
	return Clock{
		Wall:      wallClock,
		Monotonic: func() time.Duration { return time.Since(start) },
	}
}

// wallClock reads the machine's wall clock: milliseconds since the Unix epoch.
func wallClock() int64 { return time.Now().UnixMilli() }
