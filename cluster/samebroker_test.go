package cluster

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/internal/testwait"
)

// fakeBroker is how a member is connected to one of several brokers. Its zero value is not
// connected.
type fakeBroker struct {
	plant *fakePlant
	name  raft.ServerID
}

// fakePlant has brokers that know nothing of each other.
type fakePlant struct {
	mu        sync.Mutex
	questions uint64
	places    map[raft.ServerID]int // at which broker each member is
	asked     map[raft.ServerID]uint64
	given     map[uint64]int // to which broker a question was given
	rejoined  map[raft.ServerID]int
	began     map[raft.ServerID]time.Time
}

func (p *fakePlant) move(id raft.ServerID, place int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.places[id], p.began[id] = place, time.Now()
	p.askLocked(id)
}

func (p *fakePlant) askLocked(id raft.ServerID) {
	p.questions++
	p.asked[id], p.given[p.questions] = p.questions, p.places[id]
}

func (b *fakeBroker) Asked() (question uint64, place int) {
	if b.plant == nil {
		return 0, 0
	}
	b.plant.mu.Lock()
	defer b.plant.mu.Unlock()
	return b.plant.asked[b.name], b.plant.places[b.name]
}

func (b *fakeBroker) Heard(question uint64) bool {
	if b.plant == nil {
		return false
	}
	b.plant.mu.Lock()
	defer b.plant.mu.Unlock()
	place, known := b.plant.given[question]
	return known && place == b.plant.places[b.name]
}

// Delivered says that no message is under way.
func (b *fakeBroker) Delivered(time.Time) bool { return true }

func (b *fakeBroker) DeliveringSince() time.Time {
	if b.plant == nil {
		return time.Time{}
	}
	b.plant.mu.Lock()
	defer b.plant.mu.Unlock()
	return b.plant.began[b.name]
}

func (b *fakeBroker) Ask() {
	b.plant.mu.Lock()
	defer b.plant.mu.Unlock()
	b.plant.askLocked(b.name)
}

func (b *fakeBroker) Rejoin(place int) {
	b.plant.mu.Lock()
	b.plant.rejoined[b.name] = place
	b.plant.mu.Unlock()
	b.plant.move(b.name, place)
}

// startPlant starts members at the first broker.
func startPlant(t *testing.T, size int) (*fakePlant, []*member) {
	plant := &fakePlant{
		places: map[raft.ServerID]int{}, asked: map[raft.ServerID]uint64{}, given: map[uint64]int{},
		rejoined: map[raft.ServerID]int{}, began: map[raft.ServerID]time.Time{},
	}
	for _, id := range []raft.ServerID{"n1", "n2", "n3"}[:size] {
		plant.move(id, 0)
	}
	return plant, startCluster(t, size, func(c *Config, e *Environment) {
		e.Broker = &fakeBroker{plant, c.ID}
	})
}

// awaitTogether waits until all members are at one broker. It returns which members have moved by
// Rejoin, and to which broker.
func (p *fakePlant) awaitTogether(t *testing.T, members []*member) map[raft.ServerID]int {
	t.Helper()
	testwait.Until(t, "all are at one broker", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, m := range members {
			if p.places[m.ID()] != p.places[members[0].ID()] || m.Status().OtherBroker != nil {
				return false
			}
		}
		return true
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rejoined
}

// † A leader that is alone at another broker says so, hands over, and follows the others. Nobody
// follows it.
func TestLeaderAloneAtAnotherBrokerHandsOver(t *testing.T) {
	plant, members := startPlant(t, 3)
	old := leader(t, members...)
	old.must(t, set("k", "v"))
	if err := old.Status().OtherBroker; err != nil {
		t.Fatal(err)
	}
	plant.move(old.ID(), 1)
	testwait.Until(t, "it says that it is alone", func() bool {
		return errors.Is(old.Status().OtherBroker, ErrOtherBroker)
	})
	next := leader(t, slices.DeleteFunc(slices.Clone(members),
		func(m *member) bool { return m == old })...)
	if went := plant.awaitTogether(t, members); len(went) != 1 || went[old.ID()] != 0 {
		t.Errorf("who went where: %v", went)
	}
	testwait.Until(t, "the leader hears all", func() bool { return len(next.Status().Apart) == 0 })
}

// A follower that is alone at another broker says so, and goes to the leader's. So do two that are
// at different ones.
func TestFollowersAtOtherBrokersGoToTheLeaders(t *testing.T) {
	plant, members := startPlant(t, 3)
	first := leader(t, members...)
	place := 1
	for _, m := range members {
		if m != first {
			plant.move(m.ID(), place)
			place++
		}
	}
	if went := plant.awaitTogether(t, members); len(went) != 2 || plant.places[first.ID()] != 0 {
		t.Errorf("who went where: %v", went)
	}
	if !first.leadsForTest() {
		t.Error("the leader changed")
	}
}

// Of two members at two brokers, both go to the first one of the list, and stay there.
func TestTwoMembersMeetAtTheFirstAddress(t *testing.T) {
	plant, members := startPlant(t, 2)
	first := leader(t, members...)
	plant.move(first.ID(), 1)
	if went := plant.awaitTogether(t, members); len(went) != 1 || went[first.ID()] != 0 {
		t.Errorf("who went where: %v", went)
	}
}
