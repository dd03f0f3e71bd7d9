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

// fakeBroker is how a member is connected to one of several brokers. Its zero value is not connected.
type fakeBroker struct {
	plant *fakePlant
	name  raft.ServerID
}

// fakePlant has brokers that know nothing of each other.
type fakePlant struct {
	mu       sync.Mutex
	places   map[raft.ServerID]string // where each member is
	asked    map[raft.ServerID]uint64
	heard    map[string]map[raft.ServerID]uint64 // by broker
	rejoined map[raft.ServerID]string
}

func (p *fakePlant) move(id raft.ServerID, place string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.places[id] = place
	p.askLocked(id)
}

func (p *fakePlant) askLocked(id raft.ServerID) {
	p.asked[id]++
	place := p.places[id]
	if p.heard[place] == nil {
		p.heard[place] = make(map[raft.ServerID]uint64)
	}
	p.heard[place][id] = p.asked[id]
}

func (b *fakeBroker) Asked() (number uint64, address string) {
	if b.plant == nil {
		return 0, ""
	}
	b.plant.mu.Lock()
	defer b.plant.mu.Unlock()
	return b.plant.asked[b.name], b.plant.places[b.name]
}

func (b *fakeBroker) Heard(node string) uint64 {
	if b.plant == nil {
		return 0
	}
	b.plant.mu.Lock()
	defer b.plant.mu.Unlock()
	return b.plant.heard[b.plant.places[b.name]][raft.ServerID(node)]
}

// Delivered says that no message is under way.
func (b *fakeBroker) Delivered(time.Time) bool { return true }

func (b *fakeBroker) Ask() {
	b.plant.mu.Lock()
	defer b.plant.mu.Unlock()
	b.plant.askLocked(b.name)
}

func (b *fakeBroker) Rejoin(address string) {
	b.plant.mu.Lock()
	b.plant.rejoined[b.name] = address
	b.plant.mu.Unlock()
	b.plant.move(b.name, address)
}

// startPlant starts three members at one broker.
func startPlant(t *testing.T) (*fakePlant, []*member) {
	plant := &fakePlant{
		places: map[raft.ServerID]string{}, asked: map[raft.ServerID]uint64{},
		heard: map[string]map[raft.ServerID]uint64{}, rejoined: map[raft.ServerID]string{},
	}
	for _, id := range []raft.ServerID{"n1", "n2", "n3"} {
		plant.move(id, "a:1883")
	}
	return plant, startCluster(t, 3, func(c *Config, e *Environment) {
		e.Broker = &fakeBroker{plant, c.ID}
	})
}

// † A leader that is alone at another broker says so, hands over, and follows the others. Nobody follows it.
func TestLeaderAloneAtAnotherBrokerHandsOver(t *testing.T) {
	plant, members := startPlant(t)
	old := leader(t, members...)
	old.must(t, set("k", "v"))
	if err := old.Status().OtherBroker; err != nil {
		t.Fatal(err)
	}
	plant.move(old.ID(), "b:1883")
	testwait.Until(t, "it says that it is alone", func() bool {
		return errors.Is(old.Status().OtherBroker, ErrOtherBroker)
	})
	others := slices.DeleteFunc(slices.Clone(members), func(m *member) bool { return m == old })
	next := leader(t, others...)
	testwait.Until(t, "all are at one broker", func() bool {
		return !slices.ContainsFunc(members, func(m *member) bool { return m.Status().OtherBroker != nil })
	})
	testwait.Until(t, "the leader hears all", func() bool { return len(next.Status().Apart) == 0 })
	plant.mu.Lock()
	defer plant.mu.Unlock()
	if len(plant.rejoined) != 1 || plant.rejoined[old.ID()] != "a:1883" {
		t.Errorf("who went where: %v", plant.rejoined)
	}
}

// A follower that is alone at another broker says so, and goes to the leader's.
func TestFollowerAtAnotherBrokerGoesToTheLeaders(t *testing.T) {
	plant, members := startPlant(t)
	first := leader(t, members...)
	follower := members[0]
	if follower == first {
		follower = members[1]
	}
	plant.move(follower.ID(), "b:1883")
	testwait.Until(t, "it went to the leader's broker", func() bool {
		plant.mu.Lock()
		defer plant.mu.Unlock()
		return plant.rejoined[follower.ID()] == "a:1883"
	})
	testwait.Until(t, "it is where the others are", func() bool {
		return follower.Status().OtherBroker == nil && len(first.Status().Apart) == 0
	})
	if first.Status().OtherBroker != nil || !first.leadsForTest() {
		t.Error("the leader changed because of one follower")
	}
}
