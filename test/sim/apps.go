package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	store "holdfast/client"
	"holdfast/fsm"
	"holdfast/test/sim/schedule"
)

// Apps are processes that use package client as users do: they hold a lock in turn and count under
// its protection, and they follow keys. What they count and what they follow is compared with the
// state.
const (
	appLock    = "app/lock"
	appCounter = "app/counter"
	appFollows = "r/*" // the keys that workload's registers write
)

// apps are the apps of a simulation.
type apps struct {
	sim     *simulation
	over    chan struct{} // closed when they are to end
	counted counted
	workers []*app
}

// app is one process with a client.
type app struct {
	apps   *apps
	id     string
	store  *store.Client
	random *rand.Rand
	stack  *stack
	follow *store.Follower // nil until the store has accepted it
	done   chan struct{}
}

// counted is what the apps know of the counter. Its methods do not block.
type counted struct {
	mu      schedule.Mutex
	holder  *store.Lock    // who has the lock, as it knows
	by      string         // id of the holder
	set     map[int]string // by acknowledged value: who set it
	unknown map[int]bool   // values of which it is not known whether they were set
}

// startApps starts apps that hold a lock, and one that also follows keys.
func (s *simulation) startApps() *apps {
	a := &apps{
		sim: s, over: make(chan struct{}),
		counted: counted{set: make(map[int]string), unknown: make(map[int]bool)},
	}
	for i := range 3 {
		id := fmt.Sprintf("app-%d", i+1)
		if s.config.without(id) {
			continue
		}
		w := &app{
			apps: a, id: id, random: rand.New(rand.NewPCG(s.seed, 500+uint64(i))),
			done: make(chan struct{}),
		}
		a.workers = append(a.workers, w)
		s.load.Go(func() {
			defer close(w.done)
			w.run(i == 0)
		})
	}
	return a
}

// run connects the app, and works until the apps are to end. The client stays connected.
func (w *app) run(follows bool) {
	w.stack = w.apps.sim.network.newStack(w.id)
	for w.store == nil && !w.ended() {
		connected, err := store.Connect(context.Background(), store.Config{
			Addresses: []string{"mqtt://" + w.apps.sim.broker.address}, ClientID: w.id,
			Timeout:   3 * time.Second,
			KeepAlive: 3 * time.Second, WatchRenewal: 3 * time.Second,
			FollowRefresh: time.Hour, // only gaps make it read again
			Dial: func(ctx context.Context, address string) (net.Conn, error) {
				return w.stack.DialBroker(ctx, address)
			},
		})
		if err == nil {
			w.store = connected
		} else {
			w.pause(200 * time.Millisecond)
		}
	}
	for !w.ended() {
		if follows && w.follow == nil {
			w.beginToFollow()
		}
		if w.random.IntN(8) == 0 { // the connection breaks
			w.apps.sim.network.reset(func(c *conn) bool { return c.stack == w.stack })
		}
		w.hold()
		w.pause(time.Duration(w.random.Int64N(int64(8 * w.apps.sim.tunables.pace))))
	}
}

func (w *app) ended() bool {
	select {
	case <-w.apps.over:
		return true
	default:
		return w.apps.sim.load.Ended()
	}
}

func (w *app) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.apps.over:
	case <-w.apps.sim.load.Done():
	}
}

func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func (w *app) beginToFollow() {
	ctx, cancel := within(5 * time.Second)
	defer cancel()
	if follow, err := w.store.Follow(ctx, appFollows); err == nil { // the watches may be too many
		w.follow = follow
	}
}

// hold takes the lock, counts a few times, and gives the lock back, or lets it expire.
func (w *app) hold() {
	ctx, cancel := within(6 * time.Second)
	defer cancel()
	lock, err := w.store.Lock(ctx, appLock, w.apps.sim.tunables.lockTTL)
	if err != nil {
		return
	}
	if other := w.apps.counted.taken(lock, w.id); other != "" {
		w.apps.sim.violation("locks of apps", "%s has the lock while %s has it", w.id, other)
	}
	w.count(lock)
	w.apps.counted.givenBack(lock)
	if err := lock.Unlock(ctx); err != nil && !errors.Is(err, store.ErrLockLost) {
		w.apps.sim.trace.add(w.id, "unlock: %v", err)
	}
}

// count counts under the protection of the lock's token. First it writes the counter as it is, with
// the token: from then on the store refuses the writes of earlier holders.
func (w *app) count(lock *store.Lock) {
	value, claimed := w.claim(lock)
	for range w.random.IntN(5) {
		if !claimed {
			return
		}
		ctx, cancel := within(2 * time.Second)
		_, err := w.store.Set(ctx, appCounter, []byte(strconv.Itoa(value+1)),
			store.Fence(lock.Token()))
		cancel()
		var refused *store.ServerError
		switch {
		case err == nil:
			value++
			if other := w.apps.counted.acknowledged(value, w.id); other != "" {
				w.apps.sim.violation("locks of apps", "%s and %s have both set the counter to %d",
					other, w.id, value)
			}
		case errors.Is(err, store.ErrNotExecuted), errors.As(err, &refused):
			return
		default:
			w.apps.counted.lost(value + 1)
			return
		}
	}
}

// claim returns the counter's value, and whether later writes of earlier holders will be refused.
func (w *app) claim(lock *store.Lock) (value int, claimed bool) {
	ctx, cancel := within(4 * time.Second)
	defer cancel()
	for ctx.Err() == nil {
		text, version, err := w.store.Get(ctx, appCounter)
		condition := store.IfVersion(version)
		switch {
		case errors.Is(err, store.ErrNotFound):
			text, condition = []byte("0"), store.IfAbsent()
		case err != nil:
			return 0, false
		}
		_, err = w.store.Set(ctx, appCounter, text, condition, store.Fence(lock.Token()))
		if err == nil {
			value, err = strconv.Atoi(string(text))
			return value, err == nil
		}
		if !errors.Is(err, store.ErrNotApplied) {
			return 0, false
		}
	}
	return 0, false
}

// taken notes who has the lock. It returns who else has it and does not know of having lost it.
func (c *counted) taken(lock *store.Lock, by string) (other string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder != nil {
		select {
		case <-c.holder.Lost():
		default:
			other = c.by
		}
	}
	c.holder, c.by = lock, by
	return other
}

func (c *counted) givenBack(lock *store.Lock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == lock {
		c.holder = nil
	}
}

// acknowledged notes that a value was set, and returns who else has set it.
func (c *counted) acknowledged(value int, by string) (other string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	other = c.set[value]
	c.set[value] = by
	return other
}

func (c *counted) lost(value int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown[value] = true
}

// end lets the apps end their work, compares what they have with the state, and closes their
// clients.
func (a *apps) end() {
	close(a.over)
	for _, w := range a.workers {
		<-w.done
	}
	for _, w := range a.workers {
		if w.store == nil {
			continue
		}
		a.checkCounter(w)
		if w.follow != nil {
			w.checkFollower()
		}
		_ = w.store.Close() // always returns nil
	}
}

// checkCounter: each acknowledged increment counts once, and one without a known outcome once at
// most.
func (a *apps) checkCounter(w *app) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	text, _, err := w.store.Get(ctx, appCounter)
	for ctx.Err() == nil && err != nil && !errors.Is(err, store.ErrNotFound) &&
		a.sim.sleep(100*time.Millisecond) {
		text, _, err = w.store.Get(ctx, appCounter)
	}
	value, bad := strconv.Atoi(string(text))
	_, acknowledged := a.counted.set[value]
	switch {
	case errors.Is(err, store.ErrNotFound) && len(a.counted.set) == 0:
	case err != nil || bad != nil:
		a.sim.violation("locks of apps", "%s reads the counter: %q, %v", w.id, text, err)
	case value < a.counted.highest() || !acknowledged && !a.counted.unknown[value] && value != 0:
		a.sim.violation("locks of apps",
			"the counter is %d; the highest acknowledged value is %d, and of %d values it is not known whether they were set",
			value, a.counted.highest(), len(a.counted.unknown))
	}
}

// highest returns the highest acknowledged value.
func (c *counted) highest() (highest int) {
	for value := range c.set {
		highest = max(highest, value)
	}
	return highest
}

// checkFollower: the copy of a follower becomes what the store has.
func (w *app) checkFollower() {
	if !w.apps.sim.allNotificationsArrived() {
		// one that was given up leaves no gap: a new connection does
		w.apps.sim.network.reset(func(c *conn) bool { return c.stack == w.stack })
	}
	const patience = 60 * time.Second
	differs := w.apps.sim.until(patience, 500*time.Millisecond, func() string {
		if err := w.follow.Err(); err != nil {
			w.apps.sim.trace.add(w.id, "follows no more: %v", err) // the store refused it
			return ""
		}
		if !w.follow.Synced() {
			return "it is not complete"
		}
		node, missing := w.apps.sim.leadingMember()
		if missing != "" {
			return missing
		}
		keys := 0
		for key, item := range w.follow.All() {
			keys++
			differs := ""
			node.View(func(m *fsm.Machine) {
				if info, ok := m.FindKey(key); !ok || info.Value != string(item.Value) ||
					info.Version != item.Version {
					differs = fmt.Sprintf("it has %s %s, the store %+v", key, item.Version, info)
				}
			})
			if differs != "" {
				return differs
			}
		}
		const all = 1 << 20
		node.View(func(m *fsm.Machine) {
			if there := len(m.ListKeys("r/", "", all)); there != keys {
				missing = fmt.Sprintf("it has %d keys, the store %d", keys, there)
			}
		})
		return missing
	})
	if differs != "" {
		w.apps.sim.violation("followers of apps", "%s after %v: %s", w.id, patience, differs)
	}
}
