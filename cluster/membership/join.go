package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// JoinRequest asks for a node to be added. The names of its fields are part of the protocol between
// members.
type JoinRequest struct {
	ID      raft.ServerID      `json:"id"`
	Address raft.ServerAddress `json:"address"`
	// the newest log version that the node's build can apply
	Version uint32 `json:"version"`
}

// HandleJoin adds a node on its own request. It starts as a non-voter; autopilot makes it a voter
// when it has caught up. The error is peer.ErrRefused for a malformed request or a wrong
// certificate, and otherwise as those of Add.
func (m *Membership) HandleJoin(ctx context.Context, caller peer.Caller, body []byte) error {
	var request JoinRequest
	if err := json.Unmarshal(body, &request); err != nil || request.ID == "" ||
		request.Address == "" {
		return fmt.Errorf("%w: malformed request to join", peer.ErrRefused)
	}
	// A member that forwards a request has checked the certificate.
	if caller.ID == "" && !m.mayJoin(caller, &request) {
		return fmt.Errorf("%w: the certificate does not name the node %s", peer.ErrRefused,
			peer.NodeName(request.ID))
	}

	ctx, cancel := context.WithTimeout(ctx, ChangeTimeout)
	defer cancel()
	if !m.env.Serving() {
		if caller.ID != "" {
			return peer.ErrNotLeader // the request was already forwarded once
		}
		_, err := m.env.CallLeader(ctx, peer.MethodJoin, body)
		return err
	}
	return m.add(ctx, request, m.addLocked)
}

// mayJoin reports whether a certificate allows a node to join. A certificate with the node's name
// is accepted. A certificate with a host is accepted if the host is that of the node's address. If
// a member already has the name, the host of that member's address counts instead.
func (m *Membership) mayJoin(caller peer.Caller, request *JoinRequest) bool {
	name := peer.NodeName(request.ID)
	if caller.Certified(name) {
		return true
	}
	host := peer.HostOf(request.Address)
	for _, server := range m.env.Servers() {
		if peer.NodeName(server.ID) == name {
			host = peer.HostOf(server.Address)
		}
	}
	return caller.Certified(host)
}

// add checks a node, takes the lock, and calls change to add the node. It refuses a node in three
// cases: no process with its id answers at its address, it knows too old a log version, or it has
// state and is no member.
func (m *Membership) add(ctx context.Context, request JoinRequest,
	change func(context.Context, JoinRequest) error,
) error {
	// The members must reach the node at this address, and the process that answers must have its
	// id.
	probing, cancel := context.WithTimeout(ctx, peer.PollInterval)
	status, err := peer.AskStatus(probing, m.env.Client, raft.Server{Address: request.Address})
	cancel()
	if err == nil && status.ID != request.ID {
		err = fmt.Errorf("%s answers there", status.ID)
	}
	if err != nil {
		return fmt.Errorf("%w: %s cannot be reached at %s, the address that it gave: %w",
			peer.ErrRefused, request.ID, request.Address, err)
	}
	if err := m.Lock(ctx); err != nil {
		return err
	}
	defer m.Unlock()
	if err := m.env.Confirm(ctx); err != nil {
		return err
	}
	if inForce := m.env.Version(); request.Version < inForce {
		return fmt.Errorf("%w: the cluster uses version %d of the log, and the node knows %d: upgrade it", peer.ErrRefused, inForce, request.Version)
	}
	if _, member := peer.Find(m.env.Servers(), request.ID); status.HasState && !member {
		return fmt.Errorf("%w: %s has a cluster of its own, or had one: its data folder has to be emptied first", peer.ErrRefused, request.ID)
	}
	return change(ctx, request)
}

// addLocked makes a node a non-voter. It removes other members with the node's name or address
// first. If the node is a member already, it only updates its address.
func (m *Membership) addLocked(ctx context.Context, request JoinRequest) error {
	if err := m.removePredecessors(ctx, request); err != nil {
		return err
	}
	if server, member := peer.Find(m.env.Servers(), request.ID); member {
		if server.Address == request.Address {
			return nil
		}
		return m.updateAddress(ctx, server, request.Address)
	}
	m.env.Log.Info("adding a member", "id", request.ID, "address", request.Address)
	return m.await(ctx, m.env.Raft.AddNonvoter(request.ID, request.Address, 0, requestTimeout(ctx)))
}

// removePredecessors removes all other members that have the name or the address of a joining node.
// If one of them is pinned as a non-voter, the joining node is pinned first, so that an interrupted
// attempt does not lose the pin.
func (m *Membership) removePredecessors(ctx context.Context, request JoinRequest) error {
	for _, server := range m.env.Servers() {
		if !request.replaces(server) {
			continue
		}
		if m.isPinnedNonVoter(server) && !m.env.Pinned(request.ID) {
			if err := m.setPinned(ctx, request.ID, true); err != nil {
				return err
			}
		}
		if err := m.removePredecessor(ctx, server); err != nil {
			return err
		}
	}
	return nil
}

// replaces reports whether a member must be removed before the node is added: it has another id,
// and the node's name or address.
func (r *JoinRequest) replaces(server raft.Server) bool {
	return server.ID != r.ID &&
		(server.Address == r.Address || peer.NodeName(server.ID) == peer.NodeName(r.ID))
}

// updateAddress gives a member another address.
func (m *Membership) updateAddress(ctx context.Context, server raft.Server,
	address raft.ServerAddress,
) error {
	m.env.Log.Info("a member has moved", "id", server.ID, "from", server.Address, "to", address)
	if server.Suffrage == raft.Voter {
		return m.await(ctx, m.env.Raft.AddVoter(server.ID, address, 0, requestTimeout(ctx)))
	}
	return m.await(ctx, m.env.Raft.AddNonvoter(server.ID, address, 0, requestTimeout(ctx)))
}

// UpdateOwnAddress changes this leader's address in raft's configuration, if it differs. If another
// membership change is under way, it does nothing: the leader maintenance loop calls it again.
func (m *Membership) UpdateOwnAddress(ctx context.Context) {
	server, member := peer.Find(m.env.Servers(), m.env.Self.ID)
	if !m.env.Serving() || !member || server.Address == m.env.Self.Address {
		return
	}
	if !m.TryLock() {
		return
	}
	defer m.Unlock()
	if err := m.updateAddress(ctx, server, m.env.Self.Address); err != nil {
		m.env.Log.Warn("the new address could not be made known", "error", err)
	}
}

// removePredecessor removes the member that has the name or the address of a joining node: two ids
// must not share a name, and raft refuses two ids at one address. It fails if the remaining voters
// would have no live majority. It also fails if that member runs, even if it answers with an error
// or refuses the connection. A member whose TLS handshake fails counts as one that does not run.
func (m *Membership) removePredecessor(ctx context.Context, predecessor raft.Server) error {
	probing, cancel := context.WithTimeout(ctx, peer.PollInterval)
	_, err := peer.AskTerm(probing, m.env.Client, predecessor)
	cancel()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: the predecessor was not asked: %w", peer.ErrNotDone, err)
	}
	if errors.Is(err, peer.ErrRejected) || !errors.Is(err, peer.ErrUnreachable) {
		return fmt.Errorf("%w: %s runs at %s: two nodes of one name", peer.ErrRefused,
			predecessor.ID, predecessor.Address)
	}
	m.env.Log.Warn("removing the predecessor of a joining node", "id", predecessor.ID, "address",
		predecessor.Address)
	return m.remove(ctx, predecessor)
}
