package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"
)

// freeSpace measures the free space of the file system of the data folder, once a second.
type freeSpace struct {
	dir     string
	minFree int64 // in bytes; while a member has less, it counts as one without space
	free    atomic.Uint64
}

func newFreeSpace(dir string, minFree int64) (*freeSpace, error) {
	s := &freeSpace{dir: dir, minFree: minFree}
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
	return free, free < uint64(s.minFree)
}

func (s *freeSpace) watch(ctx context.Context, log *slog.Logger) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	wasLow, failed := false, false
	for {
		err := s.measure()
		if err != nil && !failed {
			log.Warn("measuring the free disk space failed: the last value stays in use", "error",
				err)
		}
		failed = err != nil
		free, low := s.get()
		switch {
		case low && !wasLow:
			log.Warn("free disk space below node.minFreeDisk: free some space or enlarge the volume; while a majority of the members has none, SETs that need more space are refused",
				"free_bytes", free, "min_free_bytes", s.minFree)
		case !low && wasLow:
			log.Info("free disk space above node.minFreeDisk again", "free_bytes", free,
				"min_free_bytes", s.minFree)
		}
		wasLow = low
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
