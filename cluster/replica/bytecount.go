package replica

import "sync"

// byteCount counts the bytes of applied entries that are in no snapshot yet. Entries that are
// stored and not applied yet do not count: a snapshot that is captured while a start replays the
// log does not cover them. It is safe for concurrent use.
type byteCount struct {
	mu    sync.Mutex
	total int64 // bytes of all entries applied since the start
	saved int64 // the total when the newest written snapshot was captured
}

// applied adds the bytes of an entry.
func (c *byteCount) applied(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total += int64(bytes)
}

// beginSnapshot returns a function for a snapshot that is taken now. The caller calls it when that
// snapshot is written.
func (c *byteCount) beginSnapshot() (written func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.total
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.saved = max(c.saved, at)
	}
}

func (c *byteCount) sinceSnapshot() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total - c.saved
}
