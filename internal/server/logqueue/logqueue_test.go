package logqueue

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// gate is a writer that waits until it is opened.
type gate struct {
	open    chan struct{}
	mu      sync.Mutex
	written bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.written.Write(p)
}

// † Nobody who logs waits for the one who reads the log. What did not fit is counted, and said when
// there is room.
func TestBlockedWriterDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		q := New(g, note)
		for i := range maxLines + 100 {
			if n, err := fmt.Fprintf(q, "line %d\n", i); err != nil || n == 0 {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		lost, at := q.Lost()
		if lost < 90 || lost > 100 || at.IsZero() {
			t.Errorf("%d lines are lost", lost)
		}
		close(g.open)
		synctest.Wait()
		_, _ = io.WriteString(q, "after\n")
		q.Close()
		text := g.written.String()
		if !strings.Contains(text, fmt.Sprintf("lines=%d\n", lost)) ||
			!strings.HasSuffix(text, "after\n") || !strings.HasPrefix(text, "line 0\nline 1\n") {
			t.Errorf("%.200q … %q", text, text[max(0, len(text)-200):])
		}
	})
}

func TestLargeLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		q := New(g, note)
		for range 10 {
			_, _ = q.Write(make([]byte, maxBytes/4))
			synctest.Wait()
		}
		if lost, _ := q.Lost(); lost != 6 {
			t.Errorf("%d lines are lost, want 6 of 10", lost)
		}
		close(g.open)
		q.Close()
	})
}

func note(lines int) []byte { return fmt.Appendf(nil, "dropped lines=%d\n", lines) }

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// A writer that fails, as a pipe whose reader has gone, loses lines. They are counted.
func TestFailedWritesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(broken{}, note)
		_, _ = io.WriteString(q, "line\n")
		q.Close()
		if lost, _ := q.Lost(); lost != 1 {
			t.Errorf("%d lines are lost", lost)
		}
	})
}

// Close waits for a writer that hangs, but not for ever. Lines after it are dropped.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		q := New(g, note)
		_, _ = io.WriteString(q, "line\n")
		began := time.Now()
		q.Close()
		if took := time.Since(began); took != flushTimeout {
			t.Errorf("it took %v", took)
		}
		_, _ = io.WriteString(q, "late\n")
		close(g.open)
		q.Close()
		if lost, _ := q.Lost(); lost != 1 || g.written.String() != "line\n" {
			t.Errorf("%d lines are lost, %q is written", lost, g.written.String())
		}
	})
}
