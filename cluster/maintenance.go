package cluster

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/membership"
	"holdfast/cluster/peer"
	"holdfast/fsm"
)

const (
	// maintenanceInterval is how often the leader does its periodic work.
	maintenanceInterval = 200 * time.Millisecond
	// brokerDownLimit is how long a leader may be without its broker before it transfers the
	// leadership.
	brokerDownLimit = 2 * time.Second
)

// maintenance does the periodic work of the leader: see run.
type maintenance struct {
	servers func() []raft.Server // all members
	// raft's current term
	term func() uint64
	// of the log that is in force
	version func() uint32
	// Observer.BrokerDownFor
	brokerDownFor func() time.Duration
	// this node leads and accepts commands
	serving func() bool
	// proposes a command, and waits for its result
	execute    func(ctx context.Context, command fsm.Command) (fsm.Result, error)
	peers      *peer.Statuses
	members    *membership.Membership
	space      func() peer.DiskSpace // which members are short of disk space
	diskLow    func() bool           // this one is
	sameBroker *sameBroker
	log        *slog.Logger

	// when run tried last to hand over to those at another broker; zero for never
	leftAlone  time.Time
	handedOver time.Time // when run tried last to hand over because of the disk; zero for never
}

// diskHandoverInterval is the least time between two attempts to hand over because of the disk: the
// next leader may have another reason to hand back, and free space goes up and down around the
// limit.
const diskHandoverInterval = 5 * time.Minute

// run does the leader's periodic work until the context ends. If a broker connection of this member
// is down or silent for brokerDownLimit, it transfers leadership to a voter whose broker
// connections are up. It raises the log version when every member was upgraded. It puts this
// member's new address into raft's configuration.
func (m *maintenance) run(ctx context.Context) error {
	ticker := time.NewTicker(maintenanceInterval)
	defer ticker.Stop()
	var logged []raft.ServerID // the members that were short of disk space when that was logged
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if m.brokerDownFor() >= brokerDownLimit {
			m.transferToVoterWithBroker(ctx)
		}
		m.handOverAlone(ctx)
		m.handOverFullDisk(ctx)
		logged = m.logDiskLow(logged)
		m.raiseVersion(ctx)
		m.members.UpdateOwnAddress(ctx)
	}
}

// handOverFullDisk transfers the leadership if this member is short of disk space and another voter
// is not: a leader whose disk is full ends.
func (m *maintenance) handOverFullDisk(ctx context.Context) {
	if !m.diskLow() || !m.serving() || m.space().OtherVoters == 0 {
		return
	}
	now := time.Now()
	if now.Sub(m.handedOver) < diskHandoverInterval {
		return
	}
	m.handedOver = now
	hasSpace := func(status *peer.Status) bool { return !status.DiskLow && status.BrokerUp }
	m.transfer(ctx, hasSpace, "this node is short of disk space")
}

// handOverAlone transfers the leadership to a voter at another broker if this node is alone
// (sameBroker).
func (m *maintenance) handOverAlone(ctx context.Context) {
	heard, alone := m.sameBroker.state()
	now := time.Now()
	if !alone || now.Sub(m.leftAlone) < rejoinInterval {
		return
	}
	m.leftAlone = now
	isThere := func(status *peer.Status) bool {
		return status.BrokerUp &&
			heard[status.ID] == peer.Elsewhere
	}
	m.transfer(ctx, isThere, "more members are at another broker than with this node")
}

// logDiskLow logs which members are short of disk space when that has changed, and returns them.
func (m *maintenance) logDiskLow(before []raft.ServerID) []raft.ServerID {
	now := m.space()
	if !slices.Equal(now.Low, before) {
		m.log.Warn("members that are short of disk space", "members", now.Low,
			"growing_writes_refused", now.Refused)
	}
	return now.Low
}

// raiseVersion puts the newest log version that every member can apply into force. It does nothing
// while a membership change or a restore is in progress.
func (m *maintenance) raiseVersion(ctx context.Context) {
	if !m.serving() || m.peers.AgreedVersion(fsm.Version, m.version()) <= m.version() ||
		!m.members.TryLock() {
		return
	}
	defer m.members.Unlock()
	if agreed := m.peers.AgreedVersion(fsm.Version, m.version()); agreed > m.version() {
		if _, err := m.execute(ctx,
			fsm.Command{Kind: fsm.KindAdvance, Version: agreed}); err == nil {
			m.log.Info("a newer version of the log is in force: every member knows it",
				"log_version", agreed)
		} else {
			m.log.Debug("a newer version of the log is not in force yet; it is tried again",
				"log_version", agreed, "error", err)
		}
	}
}

// transferToVoterWithBroker transfers leadership to a voter whose broker connections are up. If
// there is none, this member keeps the leadership.
func (m *maintenance) transferToVoterWithBroker(ctx context.Context) {
	m.transfer(ctx, func(status *peer.Status) bool { return status.BrokerUp },
		"a broker connection of this node is down or silent")
}

// transfer transfers leadership to a voter that is fit for it. If there is none, this member keeps
// the leadership.
func (m *maintenance) transfer(ctx context.Context, isFit func(*peer.Status) bool, why string) {
	answers := m.peers.Poll(ctx, maintenanceInterval)
	target, found := fittestVoter(m.servers(), answers, isFit,
		func(id raft.ServerID) bool { return m.members.TransferBlocked(m.term(), id) })
	if !found {
		return
	}
	m.log.Warn("transferring leadership: "+why, "to", target)
	if err := m.members.TransferIfLeading(ctx, string(target)); err != nil {
		m.log.Warn("the transfer of leadership failed", "error", err)
	}
}

// fittestVoter returns the voter with the longest log among those that answered, are fit, and are
// not blocked. Of several it returns the first in the configuration.
func fittestVoter(servers []raft.Server, answers map[raft.ServerID]peer.Answer,
	isFit func(*peer.Status) bool,
	blocked func(raft.ServerID) bool,
) (best raft.ServerID, found bool) {
	var lastIndex uint64
	for _, server := range servers {
		status, answered := answers[server.ID]
		if answered && server.Suffrage == raft.Voter && isFit(&status.Status) &&
			(!found || status.LastIndex > lastIndex) && !blocked(server.ID) {
			best, lastIndex, found = server.ID, status.LastIndex, true
		}
	}
	return best, found
}
