package cluster

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// ErrOtherBroker says that this member is at another broker than the others: clients of theirs
// would not be answered by it.
var ErrOtherBroker = errors.New("not at the same broker as the others")

const (
	// unheardLimit is how long a question must be unheard until it counts as lost.
	unheardLimit = 3 * time.Second
	// lostQuestions is how many questions of a member, one after the other, must be lost until it
	// counts as one that is at another broker. The member may have published the first one before
	// the leader's session subscribed.
	lostQuestions = 2
	// rejoinInterval is the least time between two attempts to go to another broker, or to hand the
	// leadership over to those who are at another one.
	rejoinInterval = 30 * time.Second
)

// Broker is how the front end of a member is connected to its broker. It is safe for concurrent
// use.
//
// Each member publishes a question on the request topic now and then. The leader receives them, as
// it receives the clients' requests. So a question that the broker has acknowledged, and that the
// leader does not get, was given to another broker.
type Broker interface {
	// Asked returns a random number that stands for the latest question, 0 unless the broker has
	// acknowledged it, and at which place of its list of addresses the broker is, from 0.
	Asked() (question uint64, place int)
	// Heard reports whether a question of a member has arrived here lately, after DeliveringSince.
	Heard(question uint64) bool
	// Delivered reports whether all that the broker had received before the moment has arrived
	// here.
	Delivered(moment time.Time) bool
	// DeliveringSince returns when the session that receives the questions began.
	DeliveringSince() time.Time
	// Ask publishes a question soon.
	Ask()
	// Rejoin ends the session, and connects to the address at this place, if it was at another one.
	Rejoin(place int)
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

	// when this member was last told to go to another broker; zero for never
	rejoined  time.Time
	questions map[raft.ServerID]*question // of the leader: the members' questions

	mu    sync.Mutex
	heard map[raft.ServerID]peer.Hearing // of the leader
	// of the leader: more voters are at another broker than at its own
	alone bool
	// wraps ErrOtherBroker; nil if this member is where the others are
	err error
}

// question is the question of a member for which the leader waits.
type question struct {
	number uint64
	since  time.Time // when the leader learned of it
	lost   int       // how many questions were lost, one after the other, before this one
}

// update is called after each poll of the other members.
func (b *sameBroker) update(now time.Time) {
	if b.serving() {
		b.listen(now)
		return
	}
	b.follow(now)
}

// listen finds out, for each member, whether the leader receives the questions that the member's
// broker has acknowledged.
func (b *sameBroker) listen(now time.Time) {
	since := b.broker.DeliveringSince()
	questions, hearings := make(map[raft.ServerID]*question), make(map[raft.ServerID]peer.Hearing)
	// voters that answer: at this broker, and at others by place
	together, elsewhere := 1, make(map[int]int)
	for _, server := range b.servers() {
		status, answered := b.peers.Of(server.ID)
		if server.ID == b.id || !answered || !status.BrokerUp || status.Question == 0 {
			continue
		}
		asked := b.questions[server.ID]
		if asked == nil || asked.since.Before(since) {
			asked = &question{number: status.Question, since: now}
		}
		questions[server.ID] = asked
		hearings[server.ID] = b.judge(asked, status.Question, now)
		switch {
		case server.Suffrage != raft.Voter:
		case hearings[server.ID] == peer.Elsewhere:
			elsewhere[status.Place]++
		default:
			together++
		}
	}
	b.questions = questions
	_, own := b.broker.Asked()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard, b.alone, b.err = hearings, false, nil
	for place, voters := range elsewhere {
		if voters > together || voters == together && place < own {
			b.alone = true
			b.err = fmt.Errorf(
				"%w: this node leads at address %d of broker.addresses, and %d voters are at address %d",
				ErrOtherBroker, own+1, voters, place+1)
		}
	}
}

// judge says whether the questions of a member arrive. A broker may need a while to pass one on,
// and a queue may be long. newest is the member's latest question.
func (b *sameBroker) judge(asked *question, newest uint64, now time.Time) peer.Hearing {
	switch {
	case b.broker.Heard(asked.number) || b.broker.Heard(newest):
		*asked = question{number: newest, since: now}
		return peer.Heard
	case newest != asked.number && now.Sub(asked.since) >= unheardLimit &&
		b.broker.Delivered(asked.since.Add(unheardLimit/2)):
		*asked = question{number: newest, since: now, lost: asked.lost + 1}
	}
	if asked.lost >= lostQuestions {
		return peer.Elsewhere
	}
	return peer.Unheard
}

// follow does what the leader's answer asks for.
func (b *sameBroker) follow(now time.Time) {
	b.questions = nil // what arrives here now says nothing
	id := b.leader()
	status, answered := b.peers.Of(id)
	question, own := b.broker.Asked()
	b.mu.Lock()
	b.heard, b.alone = nil, false
	rejoin := false
	switch hearing := status.Heard[b.id]; {
	case question == 0 || answered && hearing == peer.Heard:
		b.err = nil
	case answered && hearing == peer.Elsewhere:
		b.err = fmt.Errorf("%w: the leader %s, at address %d of broker.addresses, does not hear this node at address %d",
			ErrOtherBroker, peer.NodeName(id), status.Place+1, own+1)
		rejoin = !status.Alone && now.Sub(b.rejoined) >= rejoinInterval
	}
	b.mu.Unlock()
	switch {
	case rejoin:
		b.rejoined = now
		b.broker.Rejoin(status.Place)
	case answered && status.Heard[b.id] > peer.Heard:
		b.broker.Ask()
	}
}

// state returns what a member says of itself as the leader: which members it hears, and whether
// more voters are at another broker. The caller must not change the map.
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
