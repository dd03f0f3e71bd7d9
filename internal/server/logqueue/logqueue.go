// Package logqueue writes the lines of a log without letting the one who logs wait.
//
//	lines := logqueue.New(os.Stderr, note)
//	defer lines.Close()
//	log := slog.New(slog.NewTextHandler(lines, nil))
//
// A pipe that nobody reads, a terminal that is held, or a log collector that hangs would otherwise
// stop whatever logs: the state machine, or a leader amid its work.
package logqueue

import (
	"io"
	"sync"
	"time"
)

const (
	maxLines = 4096
	maxBytes = 4 << 20
	// flushTimeout bounds how long Close waits for the writer.
	flushTimeout = time.Second
)

// Queue is an io.Writer that keeps lines until another writer has taken them. When it is full, it
// drops new lines and counts them; the next line that it keeps follows one that says how many were
// dropped. It is safe for concurrent use.
type Queue struct {
	out  io.Writer
	note func(lines int) []byte
	done chan struct{} // closed when the goroutine has ended

	mu        sync.Mutex
	waiting   [][]byte
	bytes     int
	unsaid    int           // dropped lines that no line says yet
	lost      uint64        // lines that were dropped or that the writer refused
	lostAt    time.Time     // when the last one was; zero for never
	wake      chan struct{} // capacity 1
	closed    bool
	closeOnce sync.Once
}

// New returns a queue in front of a writer, and starts the goroutine that writes. Close ends it.
// note returns the line that says how many were dropped.
func New(out io.Writer, note func(lines int) []byte) *Queue {
	q := &Queue{out: out, note: note, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	go q.run()
	return q
}

// Write implements io.Writer. One call is one line. It never waits, and never fails.
func (q *Queue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.waiting) >= maxLines || q.bytes+len(line) > maxBytes {
		q.unsaid++
		q.countLostLocked(1)
		return len(line), nil
	}
	if q.unsaid > 0 {
		q.appendLocked(q.note(q.unsaid))
		q.unsaid = 0
	}
	q.appendLocked(append([]byte(nil), line...))
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return len(line), nil
}

func (q *Queue) appendLocked(line []byte) {
	q.waiting, q.bytes = append(q.waiting, line), q.bytes+len(line)
}

func (q *Queue) countLostLocked(lines int) {
	q.lost, q.lostAt = q.lost+uint64(lines), time.Now()
}

// Lost returns how many lines were dropped or could not be written, and when the last one was; the
// zero time for none.
func (q *Queue) Lost() (lines uint64, last time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lost, q.lostAt
}

// run writes lines until the queue is closed and empty.
func (q *Queue) run() {
	defer close(q.done)
	for {
		q.mu.Lock()
		lines, closed := q.waiting, q.closed
		q.waiting = nil
		q.mu.Unlock()
		for _, line := range lines {
			_, err := q.out.Write(line)
			q.mu.Lock()
			q.bytes -= len(line)
			if err != nil {
				q.countLostLocked(1)
			}
			q.mu.Unlock()
		}
		if len(lines) == 0 {
			if closed {
				return
			}
			<-q.wake
		}
	}
}

// Close writes what waits, but waits for that for a second at most. Later lines are dropped.
func (q *Queue) Close() {
	q.closeOnce.Do(func() {
		q.mu.Lock()
		q.closed = true
		q.mu.Unlock()
		select {
		case q.wake <- struct{}{}:
		default:
		}
	})
	timer := time.NewTimer(flushTimeout)
	defer timer.Stop()
	select {
	case <-q.done:
	case <-timer.C:
		// the goroutine stays until the writer returns, at the latest until the process ends
	}
}
