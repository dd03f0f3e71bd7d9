package replica

import "sync"

// byteCount counts the bytes of applied entries that are in no snapshot yet. It counts applied and not stored entries: a snapshot that is captured while a
// start replays the log must not count as covering the entries that are not applied yet. It is safe for concurrent use.
type byteCount struct {
	mu    sync.Mutex
	total int64 // of all entries applied since the start
	saved int64 // the total when the newest snapshot was captured
}

// applied adds the bytes of an entry.
func (c *byteCount) applied(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total += int64(bytes)
}

// captured is called when a snapshot is captured. The function that it returns is called when that snapshot is written.
func (c *byteCount) captured() (written func()) {
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
