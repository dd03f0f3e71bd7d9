package cluster

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/raftlog"
	"holdfast/cluster/replica"
	"holdfast/fsm"
)

// Recover makes a stopped node the only member of its cluster, and keeps all that is in its stores.
// It is for a cluster that has lost a majority for good. Uncommitted entries of this node become
// committed. Entries that only lost members had are lost. The data folders of all other nodes must
// be emptied before they join again.
func Recover(stores *raftlog.Stores, id raft.ServerID, address raft.ServerAddress,
	log *slog.Logger,
) (fsm.Status, error) {
	config := raft.DefaultConfig()
	config.LocalID = id
	config.NoLegacyTelemetry = true
	config.Logger = raftlog.Logger(log)
	replayed := &replay{machine: fsm.New()}
	exit := func(err error) { replayed.fault = err }
	// for one write; long, because raft deletes the whole log in one, and no other member waits for
	// this disk
	const deadline = time.Hour
	checked := raftlog.NewCheckedLog(stores.Log, raftlog.Guard{Deadline: deadline, Exit: exit}, 0)
	_, transport := raft.NewInmemTransport(address)
	members := raft.Configuration{Servers: []raft.Server{{ID: id, Address: address}}}
	err := raft.RecoverCluster(config, replayed, checked, stores.Stable, stores.Snapshots,
		transport, members)
	if err = errors.Join(err, replayed.fault); err != nil {
		return fsm.Status{}, fmt.Errorf("recover: %w", err)
	}
	return replayed.machine.Status(), nil
}

// replay is the raft.FSM into which Recover replays the snapshot and the log.
type replay struct {
	machine *fsm.Machine
	fault   error // the first error of the state machine, or the last error of the disk
}

// Apply implements raft.FSM.
func (r *replay) Apply(log *raft.Log) any {
	if _, err := r.machine.Apply(log.Index, log.Term, log.Data); err != nil && r.fault == nil {
		r.fault = err
	}
	return nil
}

// Snapshot implements raft.FSM.
func (r *replay) Snapshot() (raft.FSMSnapshot, error) {
	if r.fault != nil {
		return nil, r.fault
	}
	return replica.RaftSnapshot(r.machine.Snapshot(), func(w io.Writer) io.Writer { return w },
		func() {}), nil
}

// Restore implements raft.FSM.
func (r *replay) Restore(snapshot io.ReadCloser) error {
	return errors.Join(r.machine.Restore(snapshot), snapshot.Close())
}
