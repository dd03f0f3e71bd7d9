package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/membership"
	"holdfast/cluster/peer"
	"holdfast/fsm"
)

// membersLog is what the log and the metrics were last told of the members.
type membersLog struct {
	clockIsOff bool
	servers    []raft.Server
	leader     raft.ServerID
}

// watchMembers asks the other members every second.
func (n *Node) watchMembers(ctx context.Context) {
	const impatient = peer.PollInterval / 4 // until this node has caught up
	timer := time.NewTimer(0)
	defer timer.Stop()
	var logged membersLog
	alone := 0
	for {
		n.poll(ctx)
		n.logClock(&logged)
		n.logMembers(&logged)
		_, leader := n.raft.LeaderWithID()
		n.peers.CompareWithLeader(leader, n.replica.Status().Index)
		if n.Behind() {
			timer.Reset(impatient)
		} else {
			timer.Reset(peer.PollInterval)
		}
		n.announceAddress(ctx)
		if alone = n.countAlone(alone); alone >= aloneRounds {
			n.checkRemoved(ctx)
			alone = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
	}
}

// poll asks the other members for their status, and logs who does not answer any more, or answers again.
func (n *Node) poll(ctx context.Context) {
	answered := n.peers.Poll(ctx, peer.PollInterval)
	last, first := n.noteAnswers(answered)
	for _, server := range n.servers() {
		_, now := answered[server.ID]
		_, before := last[server.ID]
		switch {
		case server.ID == n.config.ID || ctx.Err() != nil:
		case before && !now:
			n.world.Log.Warn("a member does not answer", "id", server.ID, "address", server.Address)
		case now && !before && !first:
			n.world.Log.Info("a member answers", "id", server.ID, "address", server.Address)
		}
	}
}

// noteAnswers notes what members answered to a poll, and returns what they answered to the last one. first says that there was none.
func (n *Node) noteAnswers(answered map[raft.ServerID]peer.Answer) (before map[raft.ServerID]peer.Answer, first bool) {
	before, first = n.peers.Refresh(answered)
	n.clock.update(answered, n.servers(), n.config.ID)
	return before, first
}

// ClockOffset returns how far this node's wall clock is ahead of the cluster's, and an error when that is more than it may be.
func (n *Node) ClockOffset() (time.Duration, error) {
	offset := n.clock.ahead()
	if offset.Abs() > n.config.MaxClockOffset {
		return offset, fmt.Errorf("this node's clock is %v off the other members': clients refuse what is more than a minute ahead", offset)
	}
	return offset, nil
}

// logClock logs once that the clock is off, and once that it is right again.
func (n *Node) logClock(logged *membersLog) {
	offset, err := n.ClockOffset()
	switch off := err != nil; {
	case off && !logged.clockIsOff:
		n.world.Log.Warn("this node's clock is off the other members'", "offset", offset, "most", n.config.MaxClockOffset)
	case !off && logged.clockIsOff:
		n.world.Log.Info("this node's clock is right again", "offset", offset)
	}
	logged.clockIsOff = err != nil
}

// logMembers logs what changed among the members that this one knows, and counts their leaders.
func (n *Node) logMembers(logged *membersLog) {
	if _, leader := n.raft.LeaderWithID(); leader != "" && leader != logged.leader {
		logged.leader = leader
		n.world.Metrics.leaderChanges.Inc()
	}
	servers := n.servers()
	if slices.Equal(servers, logged.servers) {
		return
	}
	logged.servers = slices.Clone(servers)
	n.world.Log.Info("the members are now", "servers", servers)
}

// announceAddress tells the leader that this member is at another address than the members know.
func (n *Node) announceAddress(ctx context.Context) {
	servers := n.servers()
	server, member := peer.Find(servers, n.config.ID)
	if !member || server.Address == n.config.Address || n.serving() {
		return
	}
	request, err := json.Marshal(membership.JoinRequest{ID: n.config.ID, Address: n.config.Address, Version: fsm.Version})
	if err != nil {
		return // strings always encode
	}
	n.askAnyone(ctx, peer.MethodJoin, request)
}

// askAnyone asks all other members at once, as one that need not be a member, and returns the first good answer, nil when there
// is none within the time of a poll.
func (n *Node) askAnyone(ctx context.Context, method peer.Method, request []byte) []byte {
	ctx, cancel := context.WithTimeout(ctx, peer.PollInterval)
	defer cancel()
	servers := n.servers()
	answers := make(chan []byte, len(servers))
	asked := 0
	for _, server := range servers {
		if server.ID == n.config.ID {
			continue
		}
		asked++
		n.workers.Go(func() {
			// Without the id: a member that knows that this node was removed does not talk to it otherwise.
			body, err := n.world.Peers.Call(ctx, raft.Server{Address: server.Address}, method, request)
			if err == nil && body == nil {
				body = []byte{}
			}
			if err != nil {
				body = nil
			}
			answers <- body
		})
	}
	for range asked {
		if body := <-answers; body != nil {
			return body
		}
	}
	return nil
}

// aloneRounds is how many polls in a row a node has to hear of no leader before it asks whether it still is a member.
const aloneRounds = 3

// countAlone counts the polls in a row in which this node heard of no leader, or did not find itself among the members.
func (n *Node) countAlone(rounds int) int {
	servers := n.servers()
	_, member := peer.Find(servers, n.config.ID)
	_, leader := n.raft.LeaderWithID()
	if len(servers) > 0 && !member || leader == "" {
		return rounds + 1
	}
	return 0
}

// ErrRemoved says that this node is no member any more.
var ErrRemoved = fmt.Errorf("this node was removed from the cluster: to let it join anew, stop it, empty its data folder, and start it again")

// checkRemoved ends the process when the leader says that this node is no member.
func (n *Node) checkRemoved(ctx context.Context) {
	if string(n.askAnyone(ctx, peer.MethodMember, []byte(n.config.ID))) == "false" {
		n.world.Exit(ErrRemoved)
	}
}
