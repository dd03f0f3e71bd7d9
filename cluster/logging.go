package cluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// RaftLogger returns a logger for raft, and what goes with it, that writes to log.
func RaftLogger(log *slog.Logger) hclog.Logger {
	logger := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Output: io.Discard, Level: hclog.Trace})
	logger.RegisterSink(slogSink{log})
	return logger
}

type slogSink struct{ log *slog.Logger }

// Accept implements hclog.SinkAdapter. Raft's information is this project's detail, and what raft warns of, an election for
// instance, is news; what it calls errors are failed messages to other members, as a rule.
func (s slogSink) Accept(_ string, level hclog.Level, message string, args ...any) {
	to := slog.LevelDebug
	switch {
	case level >= hclog.Error:
		to = slog.LevelWarn
	case level == hclog.Warn:
		to = slog.LevelInfo
	}
	for i, arg := range args {
		if format, ok := arg.(hclog.Format); ok && len(format) > 0 {
			args[i] = fmt.Sprintf(fmt.Sprint(format[0]), format[1:]...)
		}
	}
	s.log.Log(context.Background(), to, "raft: "+message, args...)
}
