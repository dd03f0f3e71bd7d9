package membership

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/cluster/propose"
	"holdfast/fsm"
)

// Add adds the node that listens at the address. voter says whether it votes once it has caught up, or stays a
// non-voter. The error is peer.ErrNotLeader on another node than the leader, peer.ErrUnreachable if the node does not answer, and otherwise as
// those of Remove.
func (m *Membership) Add(ctx context.Context, address raft.ServerAddress, voter bool) error {
	there, err := peer.AskStatus(ctx, m.env.Client, raft.Server{Address: address})
	if err != nil {
		return err
	}
	if !voter {
		if server, member := peer.Find(m.env.Servers(), there.ID); member && server.Suffrage == raft.Voter {
			return fmt.Errorf("%w: %s is a voter: demote it", peer.ErrRefused, there.ID)
		}
		if err := m.pin(ctx, there.ID, true); err != nil {
			return err
		}
	}
	if err := m.add(ctx, JoinRequest{ID: there.ID, Address: address, Version: there.Version}); err != nil {
		if _, member := peer.Find(m.env.Servers(), there.ID); !voter && !member {
			_ = m.pin(ctx, there.ID, false) // the earlier error is returned
		}
		return err
	}
	if voter && m.env.Pinned(there.ID) {
		return m.pin(ctx, there.ID, false)
	}
	return nil
}

// Remove removes a member by its name or id. A leader that is to be removed transfers the leadership first: the error is peer.ErrNotLeader then, as on
// any other node, and the next leader is to be asked. peer.ErrRefused says that the change would be unsafe or that there is no such member,
// peer.ErrNotDone that it was not made, and peer.ErrOutcomeUnknown that it may still be made.
func (m *Membership) Remove(ctx context.Context, nameOrID string) error {
	return m.changeMember(ctx, nameOrID, m.remove)
}

// Demote makes a voter a non-voter, which it stays until it is added as a voter again. Its errors are those of Remove.
func (m *Membership) Demote(ctx context.Context, nameOrID string) error {
	return m.changeMember(ctx, nameOrID, m.demote)
}

// changeMember finds a member, waits until no other change of the members is under way, and changes it.
func (m *Membership) changeMember(ctx context.Context, nameOrID string, change func(context.Context, raft.Server) error) error {
	found, err := m.memberToChange(ctx, nameOrID)
	if err != nil {
		return err
	}
	if err := m.Lock(ctx); err != nil {
		return err
	}
	defer m.Unlock()
	server, member := peer.Find(m.env.Servers(), found.ID) // it may have become a voter meanwhile, or a node of its name may have replaced it
	if !member {
		return fmt.Errorf("%w: %s is no longer a member", peer.ErrRefused, found.ID)
	}
	return change(ctx, server)
}

// demote takes a voter's vote away, if a majority of the voters that stay is alive.
func (m *Membership) demote(ctx context.Context, server raft.Server) error {
	if err := m.quorumWithout(ctx, server.ID); err != nil {
		return err
	}
	if err := m.pin(ctx, server.ID, true); err != nil {
		return err
	}
	err := m.changed(ctx, m.env.Raft.DemoteVoter(server.ID, 0, ChangeTimeout))
	if errors.Is(err, peer.ErrNotDone) {
		_ = m.pin(ctx, server.ID, false) // if this fails, too, the pin stays without effect: the member is a voter
	}
	return err
}

// memberToChange finds a member, and hands over when it is this one.
func (m *Membership) memberToChange(ctx context.Context, nameOrID string) (raft.Server, error) {
	if err := m.env.Confirm(ctx); err != nil {
		return raft.Server{}, err
	}
	server, err := m.resolve(nameOrID)
	if err != nil || server.ID != m.env.Self.ID {
		return server, err
	}
	if err := m.quorumWithout(ctx, server.ID); err != nil {
		return server, err
	}
	if err := m.TransferIfLeading(ctx, ""); err != nil {
		return server, err
	}
	return server, peer.ErrNotLeader
}

// pin makes a member stay a non-voter, or lets autopilot promote it again.
func (m *Membership) pin(ctx context.Context, id raft.ServerID, yes bool) error {
	if m.env.Version() < fsm.VersionPinNonVoter {
		return fmt.Errorf("%w: every member has to be upgraded before one can be kept a non-voter", peer.ErrRefused)
	}
	command := fsm.Command{Kind: fsm.KindAllowPromotion, Key: []byte(id)}
	if yes {
		command.Kind = fsm.KindPinNonVoter
	}
	result, err := m.env.Execute(ctx, command)
	if err == nil && result.Code == fsm.CodeError {
		err = fmt.Errorf("%w: %s", peer.ErrRefused, result.Error.Text())
	}
	return err
}

// remove takes a member out, if a majority of the voters that stay is alive.
func (m *Membership) remove(ctx context.Context, server raft.Server) error {
	if err := m.quorumWithout(ctx, server.ID); err != nil { // also for a non-voter, which autopilot may promote meanwhile
		return err
	}
	if err := m.changed(ctx, m.env.Raft.RemoveServer(server.ID, 0, ChangeTimeout)); err != nil {
		return err
	}
	if m.env.Pinned(server.ID) {
		if err := m.pin(ctx, server.ID, false); err != nil {
			m.env.Log.Warn("the member is removed, and still noted as a non-voter", "id", server.ID, "error", err)
		}
	}
	return nil
}

// quorumWithout returns an error when the voters without the one would have no majority that is alive.
func (m *Membership) quorumWithout(ctx context.Context, id raft.ServerID) error {
	statuses := m.env.Statuses.Poll(ctx, peer.PollInterval)
	voters, answering := 0, 0
	for _, server := range m.env.Servers() {
		if server.Suffrage != raft.Voter || server.ID == id {
			continue
		}
		voters++
		if d, ok := statuses[server.ID]; ok && d.State != "shutdown" || server.ID == m.env.Self.ID {
			answering++
		}
	}
	if voters == 0 {
		return fmt.Errorf("%w: %s is the last voter", peer.ErrRefused, id)
	}
	if answering <= voters/2 {
		return fmt.Errorf("%w: without %s only %d of %d voters would be alive, which is no majority", peer.ErrRefused, id, answering, voters)
	}
	return nil
}

// changed waits for a change of the members, and puts an entry behind it: raft refuses to take a snapshot before another entry
// follows.
func (m *Membership) changed(ctx context.Context, change raft.IndexFuture) error {
	done := make(chan error, 1)
	if !m.env.Go(func() { done <- change.Error() }) {
		return fmt.Errorf("change the members: %w: %w", peer.ErrOutcomeUnknown, errClosing)
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("change the members: %w", changeError(err))
		}
	case <-ctx.Done():
		return fmt.Errorf("change the members: %w: %w", peer.ErrOutcomeUnknown, ctx.Err())
	}
	_, _ = m.env.Execute(ctx, fsm.Command{Kind: fsm.KindAdvance}) // the change is committed in any case; if this fails, the leader's maintenance appends the entry
	return nil
}

// changeError wraps an error of a change of the members by whether the change may have been made. raft returns ErrNotVoter before it appends anything.
func changeError(err error) error {
	if propose.OutcomeUnknown(err) && !errors.Is(err, raft.ErrNotVoter) {
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
		return raft.Server{}, fmt.Errorf("%w: several members have the name %s: give the id", peer.ErrRefused, nameOrID)
	}
}
