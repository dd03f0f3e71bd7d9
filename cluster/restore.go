package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"holdfast/cluster/peer"
	"holdfast/fsm"
)

// errStageDiscarded says that a new leader discarded the staged parts: those parts of the snapshot
// that were already in the log.
var errStageDiscarded = errors.New("the leader changed meanwhile")

// withoutSentinels returns an error with the same text that wraps nothing: if the outcome of one
// staged part is unknown, the whole restore is still not done.
func withoutSentinels(err error) error { return errors.New(err.Error()) }

// maxRestore bounds a snapshot that is restored, in bytes: every member has the whole snapshot in
// memory for a while.
const maxRestore = 4 << 30

// Restore replaces the keys of the whole cluster by those of a snapshot. The snapshot goes through
// the log in parts, so that every replica restores it at the same index, or none does. Each clock
// becomes the later one of the snapshot's and the cluster's, so that no version is given twice and
// cluster time does not go back. A damaged snapshot is refused, and so is one that needs a newer
// log version than the one in force.
//
// Only the leader can restore. Any other node returns ErrNotDone once the snapshot has passed its
// checks. While another restore is under way on this node, Restore returns ErrNotDone before it
// reads the snapshot. Nothing was changed if the error wraps ErrRefused, ErrNotDone or
// ErrNotLeader. After any other error the outcome is unknown.
func (s *Snapshots) Restore(ctx context.Context, snapshot io.Reader) error {
	if !s.restoring.TryLock() {
		return fmt.Errorf("%w: another restore is under way", peer.ErrNotDone)
	}
	defer s.restoring.Unlock()
	data, err := io.ReadAll(io.LimitReader(snapshot, maxRestore+1))
	if err != nil {
		return fmt.Errorf("%w: read the snapshot: %w", peer.ErrRefused, err)
	}
	if len(data) > maxRestore {
		return fmt.Errorf("%w: the snapshot is larger than %d bytes", peer.ErrRefused, maxRestore)
	}
	// Inspect builds no second state. KindRestore finds what Inspect does not check
	status, err := fsm.Inspect(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%w: %w", peer.ErrRefused, err)
	}
	inForce := s.state.Status().Version
	if status.Version > inForce {
		return fmt.Errorf("%w: version %d of the log is in force, and the snapshot is of %d: upgrade every member first", peer.ErrRefused, inForce, status.Version)
	}
	if err := s.checkFits(&status); err != nil {
		return fmt.Errorf("%w: %w", peer.ErrRefused, err)
	}
	if err := s.members.Lock(ctx); err != nil {
		return err
	}
	defer s.members.Unlock()
	nonce := s.random()
	replaced := false
	defer func() {
		if !replaced { // so that no member keeps what was staged
			discarding, cancel := context.WithTimeout(context.WithoutCancel(ctx), peer.PollInterval)
			defer cancel()
			// An empty part at offset 0 replaces what was staged. A change of leader discards it,
			// too.
			_, _ = s.execute(discarding, fsm.Command{Kind: fsm.KindStage, Nonce: nonce})
		}
	}()
	for offset := 0; offset < len(data); offset += fsm.MaxStageBytes {
		part := data[offset:min(offset+fsm.MaxStageBytes, len(data))]
		result, err := s.execute(ctx,
			fsm.Command{Kind: fsm.KindStage, Nonce: nonce, Offset: uint64(offset), Value: part})
		if err == nil && result.Code != fsm.CodeOK {
			err = errStageDiscarded
		}
		if err != nil {
			// only KindRestore replaces keys, and it was not proposed: nothing is changed
			return fmt.Errorf("%w: %w", peer.ErrNotDone, withoutSentinels(err))
		}
	}
	result, err := s.execute(ctx,
		fsm.Command{Kind: fsm.KindRestore, Nonce: nonce, Offset: uint64(len(data))})
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if result.Code != fsm.CodeOK {
		return fmt.Errorf("%w: %w", peer.ErrNotDone, errStageDiscarded)
	}
	replaced = true
	s.log.Warn("the keys were replaced by those of a snapshot", "keys", status.Keys,
		"snapshot_index", status.Index)
	return nil
}

// checkFits returns an error if a snapshot has more than the limits in force allow. Every member
// has a restored state in memory, and a file of some kilobytes can hold gigabytes.
func (s *Snapshots) checkFits(status *fsm.Status) error {
	var limits fsm.Limits
	s.state.View(func(m *fsm.Machine) {
		settings, _ := m.Settings()
		limits = settings.Limits
	})
	for _, limit := range LimitsOf(&limits, status) {
		if limit.Bound > 0 && limit.Used > limit.Bound {
			return fmt.Errorf("the snapshot has %d, and %s is %d: raise the limit first",
				limit.Used, limit.Name, limit.Bound)
		}
	}
	return nil
}
