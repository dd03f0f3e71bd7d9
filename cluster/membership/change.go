package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/cluster/propose"
)

// Add adds the node at an address. A voter starts as a non-voter, and autopilot promotes it when it
// has caught up. With voter false, the node is pinned: autopilot never promotes it. The error is
// peer.ErrNotLeader on a node that does not lead, and peer.ErrUnreachable if the node does not
// answer. The other errors are those of Remove.
func (m *Membership) Add(ctx context.Context, address raft.ServerAddress, voter bool) error {
	if err := m.env.Confirm(ctx); err != nil {
		return err
	}
	status, err := peer.AskStatus(ctx, m.env.Client, raft.Server{Address: address})
	if err != nil {
		return err
	}
	request := JoinRequest{ID: status.ID, Address: address, Version: status.Version}
	if !voter {
		return m.add(ctx, request, m.addNonVoterLocked)
	}
	if err := m.add(ctx, request, m.addLocked); err != nil {
		return err
	}
	if m.env.Pinned(status.ID) {
		return m.setPinned(ctx, status.ID, false)
	}
	return nil
}

// addNonVoterLocked adds a node as a pinned non-voter. If that fails, it undoes the pin, unless
// raft may still add the node, or the node replaces a member (one with its name or address) that
// was a pinned non-voter.
func (m *Membership) addNonVoterLocked(ctx context.Context, request JoinRequest) error {
	if m.isVoter(request.ID) {
		return fmt.Errorf("%w: %s is a voter: demote it", peer.ErrRefused, request.ID)
	}
	inherited := slices.ContainsFunc(m.env.Servers(),
		func(s raft.Server) bool { return request.replaces(s) && m.isPinnedNonVoter(s) })
	undo, err := m.pinFirst(ctx, request.ID)
	if err != nil {
		return err
	}
	err = m.addLocked(ctx, request)
	if err != nil && !inherited && !errors.Is(err, peer.ErrOutcomeUnknown) {
		undo()
	}
	return err
}

func (m *Membership) isVoter(id raft.ServerID) bool {
	server, member := peer.Find(m.env.Servers(), id)
	return member && server.Suffrage == raft.Voter
}

// Remove removes a member by its name or id. If the member is this leader, Remove transfers the
// leadership and returns peer.ErrNotLeader, as on any node that does not lead: call it on the new
// leader. peer.ErrRefused says that the change would be unsafe or that there is no such member,
// peer.ErrNotDone that it was not made, and peer.ErrOutcomeUnknown that it may still be made. An
// error of the context that wraps none of these also means that the outcome is unknown.
func (m *Membership) Remove(ctx context.Context, nameOrID string) error {
	return m.changeMember(ctx, nameOrID, m.remove)
}

// Demote makes a member a non-voter and pins it, so that autopilot does not promote it. Add with
// voter true removes the pin. Its errors are those of Remove.
func (m *Membership) Demote(ctx context.Context, nameOrID string) error {
	return m.changeMember(ctx, nameOrID, m.demote)
}

// changeMember finds a member, waits until no other membership change is under way, and changes the
// member.
func (m *Membership) changeMember(ctx context.Context, nameOrID string,
	change func(context.Context, raft.Server) error,
) error {
	found, err := m.resolveForChange(ctx, nameOrID)
	if err != nil {
		return err
	}
	if err := m.Lock(ctx); err != nil {
		return err
	}
	defer m.Unlock()
	// again: during the wait for the lock, the member may have become a voter, or have been
	// replaced
	server, member := peer.Find(m.env.Servers(), found.ID)
	if !member {
		return fmt.Errorf("%w: %s is no longer a member", peer.ErrRefused, found.ID)
	}
	return change(ctx, server)
}

// demote pins a member and makes it a non-voter, if the remaining voters have a live majority.
func (m *Membership) demote(ctx context.Context, server raft.Server) error {
	if err := m.checkQuorumWithout(ctx, server.ID); err != nil {
		return err
	}
	undo, err := m.pinFirst(ctx, server.ID)
	if err != nil {
		return err
	}
	err = m.await(ctx, m.env.Raft.DemoteVoter(server.ID, 0, requestTimeout(ctx)))
	if errors.Is(err, peer.ErrNotDone) {
		undo()
	}
	return err
}

// resolveForChange finds a member. If the member is this leader, it transfers the leadership and
// returns peer.ErrNotLeader.
func (m *Membership) resolveForChange(ctx context.Context, nameOrID string) (raft.Server, error) {
	if err := m.env.Confirm(ctx); err != nil {
		return raft.Server{}, err
	}
	server, err := m.resolve(nameOrID)
	if err != nil || server.ID != m.env.Self.ID {
		return server, err
	}
	if err := m.checkQuorumWithout(ctx, server.ID); err != nil {
		return server, err
	}
	if err := m.TransferIfLeading(ctx, ""); err != nil {
		return server, err
	}
	return server, peer.ErrNotLeader
}

// remove removes a member, if the remaining voters have a live majority. That is checked for a
// non-voter, too: autopilot may promote it before raft removes it.
func (m *Membership) remove(ctx context.Context, server raft.Server) error {
	if err := m.checkQuorumWithout(ctx, server.ID); err != nil {
		return err
	}
	if err := m.await(ctx, m.env.Raft.RemoveServer(server.ID, 0, requestTimeout(ctx))); err != nil {
		return err
	}
	if m.env.Pinned(server.ID) {
		if err := m.setPinned(ctx, server.ID, false); err != nil {
			m.env.Log.Warn("the member is removed, but its pin as a non-voter remains: it has no effect unless this id is added again", "id", server.ID, "error", err)
		}
	}
	return nil
}

// checkQuorumWithout returns an error unless a majority of the voters other than id is alive.
func (m *Membership) checkQuorumWithout(ctx context.Context, id raft.ServerID) error {
	statuses := m.env.Statuses.Poll(ctx, peer.PollInterval)
	if err := ctx.Err(); err != nil { // the poll was cut short
		return fmt.Errorf("%w: the voters were not asked: %w", peer.ErrNotDone, err)
	}
	voters, answering := 0, 0
	for _, server := range m.env.Servers() {
		if server.Suffrage != raft.Voter || server.ID == id {
			continue
		}
		voters++
		if status, ok := statuses[server.ID]; ok && status.State != "shutdown" &&
			status.State != "joining" || server.ID == m.env.Self.ID {
			// in these two states raft does not run
			answering++
		}
	}
	if voters == 0 {
		return fmt.Errorf("%w: %s is the last voter", peer.ErrRefused, id)
	}
	if answering <= voters/2 {
		return fmt.Errorf("%w: without %s only %d of the %d remaining voters are alive, which is no majority", peer.ErrRefused, id, answering, voters)
	}
	return nil
}

// requestTimeout returns how long raft may wait before it takes a membership change: raft takes
// none while an earlier one is not committed. It is at most ChangeTimeout, and at most 90% of the
// time until the context's deadline, so that a refusal arrives before the deadline. The caller
// holds the lock during that wait, so that the check of the next change sees this one.
func requestTimeout(ctx context.Context) time.Duration {
	timeout := ChangeTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)*9/10)
	}
	return max(timeout, time.Millisecond) // raft waits for ever with 0
}

// await waits for the result of a membership change that was given to raft. The raft call that
// returned the future did not heed the context, and has blocked for up to requestTimeout. Since it
// returned, raft has taken the change or the future has an error: await waits for the commit. The
// error of await wraps peer.ErrNotDone or peer.ErrOutcomeUnknown.
func (m *Membership) await(ctx context.Context, change raft.IndexFuture) error {
	done := make(chan error, 1)
	if !m.env.Go(func() { done <- change.Error() }) {
		return fmt.Errorf("membership change: %w: %w", peer.ErrOutcomeUnknown, errClosing)
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("membership change: %w", changeError(err))
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("membership change: %w: %w", peer.ErrOutcomeUnknown, ctx.Err())
	}
}

// changeError adds peer.ErrNotDone or peer.ErrOutcomeUnknown to raft's error. raft has no sentinel
// for a change that it rejects before it appends the entry: such an error counts as outcome
// unknown.
func changeError(err error) error {
	if propose.OutcomeUnknown(err) {
		return fmt.Errorf("%w: %w", peer.ErrOutcomeUnknown, err)
	}
	return fmt.Errorf("%w: %w", peer.ErrNotDone, err)
}

// resolve finds a member by its name or its id.
func (m *Membership) resolve(nameOrID string) (raft.Server, error) {
	var found []raft.Server
	for _, server := range m.env.Servers() {
		if string(server.ID) == nameOrID {
			return server, nil
		}
		if peer.NodeName(server.ID) == nameOrID {
			found = append(found, server)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return raft.Server{}, fmt.Errorf("%w: there is no member %s", peer.ErrRefused, nameOrID)
	default:
		return raft.Server{}, fmt.Errorf("%w: several members have the name %s: give the id",
			peer.ErrRefused, nameOrID)
	}
}
