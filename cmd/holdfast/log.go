package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/server/logqueue"
	"holdfast/internal/server/settings"
)

// newQueuedLog returns a logger whose lines wait in a queue, so that no reader of the log can stop
// the node. A reader that has gone does not end the process by SIGPIPE.
func newQueuedLog(out io.Writer, s *settings.Settings) (*slog.Logger, *slog.LevelVar,
	*logqueue.Queue,
) {
	signal.Ignore(syscall.SIGPIPE)
	lines := logqueue.New(out, func(dropped int) []byte {
		var line bytes.Buffer
		log, _ := newLog(&line, s)
		log.Error("lines of the log were dropped: nobody takes them", "lines", dropped)
		return line.Bytes()
	})
	log, level := newLog(lines, s)
	return log, level, lines
}

// registerLog registers the metric of a log.
func registerLog(registry prometheus.Registerer, lines *logqueue.Queue) {
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "holdfast_log_lines_dropped_total",
		Help: "Lines of the log on standard error that were dropped because nobody took them, or could not be written.",
	}, func() float64 {
		lost, _ := lines.Lost()
		return float64(lost)
	}))
}

// logNotes returns what the node says of its log for a while after a line was lost.
func logNotes(lines *logqueue.Queue) []string {
	const while = 10 * time.Minute
	lost, last := lines.Lost()
	if last.IsZero() || time.Since(last) > while {
		return nil
	}
	return []string{fmt.Sprintf(
		"%d lines of the log were lost: whoever reads standard error of this node hangs, or has gone", lost)}
}
