package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// ErrOtherBroker says that this member is at another broker than the others: clients of theirs would
// not be answered by it.
var ErrOtherBroker = errors.New("not at the same broker as the others")

const (
	// unheardLimit is how long a question must be unheard until its member counts as one that is at
	// another broker.
	unheardLimit = 4 * time.Second
	// rejoinInterval is the least time between two attempts to go to another broker, or to hand the
	// leadership over to those who are at another one.
	rejoinInterval = 30 * time.Second
)

// Broker is how the front end of a member is connected to its broker. It is safe for concurrent use.
//
// Each member publishes a question on the request topic now and then. The leader receives them, as it
// receives the clients' requests. So a question that the broker has acknowledged, and that the leader
// does not get, was given to another broker.
type Broker interface {
	// Asked returns the number of the latest question that the broker has acknowledged, and the
	// address of that broker. Numbers grow. 0 is none.
	Asked() (number uint64, address string)
	// Heard returns the largest number of a question of a node that has arrived here; 0 is none.
	Heard(node string) uint64
	// Delivered reports whether all that the broker had received before the moment has arrived here.
	Delivered(moment time.Time) bool
	// Ask publishes a question soon.
	Ask()
	// Rejoin ends the session, and connects to the address if it is one of those that are configured,
	// or to the next of them. It does nothing if there is only one.
	Rejoin(address string)
}

// sameBroker finds out whether the members are at one broker. update belongs to one goroutine; the
// other methods are safe for concurrent use.
type sameBroker struct {
	id      raft.ServerID
	broker  Broker
	peers   *peer.Statuses
	servers func() []raft.Server
	leader  func() raft.ServerID
	serving func() bool

	rejoined time.Time // when this member was last told to go to another broker; zero for never

	questions map[raft.ServerID]question // of the leader: the members' questions

	mu    sync.Mutex
	heard map[raft.ServerID]peer.Hearing // of the leader
	alone bool                           // of the leader: most voters are at another broker
	err   error                          // wraps ErrOtherBroker; nil if this member is where the others are
}

// question is a question that has not arrived yet when it was seen first.
type question struct {
	number uint64
	since  time.Time
}

// update is called after each poll of the other members.
func (b *sameBroker) update(now time.Time) {
	if b.serving() {
		b.listen(now)
		return
	}
	b.follow(now)
}

// listen compares what the members have asked with what has arrived.
func (b *sameBroker) listen(now time.Time) {
	voters, apart := 0, 0
	questions, hearings := make(map[raft.ServerID]question), make(map[raft.ServerID]peer.Hearing)
	var places []string
	for _, server := range b.servers() {
		votes := server.Suffrage == raft.Voter
		if votes {
			voters++
		}
		status, answered := b.peers.Of(server.ID)
		if server.ID == b.id || !answered || !status.BrokerUp || status.Question == 0 {
			continue
		}
		heard := b.broker.Heard(peer.NodeName(server.ID))
		asked, known := b.questions[server.ID]
		if !known || heard >= asked.number {
			asked = question{status.Question, now}
		}
		questions[server.ID] = asked
		hearings[server.ID] = b.judge(heard, asked, now)
		if votes && hearings[server.ID] == peer.Elsewhere {
			apart++
			places = append(places, fmt.Sprintf("%s at %s", peer.NodeName(server.ID), status.Broker))
		}
	}
	b.questions = questions
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard, b.alone, b.err = hearings, apart > 0 && voters-apart <= voters/2, nil
	if b.alone {
		_, own := b.broker.Asked()
		b.err = fmt.Errorf("%w: this node leads at %s, and does not hear %s",
			ErrOtherBroker, own, strings.Join(places, ", "))
	}
}

// judge says whether a question has arrived. A broker may need a while to pass a message on, and a
// queue may be long.
func (b *sameBroker) judge(heard uint64, asked question, now time.Time) peer.Hearing {
	switch {
	case heard >= asked.number:
		return peer.Heard
	case now.Sub(asked.since) >= unheardLimit && b.broker.Delivered(asked.since.Add(unheardLimit/2)):
		return peer.Elsewhere
	default:
		return peer.Unheard
	}
}

// follow does what the leader's answer asks for.
func (b *sameBroker) follow(now time.Time) {
	b.questions = nil // what arrives here now says nothing
	id := b.leader()
	status, answered := b.peers.Of(id)
	number, own := b.broker.Asked()
	b.mu.Lock()
	b.heard, b.alone = nil, false
	rejoin := false
	switch hearing := status.Heard[b.id]; {
	case number == 0 || answered && hearing == peer.Heard:
		b.err = nil
	case answered && hearing == peer.Elsewhere:
		b.err = fmt.Errorf("%w: the leader %s at %s does not hear this node at %s",
			ErrOtherBroker, peer.NodeName(id), status.Broker, own)
		rejoin = !status.Alone && (b.rejoined.IsZero() || now.Sub(b.rejoined) >= rejoinInterval)
	}
	b.mu.Unlock()
	switch {
	case rejoin:
		b.rejoined = now
		b.broker.Rejoin(status.Broker)
	case answered && status.Heard[b.id] > peer.Heard:
		b.broker.Ask()
	}
}

// state returns what a member says of itself as the leader: which members it hears, and whether most
// voters are at another broker. The caller must not change the map.
func (b *sameBroker) state() (heard map[raft.ServerID]peer.Hearing, alone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heard, b.alone
}

// check returns an error that wraps ErrOtherBroker if this member is at another broker than the
// others. As the leader it is where most voters are.
func (b *sameBroker) check() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// apart returns the members that the leader knows to be at another broker.
func (b *sameBroker) apart() (members []raft.ServerID) {
	heard, _ := b.state()
	for _, server := range b.servers() {
		if heard[server.ID] == peer.Elsewhere {
			members = append(members, server.ID)
		}
	}
	return members
}
