package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/fsm"
)

// TransferIfLeading transfers the leadership to a target, which is the name or raft id of a member,
// or empty for any other voter. It returns nil and does nothing in three cases: this node does not
// lead, the target is this node, or the target is empty and there is no other voter. Before the
// transfer it commits a KindAdvance, so that keys expire even if leaders change all the time. Its
// errors wrap peer.ErrRefused, peer.ErrNotDone or peer.ErrOutcomeUnknown.
func (m *Membership) TransferIfLeading(ctx context.Context, to string) error {
	if m.env.Raft.State() != raft.Leader {
		return nil
	}
	term, servers := m.env.Raft.CurrentTerm(), m.env.Servers()
	if to == "" && !otherVoter(servers, m.env.Self.ID) {
		return nil
	}
	target, err := m.successor(term, servers, to)
	if err != nil || target.ID == m.env.Self.ID {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("transfer leadership: %w: %w", peer.ErrNotDone, err)
	}
	if m.env.Serving() {
		_, err := m.env.Execute(ctx, fsm.Command{Kind: fsm.KindAdvance})
		switch {
		case errors.Is(err, peer.ErrOutcomeUnknown):
			// Execute returns this only if the leadership was lost
			return fmt.Errorf(
				"transfer leadership: %w: the leadership was lost before the transfer began",
				peer.ErrNotDone)
		case err != nil:
			return fmt.Errorf("transfer leadership: %w: %w", peer.ErrNotDone, err)
		}
	}
	transfer := make(chan error, 1)
	if !m.env.Go(func() {
		transfer <- m.env.Raft.LeadershipTransferToServer(target.ID,
			target.Address).Error()
	}) {
		// this send never blocks
		return fmt.Errorf("transfer leadership: %w: %w", peer.ErrNotDone, errClosing)
	}
	select {
	case err = <-transfer:
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrNotLeader),
		errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("transfer leadership: %w: %w", peer.ErrNotDone, err)
	default: // raft may have sent TimeoutNow: the target may still win an election
		m.recordFailed(term, target.ID)
		return fmt.Errorf("transfer leadership: %w: %w", peer.ErrOutcomeUnknown, err)
	}
}

// errClosing says that this member is closing.
var errClosing = errors.New("this node is closing")

// successor returns the voter that is to lead: the one that the parameter to names or, if that is
// empty, the other voter whose log was longest in the last poll.
func (m *Membership) successor(term uint64, servers []raft.Server, to string) (raft.Server, error) {
	if to != "" {
		target, err := m.resolve(to)
		switch {
		case err != nil:
			return raft.Server{}, err
		case target.Suffrage != raft.Voter:
			return raft.Server{},
				fmt.Errorf("%w: %s does not vote, so it cannot lead", peer.ErrRefused, to)
		case m.TransferBlocked(term, target.ID):
			return raft.Server{},
				fmt.Errorf("%w: a transfer to %s failed in this term; try again when its log has caught up", peer.ErrNotDone, to)
		}
		return target, nil
	}
	var best raft.Server
	var furthest uint64
	for _, server := range servers {
		if server.Suffrage != raft.Voter || server.ID == m.env.Self.ID ||
			m.TransferBlocked(term, server.ID) {
			continue
		}
		if description, _ := m.env.Statuses.Of(server.ID); best.ID == "" ||
			description.LastIndex > furthest {
			best, furthest = server, description.LastIndex
		}
	}
	if best.ID == "" {
		return raft.Server{}, fmt.Errorf(
			"%w: the transfers to all other voters failed in this term; try again when their logs have caught up", peer.ErrNotDone)
	}
	return best, nil
}

// failedTransfers remembers the failed transfers of the current term, because of a fault of raft
// v1.7.3. A second transfer to a member that does not keep up can stop raft from taking proposals
// for good:
//
//   - Raft sends a request to the member's replication goroutine on a channel with room for one
//     (triggerDeferErrorCh). The request of a failed transfer may still be in the channel. Then the
//     send of the next transfer blocks.
//   - If the leadership ends at that moment, the replication goroutine ends and nothing receives
//     from the channel again. The transfer counts as in progress for ever, and raft refuses every
//     proposal when this node leads again.
//
// When the member's log has all entries that the leader's log had at the failure, the replication
// goroutine has emptied the channel.
type failedTransfers struct {
	mu   sync.Mutex
	term uint64
	to   map[raft.ServerID]failedTransfer
}

type failedTransfer struct {
	at   time.Time
	last uint64 // index of the last entry in this node's log at that time
}

// transferRetryDelay is the least time between a failed transfer and the next one to the same
// member.
const transferRetryDelay = time.Second

func (m *Membership) recordFailed(term uint64, to raft.ServerID) {
	t := &m.transfers
	t.mu.Lock()
	defer t.mu.Unlock()
	if term < t.term {
		return
	}
	if term > t.term || t.to == nil {
		t.term, t.to = term, make(map[raft.ServerID]failedTransfer)
	}
	t.to[to] = failedTransfer{time.Now(), m.env.Raft.LastIndex()}
}

// TransferBlocked reports whether leadership must not be transferred to a member now: a transfer to
// it failed in this term, and either that was less than transferRetryDelay ago, or the member's log
// is still shorter than the leader's was then.
func (m *Membership) TransferBlocked(term uint64, to raft.ServerID) bool {
	description, _ := m.env.Statuses.Of(to)
	t := &m.transfers
	t.mu.Lock()
	defer t.mu.Unlock()
	failed, ok := t.to[to]
	return ok && t.term == term &&
		(description.LastIndex < failed.last || time.Since(failed.at) < transferRetryDelay)
}

// Transfer is TransferIfLeading, except that it returns peer.ErrNotLeader on a node that does not
// lead, and an error that wraps peer.ErrRefused if there is no other voter. If there is one, a
// transfer to this node itself returns nil.
func (m *Membership) Transfer(ctx context.Context, to string) error {
	switch {
	case m.env.Raft.State() != raft.Leader:
		return peer.ErrNotLeader
	case !otherVoter(m.env.Servers(), m.env.Self.ID):
		return fmt.Errorf("%w: there is no other voter", peer.ErrRefused)
	}
	return m.TransferIfLeading(ctx, to)
}

func otherVoter(servers []raft.Server, id raft.ServerID) bool {
	return slices.ContainsFunc(servers,
		func(s raft.Server) bool { return s.ID != id && s.Suffrage == raft.Voter })
}
