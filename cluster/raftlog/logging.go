package raftlog

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Logger returns a logger for raft, its stores and its transport. It writes to log.
func Logger(log *slog.Logger) hclog.Logger {
	logger := hclog.NewInterceptLogger(&hclog.LoggerOptions{
		Name: "raft", Output: io.Discard,
		Level: hclog.Trace,
	})
	logger.RegisterSink(slogSink{log, &repetitions{said: make(map[string]time.Time)}})
	return logger
}

type slogSink struct {
	log    *slog.Logger
	latest *repetitions
}

// repetitions finds warnings and errors of raft that repeat within repetitionPause. They are logged
// at the debug level.
type repetitions struct {
	mu   sync.Mutex
	said map[string]time.Time // when each text was last logged above the debug level
}

const (
	repetitionPause = time.Minute
	maxRepetitions  = 256
)

// isRepeated reports whether a text was logged within the last repetitionPause. Otherwise it
// records the text as logged now.
func (r *repetitions) isRepeated(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if at, ok := r.said[text]; ok && now.Sub(at) < repetitionPause {
		return true
	}
	if len(r.said) >= maxRepetitions {
		clear(r.said)
	}
	r.said[text] = now
	return false
}

// Accept implements hclog.SinkAdapter. It logs raft's errors as warnings, because most are failed
// messages to other members. It logs raft's warnings, such as elections, at the info level, and
// everything else at the debug level.
func (s slogSink) Accept(_ string, level hclog.Level, message string, args ...any) {
	to := slog.LevelDebug
	switch {
	case level >= hclog.Error:
		to = slog.LevelWarn
	case level == hclog.Warn:
		to = slog.LevelInfo
	}
	if to > slog.LevelDebug && s.latest.isRepeated(message+peerOf(args)) {
		to = slog.LevelDebug
	}
	for i, arg := range args {
		if format, ok := arg.(hclog.Format); ok && len(format) > 0 {
			args[i] = fmt.Sprintf(fmt.Sprint(format[0]), format[1:]...)
		}
	}
	s.log.Log(context.Background(), to, "raft: "+message, args...)
}

// peerOf returns which member a message is about.
func peerOf(args []any) string {
	for i := 0; i+1 < len(args); i += 2 {
		switch args[i] {
		case "peer", "target", "server-id":
			return fmt.Sprint(args[i+1])
		}
	}
	return ""
}
