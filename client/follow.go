package client

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
)

// Item is a key's value, as a Follower has it. The value must not be changed.
type Item struct {
	Value   []byte
	Version Version
}

// Follower is a local copy of all keys that match a pattern and that the client may read. While Synced reports true it has every change whose
// notification has arrived. All methods are safe for concurrent use.
type Follower struct {
	client  *Client
	watcher *Watcher
	changed func(Event) // may be nil
	stop    context.CancelFunc
	once    sync.Once     // closes first
	first   chan struct{} // closed when the first pass has ended
	done    chan struct{}

	// mu is held alone.
	mu     sync.RWMutex
	copy   followed
	synced int // how many gaps the last pass covers that has ended; -1 is none
	err    error
}

// FollowOption changes what Follow does.
type FollowOption func(*Follower)

// OnChange has each change of the copy passed to a function, which is an EventSet or an EventDeleted, the keys of the first list included. The calls come
// one after the other, when the copy already has the change. The function may call Get and All, but not Close. If it is slow, changes of one key may be left
// out, but never the last one.
func OnChange(changed func(Event)) FollowOption { return func(f *Follower) { f.changed = changed } }

// Follow makes a local copy of all keys that match a pattern and that the client may read, and keeps it up to date until Close or Client.Close. Keys
// describes the pattern language. The context bounds the time until the copy is complete for the first time, which is when Follow returns. It is an
// extension of Holdfast.
//
// The copy watches first, then lists the keys and reads each, and takes of each key the newest version. After a gap, as after a lost connection, it does so
// again: what was deleted meanwhile is deleted from the copy, and reported.
func (c *Client) Follow(ctx context.Context, pattern string, list ...FollowOption) (*Follower, error) {
	watcher, err := c.Watch(ctx, pattern, Glob())
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	f := &Follower{client: c, watcher: watcher, stop: stop, first: make(chan struct{}), done: make(chan struct{}), copy: newFollowed(), synced: -1}
	for _, option := range list {
		option(f)
	}
	go f.run(running)
	select {
	case <-f.first:
		return f, nil
	case <-f.done:
		_ = f.Close(ctx) // the error that ended it is returned
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

// All returns all keys of the copy with their values, as they were at one moment, in the order of the bytes of the keys.
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

// Synced reports whether the copy is complete. It is false while the connection is lost, and after a gap until all keys are listed and read again: then
// the copy may lack changes.
func (f *Follower) Synced() bool {
	f.mu.RLock()
	synced := f.synced
	f.mu.RUnlock()
	f.client.mu.Lock()
	defer f.client.mu.Unlock()
	return f.client.session != nil && f.watcher.confirmedIn == f.client.session && f.watcher.gaps == synced
}

// Done returns a channel that is closed when the copy is no longer kept up to date. Err says why.
func (f *Follower) Done() <-chan struct{} { return f.done }

// Err returns why the copy is no longer kept up to date: ErrClosed after Client.Close, the error of the store if it refused the watch, the list or
// a read (ErrReplyTooLarge, for instance), and nil after Close, and before it has ended.
func (f *Follower) Err() error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.err
}

// Close ends the watch, and waits until OnChange's function is no longer called. The copy stays as it is.
func (f *Follower) Close(ctx context.Context) error {
	f.stop()
	<-f.done
	return f.watcher.Close(ctx)
}

// run keeps the copy up to date until its context or the watch ends.
func (f *Follower) run(ctx context.Context) {
	defer close(f.done)
	gaps := 0 // that the watcher reported
	current := f.startPass(ctx, gaps)
	defer func() {
		f.stop()
		if current != nil {
			current.work.Wait()
		}
	}()
	for {
		var results chan reading // nil blocks
		if current != nil {
			results = current.results
		}
		select {
		case <-ctx.Done():
			f.end(nil)
			return
		case event, open := <-f.watcher.Events():
			switch {
			case !open:
				f.end(f.watcher.Err())
				return
			case event.Kind != EventGap:
				f.notified(event)
			default:
				if gaps++; current == nil {
					current = f.startPass(ctx, gaps)
				}
			}
		case read, open := <-results:
			switch {
			case open:
				f.read(read)
			case current.err != nil:
				f.end(current.err)
				return
			default:
				f.endPass(current.gaps)
				covered := current.gaps == gaps
				if current = nil; !covered { // what changed in a later gap may have been read before it
					current = f.startPass(ctx, gaps)
				}
			}
		}
	}
}

// startPass starts a pass, which covers so many gaps. All notifications that came before the last of them are in the copy.
func (f *Follower) startPass(ctx context.Context, gaps int) *pass {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.copy.beginPass()
	return f.client.startPass(ctx, f.watcher.watched.key, gaps)
}

// end notes why the copy is no longer kept up to date.
func (f *Follower) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.synced = err, -1
}

func (f *Follower) notified(event Event) {
	f.mu.Lock()
	news := f.copy.notified(event)
	f.mu.Unlock()
	if news {
		f.report(event)
	}
}

func (f *Follower) read(r reading) {
	f.mu.Lock()
	change, news := f.copy.read(r.key, r.item, r.absent)
	f.mu.Unlock()
	if news {
		f.report(change)
	}
}

// endPass ends a pass, which covers so many gaps.
func (f *Follower) endPass(gaps int) {
	f.mu.Lock()
	changes := f.copy.endPass()
	f.mu.Unlock()
	for _, change := range changes {
		f.report(change)
	}
	f.mu.Lock()
	f.synced = gaps
	f.mu.Unlock()
	f.once.Do(func() { close(f.first) })
}

func (f *Follower) report(change Event) {
	if f.changed != nil {
		f.changed(change)
	}
}
