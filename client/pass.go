package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/internal/backoff"
	"holdfast/internal/glob"
)

// pass is one complete read of a Follower: it lists all keys that match the pattern and reads each.
type pass struct {
	gaps    int          // EventGaps that the Follower had processed when the pass began
	results chan reading // closed at the end
	// why the pass is not complete; nil if it is complete. It may be read once results is closed
	err  error
	work sync.WaitGroup
}

// reading is what a read of a key returned.
type reading struct {
	key    string
	item   Item
	absent bool
}

const (
	// passReaders is how many keys a pass reads at a time.
	passReaders = 32
	// passRetry is how long a pass waits after a request that failed.
	passRetry = 500 * time.Millisecond
)

// startPass starts a pass. The pass ends when all keys are read, when the context ends, or with a
// permanent error. After a temporary error it sends the request again. Two permanent errors do not
// end it: after an invalid continuation token it lists again, and a key that this client may not
// read counts as absent.
func (c *Client) startPass(ctx context.Context, pattern string, gaps int) *pass {
	p := &pass{gaps: gaps, results: make(chan reading, passReaders)}
	ctx, fail := context.WithCancelCause(ctx)
	keys := make(chan string)
	var readers sync.WaitGroup
	for range passReaders {
		readers.Go(func() {
			for key := range keys {
				if err := p.read(ctx, c, key); err != nil {
					fail(fmt.Errorf("get %q: %w", key, err))
				}
			}
		})
	}
	p.work.Go(func() {
		if err := listKeys(ctx, c, pattern, keys); err != nil {
			fail(fmt.Errorf("list keys: %w", err))
		}
		close(keys)
		readers.Wait()
		p.err = context.Cause(ctx)
		fail(nil)
		close(p.results)
	})
	return p
}

// listKeys sends all keys that match the pattern to keys. After a temporary error or an invalid
// continuation token it lists from the beginning, so some keys are read twice. It returns any other
// permanent error, or the context's.
func listKeys(ctx context.Context, c *Client, pattern string, keys chan<- string) error {
	for {
		var failure error
		for key, err := range c.Keys(ctx, pattern) {
			if failure = err; err != nil {
				break
			}
			if len(key) > glob.MaxWatchedKey {
				continue
			}
			select {
			case keys <- key:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		switch {
		case failure == nil:
			return nil
		case isPermanent(failure) && !errors.Is(failure, ErrInvalidContinuation):
			// a token becomes invalid when the backup of another store is restored
			return failure
		case !backoff.Pause(ctx, passRetry):
			return ctx.Err()
		}
	}
}

// read reads a key. The error is permanent, or the context's.
func (p *pass) read(ctx context.Context, c *Client, key string) error {
	for {
		value, version, err := c.Get(ctx, key)
		// a key that this client may not read counts as absent
		absent := errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotAuthorized)
		if err == nil || absent {
			select {
			case p.results <- reading{key, Item{value, version}, absent}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		switch {
		case isPermanent(err):
			return err
		case !backoff.Pause(ctx, passRetry):
			return ctx.Err()
		}
	}
}

// isPermanent reports whether an error is a ServerError other than ErrOverloaded: the same request
// is not sent again after it.
func isPermanent(err error) bool {
	var refused *ServerError
	return errors.As(err, &refused) && !errors.Is(err, ErrOverloaded)
}
