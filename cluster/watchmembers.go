package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/membership"
	"holdfast/cluster/peer"
	"holdfast/fsm"
	"holdfast/internal/backoff"
)

// lastSeen is what memberWatch saw last, so that it logs and counts only changes.
type lastSeen struct {
	clockIsOff bool
	servers    []raft.Server
	leader     raft.ServerID
	broker     string // error of sameBroker.check
}

// memberWatch polls the other members. It updates the cluster clock, logs changes, reports this
// node's new address, and ends the process if this node was removed. run belongs to one goroutine;
// the other methods are safe for concurrent use.
type memberWatch struct {
	self    raft.Server          // id and address of this member
	servers func() []raft.Server // all members
	leader  func() raft.ServerID // that this node hears of; empty for none
	applied func() uint64        // index of the last entry in the state
	client  peer.Client
	// how far the wall clock may be off the cluster clock without a warning
	maxClockOffset time.Duration
	election       time.Duration // election timeout
	lastIndex      func() uint64 // of the log
	exit           func(error)   // ends the process
	leaderChanged  func()        // is called when another member leads than before
	log            *slog.Logger

	sameBroker *sameBroker

	peers   *peer.Statuses
	clock   *clusterClock
	serving func() bool       // this node leads and accepts commands
	start   func(func()) bool // starts a goroutine that the node waits for
}

// run polls every peer.PollInterval, or every catchUpInterval while this node is behind, until the
// context ends.
func (w *memberWatch) run(ctx context.Context) {
	const catchUpInterval = peer.PollInterval / 4
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last lastSeen
	isolated := 0
	for {
		w.poll(ctx)
		w.logClock(&last)
		w.logMembers(&last)
		w.sameBroker.update(time.Now())
		w.logBroker(&last)
		w.peers.CompareWithLeader(w.leader(), w.applied())
		if w.behind() {
			timer.Reset(catchUpInterval)
		} else {
			timer.Reset(peer.PollInterval)
		}
		w.announceAddress(ctx)
		if isolated = w.countIsolatedPolls(isolated); isolated >= maxIsolatedPolls {
			w.checkRemoved(ctx)
			isolated = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
	}
}

// poll asks the other members for their status, and logs which members do not answer any more or
// answer again.
func (w *memberWatch) poll(ctx context.Context) {
	answered := w.peers.Poll(ctx, peer.PollInterval)
	earlier, first := w.recordAnswers(answered)
	for _, server := range peer.Others(w.servers(), w.self.ID) {
		_, now := answered[server.ID]
		_, before := earlier[server.ID]
		switch {
		case ctx.Err() != nil:
		case before && !now:
			w.log.Warn("a member does not answer", "id", server.ID, "address", server.Address)
		case now && !before && !first:
			w.log.Info("a member answers", "id", server.ID, "address", server.Address)
		}
	}
	for _, answer := range answered {
		if err := checkRolledBack(w.self.ID, w.lastIndex(), &answer.Status); err != nil {
			w.exit(err)
			return
		}
	}
}

// behind reports whether this node has not yet applied what the leader had applied at the poll
// before the latest one, or was never compared with the leader. It is false on a leader that
// accepts commands.
func (w *memberWatch) behind() bool { return w.peers.IsBehind() && !w.serving() }

// recordAnswers stores the answers to this poll and returns the answers to the previous one. first
// says that there was no previous poll.
func (w *memberWatch) recordAnswers(answered map[raft.ServerID]peer.Answer) (
	before map[raft.ServerID]peer.Answer, first bool,
) {
	before, first = w.peers.Keep(answered)
	w.clock.update(answered, w.servers(), w.self.ID)
	return before, first
}

// waitForClockQuorum waits until the wall clocks of a majority of the voters, this node included,
// are known. Without them a leader could not judge a client's timestamp.
func (w *memberWatch) waitForClockQuorum(ctx context.Context) error {
	const retry = 50 * time.Millisecond
	for w.clock.now() == 0 {
		// The answers are not given to peers.Keep: run compares only those of its own polls.
		if w.clock.update(w.peers.Poll(ctx, w.election), w.servers(),
			w.self.ID); w.clock.now() != 0 {
			break
		}
		if !backoff.Pause(ctx, retry) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// clockOffset returns how far this node's wall clock is ahead of the cluster's, and an error when
// that is more than it may be.
func (w *memberWatch) clockOffset() (time.Duration, error) {
	offset := w.clock.ahead()
	if offset.Abs() > w.maxClockOffset {
		return offset, fmt.Errorf(
			"wall clock differs from the cluster clock by %v (limit %v): synchronize this host's clock", offset, w.maxClockOffset)
	}
	return offset, nil
}

// logClock logs once that the clock is off, and once that it is right again.
func (w *memberWatch) logClock(last *lastSeen) {
	offset, err := w.clockOffset()
	switch off := err != nil; {
	case off && !last.clockIsOff:
		w.log.Warn("wall clock offset above limit", "offset", offset, "limit", w.maxClockOffset)
	case !off && last.clockIsOff:
		w.log.Info("wall clock offset back within limit", "offset", offset)
	}
	last.clockIsOff = err != nil
}

// logBroker logs that this node is at another broker than the others, and that it is not any more.
func (w *memberWatch) logBroker(last *lastSeen) {
	now := ""
	if err := w.sameBroker.check(); err != nil {
		now = err.Error()
	}
	switch {
	case now != "" && last.broker == "":
		w.log.Error("this node would not answer the clients of the others", "error", now)
	case now == "" && last.broker != "":
		w.log.Info("this node is at the same broker as the others")
	}
	last.broker = now
}

// logMembers logs the members when they have changed, and calls leaderChanged when another one
// leads.
func (w *memberWatch) logMembers(last *lastSeen) {
	if leader := w.leader(); leader != "" && leader != last.leader {
		last.leader = leader
		w.leaderChanged()
	}
	servers := w.servers()
	if slices.Equal(servers, last.servers) {
		return
	}
	last.servers = slices.Clone(servers)
	w.log.Info("the members are now", "servers", servers)
}

// announceAddress asks the leader, through any member that answers, to change this member's address
// if the members know another one. A leader changes its own: see Membership.UpdateOwnAddress.
func (w *memberWatch) announceAddress(ctx context.Context) {
	servers := w.servers()
	server, member := peer.Find(servers, w.self.ID)
	if !member || server.Address == w.self.Address || w.serving() {
		return
	}
	request, err := json.Marshal(membership.JoinRequest{
		ID: w.self.ID, Address: w.self.Address,
		Version: fsm.Version,
	})
	if err != nil {
		return // strings always encode
	}
	w.callAnyMember(ctx, peer.MethodJoin, request)
}

// callAnyMember sends a request to all other members and returns the first successful response, or
// nil if all calls fail, at the latest after peer.PollInterval. A call does not name the id of the
// called member, so that a node that was removed may make it, too. Such a call can only have a
// method that is peer.Method.Public.
func (w *memberWatch) callAnyMember(ctx context.Context, method peer.Method,
	request []byte,
) []byte {
	ctx, cancel := context.WithTimeout(ctx, peer.PollInterval)
	defer cancel()
	others := peer.Others(w.servers(), w.self.ID)
	answers := make(chan []byte, len(others))
	for _, server := range others {
		started := w.start(func() {
			// No ID: a member refuses a call that names its id if the caller was removed.
			body, err := w.client.Call(ctx, raft.Server{Address: server.Address}, method, request)
			if err == nil && body == nil {
				body = []byte{}
			}
			if err != nil {
				body = nil
			}
			answers <- body
		})
		if !started {
			answers <- nil
		}
	}
	for range others {
		if body := <-answers; body != nil {
			return body
		}
	}
	return nil
}

// maxIsolatedPolls is how many consecutive polls a node may be without a leader, or missing from
// its own configuration, before it asks whether it was removed.
const maxIsolatedPolls = 3

// countIsolatedPolls returns count+1 if this node has no leader or is missing from its own
// configuration, otherwise 0.
func (w *memberWatch) countIsolatedPolls(count int) int {
	servers := w.servers()
	_, member := peer.Find(servers, w.self.ID)
	if len(servers) > 0 && !member || w.leader() == "" {
		return count + 1
	}
	return 0
}

// ErrRemoved says that this node is no longer a member.
var ErrRemoved = errors.New("this node was removed from the cluster: to rejoin, stop it, empty its data folder, and restart it")

// checkRemoved ends the process when the leader, asked through any member that answers, says that
// this node is no member.
func (w *memberWatch) checkRemoved(ctx context.Context) {
	if string(w.callAnyMember(ctx, peer.MethodIsMember, []byte(w.self.ID))) == "false" {
		w.exit(ErrRemoved)
	}
}
