package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/membership"
	"holdfast/cluster/peer"
	"holdfast/fsm"
)

// InitialMember is one of the nodes that are to bootstrap the cluster. Name is its node name. Its
// raft id is not configured: the other nodes learn it from its peer.Status.
type InitialMember struct {
	Name    string
	Address raft.ServerAddress
}

// Newcomer is a node without Raft state that is about to bootstrap or to join a cluster. It answers
// the calls of other nodes until this process opens its cluster.Node. Assemble is called once.
// WaitReason, Handle and Standing are safe for concurrent use, also while Assemble runs. Only
// Assemble uses Peers, and replaces it after a Reload.
type Newcomer struct {
	ID      raft.ServerID
	Address raft.ServerAddress
	// the initial members; if empty, this node bootstraps a cluster of its own
	Peers []InitialMember
	// Reload reads the list of initial members again: an operator may change it before the
	// bootstrap. It may be nil.
	Reload func() ([]InitialMember, error)
	Log    interface{ Info(string, ...any) }

	waitReason atomic.Pointer[string]
}

// WaitReason returns why the node is not in a cluster yet: the last error of Assemble's attempts,
// or an empty string before the first one.
func (c *Newcomer) WaitReason() string {
	if reason := c.waitReason.Load(); reason != nil {
		return *reason
	}
	return ""
}

// Handle answers MethodPeerStatus with the state joining. For any other method it returns an error
// that wraps peer.ErrNotLeader.
func (c *Newcomer) Handle(_ context.Context, _ peer.Caller, method peer.Method, _ []byte) ([]byte,
	error,
) {
	if method != peer.MethodPeerStatus {
		return nil, fmt.Errorf("%w: this node has not joined yet", peer.ErrNotLeader)
	}
	return json.Marshal(peer.Status{
		ID: c.ID, Address: c.Address, State: "joining",
		Version: fsm.Version,
	})
}

// Standing returns Stranger for every id, so that this node refuses each connection that names this
// node as its target. A call without a target id still reaches Handle, which answers only
// MethodPeerStatus.
func (c *Newcomer) Standing(raft.ServerID) (peer.Standing, raft.ServerAddress) {
	return peer.Stranger, ""
}

// Assemble waits until this process may open its cluster.Node. It returns the members with which
// the node must bootstrap the cluster, or nil if the node has joined an existing one. Only the peer
// whose name is the first in byte order bootstraps a cluster, and only when every other peer
// answers that it has no Raft state. A node without peers bootstraps a cluster of its own. The
// error is the context's.
func (c *Newcomer) Assemble(ctx context.Context, client peer.Client) ([]raft.Server, error) {
	const interval = 200 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	last := ""
	for {
		if len(c.Peers) == 0 || (len(c.Peers) == 1 && c.Peers[0].Name == peer.NodeName(c.ID)) {
			return []raft.Server{{ID: c.ID, Address: c.Address}}, nil
		}
		members, joined, err := c.attempt(ctx, client)
		if joined || members != nil {
			return members, nil
		}
		if err != nil && err.Error() != last && ctx.Err() == nil {
			last = err.Error()
			reason := last
			c.waitReason.Store(&reason)
			c.Log.Info("waiting for the cluster", "reason", last)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-ticker.C:
		}
		c.reload()
	}
}

// reload reads the list of initial members again, because an operator may shorten it before the
// bootstrap. A list that is empty or cannot be read changes nothing.
func (c *Newcomer) reload() {
	if c.Reload == nil {
		return
	}
	if peers, err := c.Reload(); err == nil && len(peers) > 0 {
		c.Peers = peers
	}
}

// attempt asks every peer once. It returns the members with which to bootstrap, or joined if this
// node is a member now. Otherwise the error says what the node waits for.
func (c *Newcomer) attempt(ctx context.Context, client peer.Client) (members []raft.Server,
	joined bool, err error,
) {
	name := peer.NodeName(c.ID)
	first := slices.MinFunc(c.Peers,
		func(a, b InitialMember) int { return strings.Compare(a.Name, b.Name) }).Name
	members = []raft.Server{{ID: c.ID, Address: c.Address}}
	var missing []error
	for _, initial := range c.Peers {
		if initial.Name == name {
			continue
		}
		status, err := c.askPeer(ctx, client, initial)
		switch {
		case err != nil:
			missing = append(missing, fmt.Errorf("%s: %w", initial.Name, err))
			continue
		case status.HasState:
			joined, err := c.join(ctx, client, initial, &status)
			if joined {
				return nil, true, nil
			}
			missing = append(missing, err)
			continue
		case peer.NodeName(status.ID) != initial.Name:
			return nil, false, fmt.Errorf("%s is the address of %s, not of %s", initial.Address,
				peer.NodeName(status.ID), initial.Name)
		}
		members = append(members, raft.Server{ID: status.ID, Address: initial.Address})
	}
	switch {
	case len(missing) > 0:
		return nil, false, errors.Join(missing...)
	case !slices.ContainsFunc(c.Peers, func(p InitialMember) bool { return p.Name == name }):
		return nil, false, fmt.Errorf("none of the peers has a cluster, and %s is not one of them",
			name)
	case name != first:
		return nil, false, fmt.Errorf(
			"waiting for %s to bootstrap the cluster: its name is the first in byte order", first)
	}
	return members, false, nil
}

func (c *Newcomer) askPeer(ctx context.Context, client peer.Client,
	initial InitialMember,
) (peer.Status, error) {
	const timeout = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return peer.AskStatus(ctx, client, raft.Server{Address: initial.Address})
}

// join makes this node a member of the peer's cluster, and reports whether it is one.
func (c *Newcomer) join(ctx context.Context, client peer.Client, initial InitialMember,
	status *peer.Status,
) (bool, error) {
	if _, listed := peer.Find(status.Servers, c.ID); listed {
		return c.isMember(ctx, client, initial, status)
	}
	request, err := json.Marshal(membership.JoinRequest{
		ID: c.ID, Address: c.Address,
		Version: fsm.Version,
	})
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, membership.ChangeTimeout)
	defer cancel()
	if _, err := client.Call(ctx, raft.Server{Address: initial.Address}, peer.MethodJoin,
		request); err != nil {
		return false, fmt.Errorf("join by way of %s: %w", initial.Name, err)
	}
	return true, nil
}

// isMember reports whether a committed configuration lists this node. If the peer's log has only
// the bootstrap entry, the configuration is that of the bootstrap, which counts as committed.
// Otherwise the leader decides. If the result is false, the error says why.
func (c *Newcomer) isMember(ctx context.Context, client peer.Client, initial InitialMember,
	status *peer.Status,
) (bool, error) {
	const bootstrapIndex = 1 // the index of the first configuration
	if status.LastIndex <= bootstrapIndex {
		return true, nil
	}
	const timeout = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := client.Call(ctx, raft.Server{Address: initial.Address}, peer.MethodIsMember,
		[]byte(c.ID))
	if err != nil {
		return false, fmt.Errorf("%s lists this node, but no leader has confirmed it: %w",
			initial.Name, err)
	}
	if string(body) != "true" {
		return false, fmt.Errorf(
			"%s lists this node, but the leader does not: a change of the members is under way",
			initial.Name)
	}
	return true, nil
}
