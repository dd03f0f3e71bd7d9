package replica

import (
	"io"
	"sync"
	"time"
)

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

// A snapshot is written with pauses, which leave the processors and the disk to requests. After at
// least workTime of work, the writer pauses for pauseFactor times as long as it worked, but for
// maxPause at most, so that a snapshot also ends on a slow disk.
const (
	workTime    = time.Millisecond
	pauseFactor = 4
	maxPause    = 50 * time.Millisecond
)

// pacedWriter pauses between writes.
type pacedWriter struct {
	w     io.Writer
	now   func() time.Duration // a clock that never goes back
	pause func(time.Duration)
	began time.Duration // when the current work began: at the start, or after the last pause
}

func (p *pacedWriter) Write(data []byte) (int, error) {
	n, err := p.w.Write(data)
	if err != nil {
		return n, err
	}
	if worked := p.now() - p.began; worked >= workTime {
		p.pause(min(pauseFactor*worked, maxPause))
		p.began = p.now()
	}
	return n, nil
}
