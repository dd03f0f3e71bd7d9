package sim

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"holdfast/test/sim/schedule"
)

// trace is the log of a run, in the order of virtual time: lines of the nodes, and of the
// simulation itself.
type trace struct {
	start time.Time
	level slog.Level // lowest level of the nodes' lines that are kept

	mu    schedule.Mutex
	lines []traceLine
}

type traceLine struct {
	at   time.Duration
	who  string
	text string
}

// maxTrace bounds the number of lines. Later lines are left out.
const maxTrace = 400_000

func newTrace(level slog.Level) *trace { return &trace{start: time.Now(), level: level} }

func (t *trace) now() time.Duration { return time.Since(t.start) }

func (t *trace) add(who, format string, args ...any) {
	schedule.Quiet(func() {
		line := traceLine{t.now(), who, fmt.Sprintf(format, args...)}
		t.mu.Lock()
		defer t.mu.Unlock()
		if len(t.lines) < maxTrace {
			t.lines = append(t.lines, line)
		}
	})
}

// WriteTo implements io.WriterTo. It hides addresses of memory, which hashicorp/raft logs: two runs
// of one pair have the same text.
func (t *trace) WriteTo(w io.Writer) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	buffered := bufio.NewWriter(w)
	written, addresses := int64(0), regexp.MustCompile(`\b0x[0-9a-f]{10,12}\b`)
	for _, line := range t.lines {
		n, err := fmt.Fprintf(buffered, "%11.6f %-10s %s\n", line.at.Seconds(), line.who,
			addresses.ReplaceAllString(line.text, "(address)"))
		if written += int64(n); err != nil {
			return written, err
		}
	}
	return written, buffered.Flush()
}

// logTo returns a logger that writes into the trace.
func (t *trace) logTo(who string) *slog.Logger {
	return slog.New(&traceHandler{
		trace: t,
		who:   who,
	})
}

type traceHandler struct {
	trace *trace
	who   string
	more  string
}

// Enabled implements slog.Handler.
func (h *traceHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.trace.level
}

// Handle implements slog.Handler.
func (h *traceHandler) Handle(_ context.Context, record slog.Record) error {
	schedule.Quiet(func() {
		var text strings.Builder
		fmt.Fprintf(&text, "%s %s%s", record.Level, record.Message, h.more)
		record.Attrs(func(a slog.Attr) bool {
			fmt.Fprintf(&text, " %s=%v", a.Key, a.Value)
			return true
		})
		h.trace.add(h.who, "%s", text.String())
	})
	return nil
}

// WithAttrs implements slog.Handler.
func (h *traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	for _, a := range attrs {
		with.more += fmt.Sprintf(" %s=%v", a.Key, a.Value)
	}
	return &with
}

// WithGroup implements slog.Handler. Nobody here uses groups.
func (h *traceHandler) WithGroup(string) slog.Handler { return h }
