package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"
)

// freeSpace follows the free space of the disk with the data.
type freeSpace struct {
	dir  string
	low  int64 // bytes below which nothing may grow
	free atomic.Uint64
}

func newFreeSpace(dir string, low int64) (*freeSpace, error) {
	s := &freeSpace{dir: dir, low: low}
	return s, s.measure()
}

func (s *freeSpace) measure() error {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(s.dir, &stat); err != nil {
		return fmt.Errorf("free space of %s: %w", s.dir, err)
	}
	s.free.Store(stat.Bavail * uint64(stat.Bsize)) //nolint:gosec // a block size is positive
	return nil
}

func (s *freeSpace) get() (free uint64, low bool) {
	free = s.free.Load()
	return free, free < uint64(s.low)
}

func (s *freeSpace) watch(ctx context.Context, log *slog.Logger) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	wasLow := false
	for {
		if err := s.measure(); err != nil {
			log.Warn("the free disk space is unknown", "error", err)
		}
		free, low := s.get()
		if low != wasLow {
			log.Warn("free disk space", "bytes", free, "low", low)
		}
		wasLow = low
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
