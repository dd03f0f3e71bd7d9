package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/cluster/replica"
	"holdfast/fsm"
)

// StateHash is the hash of one replica's state.
type StateHash struct {
	Member string `json:"node"`
	Hash   string `json:"hash"` // hexadecimal; empty if Fault is set
	Fault  string `json:"fault,omitempty"`
}

// Verification compares all replicas at one index.
type Verification struct {
	Index uint64 `json:"index"` // log index at which the states were compared
	Agree bool   `json:"agree"` // all members that answered have the same hash
	// Complete says that all members answered.
	Complete bool        `json:"complete"`
	Hashes   []StateHash `json:"hashes"`
}

// verifier compares the states of the replicas. It is safe for concurrent use.
type verifier struct {
	id      raft.ServerID        // of this member
	servers func() []raft.Server // all members
	client  peer.Client
	state   *replica.Replica
	// execute proposes a command, and waits for its result and the index of its entry.
	execute func(ctx context.Context, command fsm.Command) (fsm.Result, uint64, error)
	serving func() bool        // this node leads and accepts commands
	observe func(Verification) // is called with each comparison of run
	log     *slog.Logger

	// the last comparison, if replicas differed in it and this node leads
	differ atomic.Pointer[Verification]
}

const (
	firstVerification    = 10 * time.Second
	verificationInterval = time.Minute
)

// run compares the replicas every minute until the context ends.
func (v *verifier) run(ctx context.Context) error {
	timer := time.NewTimer(firstVerification)
	defer timer.Stop()
	defer v.differ.Store(nil) // the next leader compares
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			timer.Reset(verificationInterval)
		}
		if !v.serving() {
			continue
		}
		verification, err := v.verify(ctx)
		if err != nil {
			v.log.Debug("the replicas could not be compared; they are compared again", "error", err)
			continue
		}
		v.observe(verification)
		switch {
		case !verification.Agree:
			v.differ.Store(&verification)
			v.log.Error("the replicas differ: see \"replicas that differ\" in the documentation",
				"index", verification.Index, "hashes", verification.Hashes)
		case verification.Complete:
			v.differ.Store(nil)
		}
	}
}

// divergence returns ErrReplicasDiffer if the last comparison of run found a difference.
func (v *verifier) divergence() error {
	found := v.differ.Load()
	if found == nil {
		return nil
	}
	var hashes []string
	for _, state := range found.Hashes {
		if state.Fault == "" {
			hashes = append(hashes, state.Member+" has "+state.Hash)
		}
	}
	return fmt.Errorf("%w at log index %d: %s", ErrReplicasDiffer, found.Index,
		strings.Join(hashes, ", "))
}

// ErrReplicasDiffer says that replicas have different states at the same log index.
var ErrReplicasDiffer = errors.New("cluster: the replicas differ")

// verify compares the states of all replicas at one index. The error is ErrNotLeader on any other
// node than the leader.
func (v *verifier) verify(ctx context.Context) (Verification, error) {
	_, index, err := v.execute(ctx, fsm.Command{Kind: fsm.KindAdvance})
	if err != nil {
		return Verification{}, err
	}
	request := binary.BigEndian.AppendUint64(nil, index)
	verification := Verification{Index: index, Agree: true, Complete: true}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, server := range v.servers() {
		asking.Go(func() {
			var body []byte
			var err error
			if server.ID == v.id {
				body, err = v.handleHash(ctx, request)
			} else {
				body, err = v.client.Call(ctx, server, peer.MethodHash, request)
			}
			state := StateHash{Member: peer.NodeName(server.ID), Hash: string(body)}
			if err != nil {
				state.Hash, state.Fault = "", err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			verification.Hashes = append(verification.Hashes, state)
		})
	}
	asking.Wait()
	slices.SortFunc(verification.Hashes,
		func(a, b StateHash) int { return peer.CompareNames(a.Member, b.Member) })
	first := ""
	for _, state := range verification.Hashes {
		switch {
		case state.Fault != "":
			verification.Complete = false
		case first == "":
			first = state.Hash
		case state.Hash != first:
			verification.Agree = false
		}
	}
	return verification, nil
}

// handleHash waits until the state has reached the index in the request, and returns the state's
// hash at that index.
func (v *verifier) handleHash(ctx context.Context, request []byte) ([]byte, error) {
	const patience = 5 * time.Second
	if len(request) != 8 {
		return nil, fmt.Errorf("%w: malformed index", peer.ErrRefused)
	}
	index := binary.BigEndian.Uint64(request)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		status, changed := v.state.StatusAndChange()
		if status.Index >= index {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("the state is at %d, not yet at %d", status.Index, index)
		}
	}
	hash, known := v.state.Hash(index)
	if !known {
		return nil, fmt.Errorf("the hash at %d is no longer, or not, known", index)
	}
	return fmt.Appendf(nil, "%016x", hash), nil
}
