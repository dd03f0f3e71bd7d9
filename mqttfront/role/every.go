package role

import (
	"context"
	"time"
)

// every calls work at each interval until the context ends, and not after that.
func every(ctx context.Context, interval time.Duration, work func(now time.Time)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if ctx.Err() != nil {
				return
			}
			work(now)
		}
	}
}
