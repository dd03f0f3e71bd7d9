package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/cluster/propose"
	"holdfast/fsm"
)

// changeTimeout bounds a change of the members.
const changeTimeout = 15 * time.Second

// joinRequest asks for a node to be added. The names of its fields are part of the protocol between members.
type joinRequest struct {
	ID      raft.ServerID      `json:"id"`
	Address raft.ServerAddress `json:"address"`
	Version uint32             `json:"version"`
}

// Member is a member as operators see it.
type Member struct {
	Node           string             `json:"node"`
	ID             raft.ServerID      `json:"id"`
	Address        raft.ServerAddress `json:"address"`
	State          string             `json:"state"` // leader, follower, candidate or unreachable
	Voter          bool               `json:"voter"`
	CommitIndex    uint64             `json:"commitIndex"`
	TrailsLeaderBy uint64             `json:"trailsLeaderBy"` // entries
}

// Members returns the members with what they say of themselves. The error is ErrNotLeader on any other node than the leader.
func (n *Node) Members(ctx context.Context) ([]Member, error) {
	if err := n.Confirm(ctx); err != nil {
		return nil, err
	}
	return n.MembersAsKnown(ctx), nil
}

// MembersAsKnown returns the members that this node knows, with what they say of themselves now: for when there is no leader
// whose word would count. How far they trail is then counted from the longest log among those that answered.
func (n *Node) MembersAsKnown(ctx context.Context) []Member {
	described := n.peers.Poll(ctx, peer.PollInterval)
	described[n.config.ID] = peer.Answer{Status: n.ownStatus()}
	longest := uint64(0)
	for id := range described {
		longest = max(longest, described[id].LastIndex)
	}
	var members []Member
	for _, server := range n.servers() {
		member := Member{
			Node: peer.NodeName(server.ID), ID: server.ID, Address: server.Address, State: "unreachable",
			Voter: server.Suffrage == raft.Voter, TrailsLeaderBy: longest,
		}
		if d, ok := described[server.ID]; ok && d.State != "shutdown" {
			member.State, member.CommitIndex = d.State, d.Commit
			member.TrailsLeaderBy = longest - d.LastIndex
		}
		members = append(members, member)
	}
	slices.SortFunc(members, func(a, b Member) int { return peer.CompareNames(a.Node, b.Node) })
	return members
}

// handleJoin adds a node on its own request. It starts as a non-voter; autopilot makes it a voter when it has caught up.
func (n *Node) handleJoin(ctx context.Context, caller peer.Caller, body []byte) error {
	var request joinRequest
	if err := json.Unmarshal(body, &request); err != nil || request.ID == "" || request.Address == "" {
		return fmt.Errorf("%w: malformed request to join", peer.ErrRefused)
	}
	// What another member passes on, it has judged.
	if caller.ID == "" && !n.mayJoin(caller, &request) {
		return fmt.Errorf("%w: the certificate does not name the node %s", peer.ErrRefused, peer.NodeName(request.ID))
	}

	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if n.leadership.Load() == nil {
		if caller.ID != "" {
			return peer.ErrNotLeader // it was passed on once
		}
		_, err := n.leaderCall(ctx, peer.MethodJoin, body)
		return err
	}
	return n.add(ctx, request)
}

// mayJoin reports whether a certificate is that of the node which wants to join: it names the node, or the host of its address.
// A name that a member has already is only for whoever has the certificate of that member.
func (n *Node) mayJoin(caller peer.Caller, request *joinRequest) bool {
	name := peer.NodeName(request.ID)
	if caller.Certified(name) {
		return true
	}
	host := peer.HostOf(request.Address)
	for _, server := range n.servers() {
		if peer.NodeName(server.ID) == name {
			host = peer.HostOf(server.Address)
		}
	}
	return caller.Certified(host)
}

// add makes a node a member, after whoever it replaces was removed.
func (n *Node) add(ctx context.Context, request joinRequest) error {
	// A node cannot be asked by anybody who does not reach it. What answers there has to be it.
	asking, cancel := context.WithTimeout(ctx, peer.PollInterval)
	there, err := peer.AskStatus(asking, n.world.Peers, raft.Server{Address: request.Address})
	cancel()
	if err == nil && there.ID != request.ID {
		err = fmt.Errorf("%s does", there.ID)
	}
	if err != nil {
		return fmt.Errorf("%w: %s does not answer at %s, where the others would look for it: %w", peer.ErrRefused, request.ID, request.Address, err)
	}
	if err := n.changing.lock(ctx); err != nil {
		return err
	}
	defer n.changing.unlock()
	if err := n.Confirm(ctx); err != nil {
		return err
	}
	if inForce := n.replica.Status().Version; request.Version < inForce {
		return fmt.Errorf("%w: the cluster uses version %d of the log, and the node knows %d: upgrade it", peer.ErrRefused, inForce, request.Version)
	}
	if _, member := peer.Find(n.servers(), request.ID); there.HasState && !member {
		return fmt.Errorf("%w: %s has a cluster of its own, or had one: its data folder has to be emptied first", peer.ErrRefused, request.ID)
	}
	for _, server := range n.servers() {
		switch {
		case server.ID == request.ID && server.Address == request.Address:
			return nil
		case server.ID == request.ID:
			return n.move(ctx, server, request.Address)
		case server.Address == request.Address || peer.NodeName(server.ID) == peer.NodeName(request.ID):
			kept := n.keptNonVoter(server.ID)
			if err := n.replace(ctx, server); err != nil {
				return err
			}
			if kept { // its successor is, too
				if err := n.keepNonVoter(ctx, request.ID, true); err != nil {
					return err
				}
			}
		}
	}
	n.world.Log.Info("adding a member", "id", request.ID, "address", request.Address)
	return n.changed(ctx, n.raft.AddNonvoter(request.ID, request.Address, 0, changeTimeout))
}

// move gives a member another address.
func (n *Node) move(ctx context.Context, server raft.Server, address raft.ServerAddress) error {
	n.world.Log.Info("a member has moved", "id", server.ID, "from", server.Address, "to", address)
	if server.Suffrage == raft.Voter {
		return n.changed(ctx, n.raft.AddVoter(server.ID, address, 0, changeTimeout))
	}
	return n.changed(ctx, n.raft.AddNonvoter(server.ID, address, 0, changeTimeout))
}

// replace removes the predecessor of a node that comes back without its disk: raft refuses a second id at one address. It does
// so only when quorum stays, and never a member that is alive.
func (n *Node) replace(ctx context.Context, predecessor raft.Server) error {
	asking, cancel := context.WithTimeout(ctx, peer.PollInterval)
	_, err := peer.AskTerm(asking, n.world.Peers, predecessor)
	cancel()
	if err == nil {
		return fmt.Errorf("%w: %s runs at %s: two nodes of one name", peer.ErrRefused, predecessor.ID, predecessor.Address)
	}
	n.world.Log.Warn("removing the predecessor of a node that lost its disk", "id", predecessor.ID, "address", predecessor.Address)
	return n.remove(ctx, predecessor)
}

// remove takes a member out, if a majority of the voters that stay is alive.
func (n *Node) remove(ctx context.Context, server raft.Server) error {
	if server.Suffrage == raft.Voter {
		if err := n.quorumWithout(ctx, server.ID); err != nil {
			return err
		}
	}
	if err := n.changed(ctx, n.raft.RemoveServer(server.ID, 0, changeTimeout)); err != nil {
		return err
	}
	if n.keptNonVoter(server.ID) {
		if err := n.keepNonVoter(ctx, server.ID, false); err != nil {
			n.world.Log.Warn("the member is removed, and still noted as a non-voter", "id", server.ID, "error", err)
		}
	}
	return nil
}

// quorumWithout returns an error when the voters without the one would have no majority that is alive.
func (n *Node) quorumWithout(ctx context.Context, id raft.ServerID) error {
	alive := n.peers.Poll(ctx, peer.PollInterval)
	voters, answering := 0, 0
	for _, server := range n.servers() {
		if server.Suffrage != raft.Voter || server.ID == id {
			continue
		}
		voters++
		if d, ok := alive[server.ID]; ok && d.State != "shutdown" || server.ID == n.config.ID {
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
func (n *Node) changed(ctx context.Context, change raft.IndexFuture) error {
	done := make(chan error, 1)
	n.workers.Go(func() { done <- change.Error() })
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("change the members: %w", changeError(err))
		}
	case <-ctx.Done():
		return fmt.Errorf("change the members: %w: %w", peer.ErrOutcomeUnknown, ctx.Err())
	}
	_, _ = n.Execute(ctx, fsm.Command{Kind: fsm.KindAdvance}) // the change is made; followChange does it otherwise
	return nil
}

// changeError tells what was not done from what may have been.
func changeError(err error) error {
	if propose.OutcomeUnknown(err) && !errors.Is(err, raft.ErrNotVoter) {
		return fmt.Errorf("%w: %w", peer.ErrOutcomeUnknown, err)
	}
	return fmt.Errorf("%w: %w", peer.ErrNotDone, err)
}

// resolve finds a member by its name or its id.
func (n *Node) resolve(nameOrID string) (raft.Server, error) {
	var found []raft.Server
	for _, server := range n.servers() {
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

// AddMember adds the node that listens at the address. voter says whether it votes once it has caught up, or stays a
// non-voter. Only the leader can do it.
func (n *Node) AddMember(ctx context.Context, address raft.ServerAddress, voter bool) error {
	there, err := peer.AskStatus(ctx, n.world.Peers, raft.Server{Address: address})
	if err != nil {
		return err
	}
	if !voter {
		if server, member := peer.Find(n.servers(), there.ID); member && server.Suffrage == raft.Voter {
			return fmt.Errorf("%w: %s is a voter: demote it", peer.ErrRefused, there.ID)
		}
		if err := n.keepNonVoter(ctx, there.ID, true); err != nil {
			return err
		}
	}
	if err := n.add(ctx, joinRequest{ID: there.ID, Address: address, Version: there.Version}); err != nil {
		if _, member := peer.Find(n.servers(), there.ID); !voter && !member {
			_ = n.keepNonVoter(ctx, there.ID, false) // the error that counts is the other
		}
		return err
	}
	if voter && n.keptNonVoter(there.ID) {
		return n.keepNonVoter(ctx, there.ID, false)
	}
	return nil
}

// RemoveMember removes a member by its name or id. The leader hands over before it is removed: the error is ErrNotLeader then,
// and the next leader is to be asked.
func (n *Node) RemoveMember(ctx context.Context, nameOrID string) error {
	return n.changeMember(ctx, nameOrID, n.remove)
}

// Demote makes a voter a non-voter, which it stays until it is added as a voter again.
func (n *Node) Demote(ctx context.Context, nameOrID string) error {
	return n.changeMember(ctx, nameOrID, n.demote)
}

// changeMember finds a member, and changes it while nobody else changes any.
func (n *Node) changeMember(ctx context.Context, nameOrID string, change func(context.Context, raft.Server) error) error {
	server, err := n.memberToChange(ctx, nameOrID)
	if err != nil {
		return err
	}
	if err := n.changing.lock(ctx); err != nil {
		return err
	}
	defer n.changing.unlock()
	return change(ctx, server)
}

// demote takes a voter's vote away, if a majority of the voters that stay is alive.
func (n *Node) demote(ctx context.Context, server raft.Server) error {
	if err := n.quorumWithout(ctx, server.ID); err != nil {
		return err
	}
	if err := n.keepNonVoter(ctx, server.ID, true); err != nil {
		return err
	}
	return n.changed(ctx, n.raft.DemoteVoter(server.ID, 0, changeTimeout))
}

// memberToChange finds a member, and hands over when it is this one.
func (n *Node) memberToChange(ctx context.Context, nameOrID string) (raft.Server, error) {
	if err := n.Confirm(ctx); err != nil {
		return raft.Server{}, err
	}
	server, err := n.resolve(nameOrID)
	if err != nil || server.ID != n.config.ID {
		return server, err
	}
	if err := n.quorumWithout(ctx, server.ID); err != nil {
		return server, err
	}
	if err := n.transferIfLeading(ctx, ""); err != nil {
		return server, err
	}
	return server, peer.ErrNotLeader
}

// keptNonVoter reports whether a member stays a non-voter by the operator's word.
func (n *Node) keptNonVoter(id raft.ServerID) (kept bool) {
	n.View(func(m *fsm.Machine) { kept = m.KeptNonVoter(string(id)) })
	return kept
}

func (n *Node) keepNonVoter(ctx context.Context, id raft.ServerID, keep bool) error {
	if n.replica.Status().Version < fsm.VersionPinNonVoter {
		return fmt.Errorf("%w: every member has to be upgraded before one can be kept a non-voter", peer.ErrRefused)
	}
	command := fsm.Command{Kind: fsm.KindAllowPromotion, Key: []byte(id)}
	if keep {
		command.Kind = fsm.KindPinNonVoter
	}
	result, err := n.Execute(ctx, command)
	if err == nil && result.Code == fsm.CodeError {
		err = fmt.Errorf("%w: %s", peer.ErrRefused, result.Error.Text())
	}
	return err
}

// ctxMutex is a lock that is waited for no longer than a context lasts.
type ctxMutex chan struct{}

func newCtxMutex() ctxMutex { return make(ctxMutex, 1) }

func (t ctxMutex) lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: another change of the cluster is under way: %w", peer.ErrNotDone, ctx.Err())
	}
}

func (t ctxMutex) try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t ctxMutex) unlock() { <-t }
