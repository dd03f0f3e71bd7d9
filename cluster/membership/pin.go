package membership

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/fsm"
)

// pinFirst pins a member before the change that needs the pin. undo removes the pin again, unless
// the member was pinned before. If undo fails, the pin stays: it has no effect on a voter, nor on
// an id that is no member. After an error of pinFirst the change must not be requested.
func (m *Membership) pinFirst(ctx context.Context, id raft.ServerID) (undo func(), err error) {
	if m.env.Pinned(id) {
		return func() {}, nil
	}
	err = m.setPinned(ctx, id, true)
	switch {
	case err != nil && (errors.Is(err, peer.ErrOutcomeUnknown) || errors.Is(err, ctx.Err())) &&
		m.isVoter(id):
		// The pin may still be applied, and has no effect on a voter. The change is not requested,
		// so it is not done.
		return nil, fmt.Errorf("pin %s as a non-voter: %w: %v", id, peer.ErrNotDone, err)
	case err != nil:
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), peer.PollInterval)
		defer cancel()
		_ = m.setPinned(ctx, id, false)
	}, nil
}

// setPinned pins a member as a non-voter, or allows its promotion again.
func (m *Membership) setPinned(ctx context.Context, id raft.ServerID, pinned bool) error {
	command := fsm.Command{Kind: fsm.KindAllowPromotion, Key: []byte(id)}
	if pinned {
		command.Kind = fsm.KindPinNonVoter
	}
	result, err := m.env.Execute(ctx, command)
	if err == nil && result.Code == fsm.CodeError {
		err = fmt.Errorf("%w: %s", peer.ErrRefused, result.Error.Text())
	}
	return err
}

// isPinnedNonVoter reports whether a member's pin has an effect. A voter is pinned only if its
// demotion has failed.
func (m *Membership) isPinnedNonVoter(server raft.Server) bool {
	return server.Suffrage != raft.Voter && m.env.Pinned(server.ID)
}
