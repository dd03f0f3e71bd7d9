package sim

import (
	"fmt"
	"time"

	"holdfast/resp"
)

// generation is how long a set of keys is used: short histories are quick to check.
const generation = 6 * time.Second

// key returns a key that is in use now.
func (c *client) key(family string, n int) string {
	return fmt.Sprintf("%s/%d/%d", family, int(c.sim.trace.now()/generation), n)
}

// unique returns a value that nobody else ever writes.
func (c *client) unique() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%s.%d", c.id, c.counter+1)
}

// pause waits between operations, and reports whether to go on.
func (c *client) pause() bool {
	return c.sim.loaded(between(c.random, c.sim.tunables.pace/2, c.sim.tunables.pace*3/2))
}

// registers reads and writes a few keys that others read and write, too, with all conditions.
func (c *client) registers() {
	last := make(map[string]string) // by key: what it saw last
	for c.pause() {
		key := c.key("r", c.random.IntN(3))
		o := op{key: key, value: c.unique()}
		switch n := c.random.IntN(20); {
		case n < 8:
			o.verb, o.value = opGet, ""
		case n < 12:
			o.verb = opSet
		case n < 14:
			o.verb, o.condition = opSet, nx
		case n < 17:
			o.verb, o.condition, o.expected = opSet, nex, last[key]
		case n < 18:
			o.verb, o.value = opDel, ""
		default:
			o.verb, o.value = opVDel, last[key]
			if o.value == "" {
				o.value = "nothing"
			}
		}
		o.noExpiry = c.random.IntN(10) == 0
		done, ok := c.do(o)
		switch {
		case !ok:
		case done.verb == opGet:
			last[key] = string(done.reply.Bulk)
		case done.verb == opSet && done.applied():
			last[key] = done.value
		}
	}
}

// pipeline sends several operations on a key of its own without waiting, and watches what becomes of it.
func (c *client) pipeline() {
	key := ""
	for c.sim.loaded(between(c.random, 300*time.Millisecond, 900*time.Millisecond)) {
		if now := c.key("p/"+c.id, 0); now != key {
			if key != "" {
				c.do(op{verb: opStop, key: key})
			}
			key = now
			c.do(op{verb: opNotify, key: key})
		}
		var burst []*request
		for range 2 + c.random.IntN(5) {
			o := op{verb: opSet, key: key, value: c.unique()}
			if c.random.IntN(4) == 0 {
				o.verb, o.value = opGet, ""
			}
			burst = append(burst, c.begin(o))
		}
		for _, r := range burst {
			c.await(r)
		}
	}
}

// locks competes for locks, and writes with their tokens what they protect, now and then long after the lock is gone.
func (c *client) locks() {
	ttl := c.sim.tunables.lockTTL
	for c.pause() {
		n := c.random.IntN(2)
		lock, protected := fmt.Sprintf("lock/%d", n), c.key("protected", n)
		acquired, ok := c.do(op{verb: opSet, key: lock, value: c.id, condition: nex, ttl: ttl})
		if !ok || !acquired.applied() {
			continue
		}
		token := acquired.version
		for range c.random.IntN(4) {
			c.do(op{verb: opSet, key: protected, value: c.unique(), token: token})
			if !c.sim.loaded(between(c.random, 0, ttl/4)) {
				return
			}
			if c.random.IntN(2) == 0 {
				if renewed, ok := c.do(op{verb: opSet, key: lock, value: c.id, condition: nex, ttl: ttl}); ok && renewed.applied() {
					token = renewed.version
				}
			}
		}
		switch c.random.IntN(3) {
		case 0: // it stalls, and does not know that its time is over
			if !c.sim.loaded(between(c.random, ttl, 3*ttl)) {
				return
			}
			c.do(op{verb: opSet, key: protected, value: c.unique(), token: token})
		case 1:
			c.do(op{verb: opVDel, key: lock, value: c.id})
		}
		if c.random.IntN(4) == 0 {
			c.do(op{verb: opGet, key: protected})
		}
		if c.random.IntN(8) == 0 { // somebody without a token
			c.do(op{verb: opSet, key: protected, value: c.unique()})
		}
	}
}

// writes changes the keys that watchers watch.
func (c *client) writes() {
	for c.pause() {
		o := op{verb: opSet, key: fmt.Sprintf("watched/%d", c.random.IntN(3)), value: c.unique()}
		switch c.random.IntN(6) {
		case 0:
			o.verb, o.value = opDel, ""
		case 1:
			o.ttl = between(c.random, 100*time.Millisecond, time.Second)
		}
		c.do(o)
	}
}

// watches watches keys that others change.
func (c *client) watches() {
	for n := 0; c.sim.loaded(between(c.random, 500*time.Millisecond, 2*time.Second)); n++ {
		key := fmt.Sprintf("watched/%d", n%3)
		if c.random.IntN(10) == 0 {
			c.do(op{verb: opStop, key: key})
		} else {
			c.do(op{verb: opNotify, key: key})
		}
	}
}

// expires sets keys with an expiry, and looks whether they are there.
func (c *client) expires() {
	type brief struct {
		key string
		ttl time.Duration
	}
	var set []brief
	for n := 0; c.pause(); n++ {
		if len(set) > 0 && c.random.IntN(3) > 0 {
			i := max(0, len(set)-1-c.random.IntN(4))
			c.do(op{verb: opGet, key: set[i].key})
			continue
		}
		b := brief{fmt.Sprintf("brief/%s/%d", c.id, n), between(c.random, 20*time.Millisecond, 4*time.Second).Truncate(time.Millisecond)}
		o, ok := c.do(op{verb: opSet, key: b.key, value: c.unique(), ttl: b.ttl})
		if ok && o.applied() {
			set = append(set, b)
		}
	}
}

// anonymous sends requests that nobody can recognize: they take effect as often as they arrive.
func (c *client) anonymous() {
	for c.pause() {
		if c.random.IntN(2) == 0 {
			c.do(op{verb: opGet, key: c.key("r", c.random.IntN(3)), anonymous: true})
			continue
		}
		c.do(op{verb: opSet, key: "anonymous/" + c.id, value: c.unique(), anonymous: true})
	}
}

// guest may do less at some times than at others.
func (c *client) guest() {
	for c.pause() {
		o := op{verb: opSet, key: c.key("r", 0), value: c.unique()}
		if c.random.IntN(2) == 0 {
			o.verb, o.value = opGet, ""
		}
		c.do(o)
	}
}

// floods sends much at once now and then, so that tables and queues fill up.
func (c *client) floods() {
	for c.sim.loaded(between(c.random, time.Second, 4*time.Second)) {
		var burst []*request
		for i := range 20 + c.random.IntN(40) {
			burst = append(burst, c.begin(op{verb: opSet, key: fmt.Sprintf("flood/%s/%d", c.id, i%8), value: c.unique()}))
		}
		for _, r := range burst {
			c.await(r)
		}
	}
}

// probe tries until a write and a read have worked, and returns how long that took.
func (c *client) probe() time.Duration {
	began := c.sim.trace.now()
	for c.sim.trace.now()-began < 60*time.Second {
		o := op{verb: opSet, key: fmt.Sprintf("probe/%d", c.random.Uint32()), value: c.unique()}
		if !c.worked(o) {
			continue
		}
		o.verb, o.value = opGet, ""
		if c.worked(o) {
			break
		}
	}
	return c.sim.trace.now() - began
}

// worked sends an operation, and waits a second for it.
func (c *client) worked(o op) bool {
	r := c.begin(o)
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-r.done:
		if r.op.reply.Kind != resp.ReplyError {
			return true
		}
		c.sim.sleep(50 * time.Millisecond)
	case <-timer.C:
	}
	return false
}

// staff is who works in a simulation.
func (s *simulation) staff() {
	for i := range 4 {
		s.employ(fmt.Sprintf("register-%d", i), i%2 == 0, (*client).registers)
	}
	for i := range 2 {
		s.employ(fmt.Sprintf("pipeline-%d", i), true, (*client).pipeline)
		s.employ(fmt.Sprintf("watcher-%d", i), i == 0, (*client).watches)
	}
	for i := range 3 {
		s.employ(fmt.Sprintf("locker-%d", i), true, (*client).locks)
	}
	s.employ("writer-0", true, (*client).writes)
	s.employ("expirer-0", true, (*client).expires)
	s.employ("anonymous-0", true, (*client).anonymous)
	s.employ("guest-0", true, (*client).guest)
	s.employ("flooder-0", true, (*client).floods)
}

// employ adds a client with its work.
func (s *simulation) employ(id string, persistent bool, work func(*client)) {
	c := newClient(s, id, persistent)
	s.clients = append(s.clients, c)
	s.load.Go(func() { work(c) })
}
