package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// progress shows how far a command is on a terminal, and nothing elsewhere. It is safe for
// concurrent use.
type progress struct {
	out   io.Writer // the terminal; nil if there is none
	what  string    // what is counted, such as "keys"
	began time.Time

	mu    sync.Mutex
	shown time.Time // when the last line was shown
	wide  int       // length of the longest line so far
}

// newProgress returns a progress that is shown on file, if that is a terminal. what names the
// things that it counts.
func newProgress(file io.Writer, what string) *progress {
	p := &progress{what: what, began: time.Now()}
	if isTerminal(file) {
		p.out = file
	}
	return p
}

// isTerminal reports whether a writer is a terminal.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// show shows how many things are done, and a bar for share, the part of the whole from 0 to 1. A
// negative share means unknown: no bar is shown. A call within 500 ms of the last shown line does
// nothing.
func (p *progress) show(done int64, share float64) {
	const interval = 500 * time.Millisecond
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.out == nil || now.Sub(p.shown) < interval {
		return
	}
	p.shown = now
	text := fmt.Sprintf("%d %s, %.0f/s", done, p.what,
		float64(done)/max(now.Sub(p.began).Seconds(), 0.001))
	if share >= 0 {
		const width = 30
		full := int(min(share, 1) * width)
		text = fmt.Sprintf("[%s%s] %3.0f %%  %s", strings.Repeat("#", full),
			strings.Repeat(" ", width-full), 100*min(share, 1), text)
	}
	p.wide = max(p.wide, len(text))
	_, _ = fmt.Fprintf(p.out, "\r%-*s", p.wide, text) // a terminal that is gone shows nothing
}

// end removes the line from the terminal.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out != nil && p.wide > 0 {
		_, _ = fmt.Fprintf(p.out, "\r%*s\r", p.wide, "")
	}
}
