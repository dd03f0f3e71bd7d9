package workload

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast/hlc"
	"holdfast/resp"
	"holdfast/test/history"
)

// key returns a key of a family (its first level) and of the current generation. After
// Settings.Generation, clients go over to the keys of the next one.
func (c *Client) key(family string, n int) string {
	return fmt.Sprintf("%s/%d/%d", family, c.generation(), n)
}

func (c *Client) generation() int { return int(c.load.Now() / c.load.Generation) }

// unique returns a value for the client's next operation. No other operation has it.
func (c *Client) unique() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%s.%d", c.ID, c.counter+1)
}

// pause waits between operations, and reports whether to go on.
func (c *Client) pause() bool {
	return c.load.waitUnlessOver(between(c.random, c.load.Pace/2, c.load.Pace*3/2))
}

// registers reads and writes a few keys that others read and write, too, with all conditions.
func (c *Client) registers() {
	type seen struct {
		value   string
		version hlc.Timestamp
	}
	last := make(map[string]seen) // by key: what the client saw last
	for c.pause() {
		key := c.key("r", c.random.IntN(3))
		o := history.Op{Key: key, Value: c.unique()}
		switch n := c.random.IntN(24); {
		case n >= 20 && last[key].value != "":
			o.Verb, o.Condition, o.Expected, o.ExpectedVersion = history.Set, history.IfVer,
				last[key].value, last[key].version
			if n == 23 {
				o.Verb, o.Value = history.Del, ""
			}
		case n < 8 || n >= 20:
			o.Verb, o.Value = history.Get, ""
		case n < 12:
			o.Verb = history.Set
		case n < 14:
			o.Verb, o.Condition = history.Set, history.NX
		case n < 17:
			o.Verb, o.Condition, o.Expected = history.Set, history.NEX, last[key].value
		case n < 18:
			o.Verb, o.Value = history.Del, ""
		default:
			o.Verb, o.Value = history.VDel, last[key].value
			if o.Value == "" {
				o.Value = "nothing"
			}
		}
		o.NoExpiry = c.random.IntN(10) == 0
		done, ok := c.Do(o)
		switch {
		case !ok:
		case done.Verb == history.Get:
			last[key] = seen{string(done.Reply.Bulk), done.Version}
		case done.Verb == history.Set && done.Applied():
			last[key] = seen{done.Value, done.Version}
		}
	}
}

// pipeline sends several operations on a key of its own without waiting for replies. It watches the
// key, by its name or by a pattern.
func (c *Client) pipeline() {
	key := ""
	var watch history.Op
	var burst []*Request
	for c.load.waitUnlessOver(between(c.random, 300*time.Millisecond, 900*time.Millisecond)) {
		if now := c.key("p/"+c.ID, 0); now != key {
			if key != "" {
				watch.Verb = history.Stop
				c.Do(watch)
			}
			key = now
			watch = history.Op{Verb: history.Notify, Key: key}
			if c.random.IntN(2) == 0 {
				watch.Glob, watch.Key = true, strings.TrimSuffix(key, "0")+"?"
			}
			c.Do(watch)
		}
		earlier := burst
		burst = nil
		for range 2 + c.random.IntN(5) {
			o := history.Op{Verb: history.Set, Key: key, Value: c.unique()}
			if c.random.IntN(4) == 0 {
				o.Verb, o.Value = history.Get, ""
			}
			burst = append(burst, c.Begin(o))
			if len(earlier) > 0 && c.random.IntN(6) == 0 {
				c.repeat(earlier[c.random.IntN(len(earlier))])
			}
		}
		for _, r := range burst {
			c.Await(r)
		}
	}
}

// repeat sends a copy of a request, unless the store may have forgotten its outcome when the copy
// arrives.
func (c *Client) repeat(r *Request) {
	if c.load.Now()-r.Op.Call < time.Duration(c.load.Expiry)*time.Second/2 {
		c.send(r)
	}
}

// late sends copies around the moment at which the store forgets the outcome, most of them shortly
// before it. No model checks the keys of these requests: such a request may take effect again after
// its outcome is forgotten.
func (c *Client) late() {
	for c.load.waitUnlessOver(between(c.random, c.load.Pace, c.load.Pace*5)) {
		r := c.Begin(history.Op{
			Verb: history.Set,
			Key:  fmt.Sprintf("late/%s/%d", c.ID, c.random.IntN(8)), Value: c.unique(), Late: true,
		})
		wait := between(c.random, c.load.Lifetime*3/4, c.load.Lifetime*17/16)
		c.load.Go(func() {
			if c.load.waitUnlessOver(wait) {
				c.send(r)
			}
		})
	}
}

// locks competes for locks. With the fencing token of a lock it writes the key that the lock
// protects, now and then long after it lost the lock.
func (c *Client) locks() {
	ttl := c.load.LockTTL
	for c.pause() {
		n := c.random.IntN(2)
		lock, protected := fmt.Sprintf("lock/%d", n), c.key("protected", n)
		acquired, ok := c.Do(history.Op{
			Verb: history.Set, Key: lock, Value: c.ID,
			Condition: history.NEX, TTL: ttl,
		})
		if !ok || !acquired.Applied() {
			continue
		}
		token := acquired.Version
		for range c.random.IntN(4) {
			c.Do(history.Op{Verb: history.Set, Key: protected, Value: c.unique(), Token: token})
			if !c.load.waitUnlessOver(between(c.random, 0, ttl/4)) {
				return
			}
			if c.random.IntN(2) == 0 {
				if renewed, ok := c.Do(history.Op{
					Verb: history.Set, Key: lock, Value: c.ID,
					Condition: history.NEX, TTL: ttl,
				}); ok && renewed.Applied() {
					token = renewed.Version
				}
			}
		}
		switch c.random.IntN(3) {
		case 0: // it stalls, and does not know that the lock has expired
			if !c.load.waitUnlessOver(between(c.random, ttl, 3*ttl)) {
				return
			}
			c.Do(history.Op{Verb: history.Set, Key: protected, Value: c.unique(), Token: token})
		case 1:
			c.Do(history.Op{Verb: history.VDel, Key: lock, Value: c.ID})
		}
		if c.random.IntN(4) == 0 {
			c.Do(history.Op{Verb: history.Get, Key: protected})
		}
		if c.random.IntN(8) == 0 { // a write without a token
			c.Do(history.Op{Verb: history.Set, Key: protected, Value: c.unique()})
		}
	}
}

// writes changes the keys that watchers watch.
func (c *Client) writes() {
	for c.pause() {
		o := history.Op{
			Verb: history.Set, Key: fmt.Sprintf("watched/%d", c.random.IntN(3)),
			Value: c.unique(),
		}
		switch c.random.IntN(6) {
		case 0:
			o.Verb, o.Value = history.Del, ""
		case 1:
			o.TTL = between(c.random, 100*time.Millisecond, time.Second)
		}
		c.Do(o)
	}
}

// watches watches keys that others change.
func (c *Client) watches() {
	c.watch(history.Op{Key: "watched/0"}, history.Op{Key: "watched/1"},
		history.Op{Key: "watched/2"})
}

// watchesPatterns watches keys of the families watched and bank, mostly by patterns. Several
// patterns match the same key. Their literal prefixes have different lengths.
func (c *Client) watchesPatterns() {
	c.watch(history.Op{Key: "watched/*", Glob: true}, history.Op{Key: "watched/1", Glob: true},
		history.Op{Key: "w*/[02]", Glob: true}, history.Op{Key: "watched/2"},
		history.Op{Key: "bank/*/[02]", Glob: true})
}

// watchesSome watches some keys of the family watched, by a pattern. It must not be notified of the
// others.
func (c *Client) watchesSome() { c.watch(history.Op{Key: "w*/[02]", Glob: true}) }

// watch begins the watches in turn, and ends one now and then.
func (c *Client) watch(watches ...history.Op) {
	for n := 0; c.load.waitUnlessOver(between(c.random, 500*time.Millisecond, 2*time.Second)); n++ {
		o := watches[n%len(watches)]
		o.Verb = history.Notify
		if c.random.IntN(10) == 0 {
			o.Verb = history.Stop
		}
		c.Do(o)
	}
}

// expires sets keys with an expiry, and looks whether they are there.
func (c *Client) expires() {
	type brief struct {
		key string
		ttl time.Duration
	}
	var set []brief
	for n := 0; c.pause(); n++ {
		if len(set) > 0 && c.random.IntN(3) > 0 {
			i := max(0, len(set)-1-c.random.IntN(4))
			c.Do(history.Op{Verb: history.Get, Key: set[i].key})
			continue
		}
		b := brief{
			fmt.Sprintf("brief/%s/%d", c.ID, n),
			between(c.random, 20*time.Millisecond, 4*time.Second).Truncate(time.Millisecond),
		}
		o, ok := c.Do(history.Op{Verb: history.Set, Key: b.key, Value: c.unique(), TTL: b.ttl})
		if ok && o.Applied() {
			set = append(set, b)
		}
	}
}

// anonymous sends requests with too little correlation data for the store to recognize copies. They
// take effect as often as they arrive.
func (c *Client) anonymous() {
	for c.pause() {
		if c.random.IntN(2) == 0 {
			c.Do(history.Op{Verb: history.Get, Key: c.key("r", c.random.IntN(3)), Anonymous: true})
			continue
		}
		var burst []*Request
		for range pick(c.random, 1, 1, 8) {
			burst = append(burst,
				c.Begin(history.Op{
					Verb: history.Set, Key: "anonymous/" + c.ID, Value: c.unique(),
					Anonymous: true,
				}))
		}
		for _, r := range burst {
			c.Await(r)
		}
	}
}

// guest reads and writes a register. In the simulation, policy denies it that at times.
func (c *Client) guest() {
	for c.pause() {
		o := history.Op{Verb: history.Set, Key: c.key("r", 0), Value: c.unique()}
		if c.random.IntN(2) == 0 {
			o.Verb, o.Value = history.Get, ""
		}
		c.Do(o)
	}
}

// floods sends much at once now and then, so that tables and queues fill up.
func (c *Client) floods() {
	for c.load.waitUnlessOver(between(c.random, time.Second, 4*time.Second)) {
		var burst []*Request
		for i := range 20 + c.random.IntN(40) {
			burst = append(burst,
				c.Begin(history.Op{
					Verb: history.Set, Key: fmt.Sprintf("flood/%s/%d", c.ID, i%8),
					Value: c.unique(),
				}))
		}
		for _, r := range burst {
			c.Await(r)
		}
	}
}

// Probe tries, at most for limit, until a write and a read have worked. It returns how long that
// took, and whether they have.
func (c *Client) Probe(limit time.Duration) (took time.Duration, worked bool) {
	began := c.load.Now()
	for c.load.Now()-began < limit {
		o := history.Op{
			Verb: history.Set, Key: fmt.Sprintf("probe/%d", c.random.Uint32()),
			Value: c.unique(),
		}
		if !c.attempt(o) {
			continue
		}
		o.Verb, o.Value = history.Get, ""
		if c.attempt(o) {
			return c.load.Now() - began, true
		}
	}
	return c.load.Now() - began, false
}

// attempt sends an operation, and reports whether a reply that is no error came within a second.
func (c *Client) attempt(o history.Op) bool {
	r := c.Begin(o)
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-r.done:
		if r.Op.Reply.Kind != resp.ReplyError {
			return true
		}
		c.load.Sleep(50 * time.Millisecond)
	case <-timer.C:
	}
	return false
}

// elements adds elements to sets, and reads them. Other clients try to add the same elements. An
// element is a key that is set with NX.
func (c *Client) elements() {
	for c.pause() {
		key := c.key("element", c.random.IntN(20))
		o := history.Op{Verb: history.Set, Key: key, Value: c.unique(), Condition: history.NX}
		if c.random.IntN(3) == 0 {
			o = history.Op{Verb: history.Get, Key: key}
		}
		c.Do(o)
	}
}

// large reads and writes values of all sizes up to a mebibyte, and deletes old ones.
func (c *Client) large() {
	// kept counts generations: to keep all would use up the store's quota in a long run
	const keys, kept = 2, 10
	sizes := []int{0, 1, 100, 1 << 10, 16 << 10, 128 << 10, 1 << 20}
	removed := 0 // the number of generations that were deleted
	for c.pause() {
		for ; removed < c.generation()-kept; removed++ {
			for i := range keys {
				c.Do(history.Op{Verb: history.Del, Key: fmt.Sprintf("large/%d/%d", removed, i)})
			}
		}
		o := history.Op{Verb: history.Get, Key: c.key("large", c.random.IntN(keys))}
		if c.random.IntN(2) == 0 {
			o.Verb, o.Size = history.Set, sizes[c.random.IntN(len(sizes))]
			switch {
			case o.Size > maxLabel:
				o.Value = fmt.Sprintf("%s:%d", c.unique(), o.Size)
			case o.Size > 0:
				o.Value, o.Size = content(c.unique(), o.Size), 0
			}
		}
		c.Do(o)
	}
}

// A scanned key is so long that the keys of this family do not fit into one page of 256 KiB.
const (
	scannedKeys = 16
	scannedSize = 24_000
)

// scannedKey returns the label of a key of scannedSize bytes (see label.go).
func scannedKey(name string) string { return fmt.Sprintf("scan/%s:%d", name, scannedSize) }

// changes sets and deletes keys of the family scan, which another client lists.
func (c *Client) changes() {
	for c.load.waitUnlessOver(between(c.random, c.load.Pace*2, c.load.Pace*10)) {
		o := history.Op{
			Verb: history.Set,
			Key:  scannedKey(fmt.Sprintf("%02d", c.random.IntN(scannedKeys))), KeySize: scannedSize,
			Value: c.unique(),
		}
		if c.random.IntN(4) == 0 {
			o.Verb, o.Value = history.Del, ""
		}
		c.Do(o)
	}
}

// scans lists the keys of the family scan page by page. Before each scan it sets a key of its own
// without waiting for the reply: a scan has to see what its client sent before it.
func (c *Client) scans() {
	for number := 1; c.load.waitUnlessOver(between(c.random, c.load.Pace*5,
		c.load.Pace*20)); number++ {
		own := history.Op{
			Verb: history.Set, Key: scannedKey(fmt.Sprintf("%s-%d", c.ID, number)),
			KeySize: scannedSize, Value: c.unique(),
		}
		set := c.Begin(own)
		page := history.Op{Verb: history.Scan, Key: "scan/*", ScanNumber: number}
		for more := true; more; {
			r := c.Begin(page)
			if more = c.Await(r); more {
				page.After, more = r.next, r.next != ""
			}
		}
		c.Await(set)
		own.Verb, own.Value = history.Del, ""
		c.Do(own)
	}
}

// Staff hires the clients of a run and lets them work. hire returns a client, or nil for one that
// is left out. The broker keeps the session of a persistent client while the client is away. With
// more, the clients of large values and of set elements work, too.
func (l *Load) Staff(hire func(id string, persistent bool) *Client, more bool) {
	employ := func(id string, persistent bool, work func(*Client)) {
		c := hire(id, persistent)
		if c == nil {
			return
		}
		l.staff.Go(func() { work(c) })
	}
	for i := range 4 {
		employ(fmt.Sprintf("register-%d", i), i%2 == 0, (*Client).registers)
	}
	for i := range 2 {
		employ(fmt.Sprintf("pipeline-%d", i), true, (*Client).pipeline)
		employ(fmt.Sprintf("watcher-%d", i), i == 0, (*Client).watches)
	}
	for i := range 3 {
		employ(fmt.Sprintf("locker-%d", i), true, (*Client).locks)
	}
	employ("pattern-watcher-0", true, (*Client).watchesPatterns)
	employ("pattern-watcher-1", false, (*Client).watchesSome)
	employ("writer-0", true, (*Client).writes)
	employ("expirer-0", true, (*Client).expires)
	employ("changer-0", true, (*Client).changes)
	employ("scanner-0", true, (*Client).scans)
	employ("anonymous-0", true, (*Client).anonymous)
	for i := range 3 {
		employ(fmt.Sprintf("teller-%d", i), i > 0, (*Client).transfers)
	}
	employ("guest-0", true, (*Client).guest)
	employ("flooder-0", true, (*Client).floods)
	if l.Lifetime > 0 {
		employ("late-0", true, (*Client).late)
		employ("late-1", false, (*Client).late)
	}
	if !more {
		return
	}
	for i := range 3 {
		employ(fmt.Sprintf("adder-%d", i), i > 0, (*Client).elements)
		employ(fmt.Sprintf("large-%d", i), i > 0, (*Client).large)
	}
}

// ReadAll reads the keys that History.Keys returns, except those of Probe, some at once. Reads that
// are not answered, or answered by an error, are sent again, fewer at once. ReadAll returns the
// reads that were not answered in the last attempt. A read that was refused each time is not among
// them.
func (c *Client) ReadAll() (unanswered []*history.Op) {
	const attempts = 4
	atOnce := 50
	left := slices.DeleteFunc(c.load.History.Keys(),
		func(key string) bool { return strings.HasPrefix(key, "probe/") })
	for range attempts {
		var missing []string
		unanswered = nil
		for keys := range slices.Chunk(left, atOnce) {
			var reading []*Request
			for _, key := range keys {
				reading = append(reading,
					c.Begin(history.Op{Verb: history.Get, Key: key, Final: true}))
			}
			for _, r := range reading {
				switch answered := c.Await(r); {
				case c.load.Ended():
				case !answered:
					missing, unanswered = append(missing, r.Op.Key), append(unanswered, r.Op)
				case r.Op.Reply.Kind == resp.ReplyError:
					missing = append(missing, r.Op.Key)
				}
			}
		}
		if left = missing; len(left) == 0 {
			break
		}
		atOnce = 3
	}
	return unanswered
}
