package client

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/internal/backoff"
)

// Item is a key's value, as a Follower has it. The value must not be changed.
type Item struct {
	Value   []byte
	Version Version
}

// Follower is a local copy of all keys that match a pattern and that the client may read. All
// methods are safe for concurrent use.
type Follower struct {
	client  *Client
	watcher *Watcher
	stop    context.CancelFunc
	first   chan struct{} // closed when the copy is complete for the first time
	done    chan struct{}

	// mu is never held together with another lock.
	mu        sync.RWMutex
	copy      followed
	processed int // how many events of the watcher were processed by run
	gaps      int // how many of these were gaps
	// how many gaps came before the last completed pass began; -1 until a pass began after all
	// gaps, and once the copy is not kept up to date
	covered int
	changes []*changeQueue
	err     error
}

// Follow makes a local copy of all keys that match a pattern and that the client may read, and
// keeps it up to date until Close or Client.Close. Keys describes the pattern language. The context
// bounds the time until the copy is complete for the first time, which is when Follow returns.
// Follow needs SCAN and GLOB, which only Holdfast has. The copy leaves out keys of more than 4096
// bytes, because a watch of a pattern does not report their changes.
//
// A Follower first watches the pattern, and then makes a pass: it lists the keys and reads each. It
// makes another pass after each gap, as after a lost connection. Keys that were deleted meanwhile
// are deleted from the copy. Some changes come without a notification: those of a restored backup
// or of changed access rights, and those after an operator ended the watch. A pass that begins at
// least every Config.FollowRefresh finds them.
func (c *Client) Follow(ctx context.Context, pattern string) (*Follower, error) {
	watcher, err := c.Watch(ctx, pattern, Glob())
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	f := &Follower{
		client: c, watcher: watcher, stop: stop, first: make(chan struct{}),
		done: make(chan struct{}), copy: newFollowed(), covered: -1,
	}
	go f.run(running)
	select {
	case <-f.first:
		return f, nil
	case <-f.done:
		return nil, f.Err()
	case <-ctx.Done():
		f.stop()
		<-f.done
		c.mu.Lock()
		defer c.mu.Unlock()
		watcher.abandonLocked(nil)
		return nil, fmt.Errorf("follow: %w", ctx.Err())
	}
}

// Get returns the value of a key, and whether the copy has it.
func (f *Follower) Get(key string) (Item, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	item, ok := f.copy.items[key]
	return item, ok
}

// All returns all keys of the copy with their values, as they are when All is called, in the order
// of the bytes of the keys.
func (f *Follower) All() iter.Seq2[string, Item] {
	f.mu.RLock()
	items := maps.Clone(f.copy.items)
	f.mu.RUnlock()
	return func(yield func(string, Item) bool) {
		for _, key := range slices.Sorted(maps.Keys(items)) {
			if !yield(key, items[key]) {
				return
			}
		}
	}
}

// Changes returns first all keys of the copy, each as an EventSet, and then each change as an
// EventSet or an EventDeleted. It waits for the next one until the context ends, or the copy is no
// longer kept up to date. If the receiver is slow, earlier changes of a key are left out, but never
// the last one; the copy does not wait for the receiver. The Version of an EventDeleted is that of
// the key's last EventSet. Values must not be changed. Several calls may run at the same time, each
// with all changes.
func (f *Follower) Changes(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		own := f.addChanges()
		defer f.removeChanges(own)
		for {
			ended := f.hasEnded() // nothing changes after that
			event, waiting := f.nextChange(own)
			switch {
			case ctx.Err() != nil:
				return
			case waiting:
				if !yield(event) {
					return
				}
				continue
			case ended:
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-own.wake:
			case <-f.done:
			}
		}
	}
}

// Synced reports whether the copy has every change whose notification has arrived, and all keys
// were read again since the last gap. If so, the copy has the client's own earlier writes: the
// notification of a write arrives before its reply. Synced is false while the connection is lost,
// until the keys are read again after a gap, while a notification is not processed yet, and when
// the copy is no longer kept up to date.
func (f *Follower) Synced() bool {
	f.mu.RLock()
	covered, processed := f.covered == f.gaps, f.processed
	f.mu.RUnlock()
	f.client.mu.Lock()
	defer f.client.mu.Unlock()
	return covered && f.watcher.isConfirmedLocked() && f.watcher.queued == processed
}

// Done returns a channel that is closed when the copy is no longer kept up to date. Err says why.
func (f *Follower) Done() <-chan struct{} { return f.done }

// Err returns why the copy is no longer kept up to date: ErrClosed after Client.Close, or the error
// of the store if it refused the watch, the list or a read (ErrReplyTooLarge, for instance). It
// returns nil after Close, and while the copy is kept up to date.
func (f *Follower) Err() error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.err
}

// Close ends the watch. The copy stays as it is, and can still be read. The context and the error
// are those of Watcher.Close.
func (f *Follower) Close(ctx context.Context) error {
	f.stop()
	<-f.done
	return f.watcher.Close(ctx)
}

// isConfirmed reports whether the store has confirmed the watch on the current connection.
func (f *Follower) isConfirmed() bool {
	f.client.mu.Lock()
	defer f.client.mu.Unlock()
	return f.watcher.isConfirmedLocked()
}

func (f *Follower) hasEnded() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// run keeps the copy up to date until its context or the watch ends.
func (f *Follower) run(ctx context.Context) {
	defer close(f.done)
	refresh := time.NewTimer(backoff.Jitter(f.client.config.FollowRefresh, random))
	defer refresh.Stop()
	current, due := f.startPass(ctx), false
	defer func() {
		f.stop()
		if current != nil {
			current.work.Wait()
		}
	}()
	for {
		if due && current == nil && f.isConfirmed() {
			// not before the watch is confirmed: its confirmation brings an EventGap
			current, due = f.startPass(ctx), false
		}
		var results chan reading // nil blocks
		if current != nil {
			results = current.results
		}
		select {
		case <-ctx.Done():
			f.end(nil)
			return
		case <-refresh.C:
			due = true
			refresh.Reset(backoff.Jitter(f.client.config.FollowRefresh, random))
		case event, open := <-f.watcher.Events():
			if !open {
				f.end(f.watcher.Err())
				return
			}
			f.applyEvent(event)
			due = due || event.Kind == EventGap
		case read, open := <-results:
			switch {
			case open:
				f.applyRead(read)
			case ctx.Err() != nil:
				f.end(nil)
				return
			case current.err != nil:
				f.end(current.err)
				return
			default:
				due = !f.endPass(current.gaps) || due
				current = nil
			}
		}
	}
}

// startPass starts a pass. All notifications that came before the last gap are in the copy.
func (f *Follower) startPass(ctx context.Context) *pass {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.copy.beginPass(f.covered != f.gaps)
	return f.client.startPass(ctx, f.watcher.watched.key, f.gaps)
}

// end records why the copy is no longer kept up to date. If err is not nil, it also ends the watch.
func (f *Follower) end(err error) {
	f.mu.Lock()
	f.err, f.covered = err, -1
	f.mu.Unlock()
	if err != nil {
		f.client.mu.Lock()
		defer f.client.mu.Unlock()
		f.watcher.abandonLocked(err)
	}
}

func (f *Follower) applyEvent(event Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processed++
	if event.Kind == EventGap {
		f.gaps++
	} else if f.copy.applyNotification(event) {
		f.changedLocked(event.Key)
	}
}

func (f *Follower) applyRead(r reading) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.copy.applyRead(r.key, r.item, r.absent) {
		f.changedLocked(r.key)
	}
}

// endPass ends a pass. gaps is how many gaps came before the pass began. If it returns false, the
// copy may lack a change, and another pass is needed.
func (f *Follower) endPass(gaps int) (complete bool) {
	f.client.mu.Lock()
	all := f.watcher.gaps
	f.client.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	complete = !f.copy.pass.incomplete
	for _, key := range f.copy.endPass() {
		f.changedLocked(key)
	}
	if !complete {
		return false
	}
	if first := f.covered < 0; !first {
		f.covered = gaps
	} else if gaps == all { // otherwise a later gap may hide a change of a key that was read before
		f.covered = gaps
		close(f.first)
	}
	return true
}
