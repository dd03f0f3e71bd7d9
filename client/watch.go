package client

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/hlc"
	"holdfast/resp"
)

// EventKind says what a Watcher saw.
type EventKind uint8

// The kinds of events.
const (
	EventSet     EventKind = iota + 1 // the key has a new value
	EventDeleted                      // the key was deleted or has expired
	// EventGap says that changes may have been missed: the connection was lost, the watch could not be renewed, the end of an earlier watch may have
	// ended this one, or the receiver was too slow. Call Get for the current value.
	EventGap
)

// Event is a change of a watched key, or a gap. A gap has no Value and no Version.
type Event struct {
	Kind    EventKind
	Key     string
	Value   []byte
	Version Version // of the new or of the deleted value
}

// Watcher receives the changes of one key. Receive from Events until the channel is closed: by Close, by Client.Close, or
// because the store refused the watch. Err says which. All methods are safe for concurrent use.
type Watcher struct {
	client *Client
	key    string
	events chan Event

	// The fields below are guarded by Client.mu.
	established bool // the store has confirmed the watch
	gapped      bool // the last thing put into events is a gap
	ended       bool
	err         error
}

// Watch watches a key. When it returns, every later change is received, as long as the connection lasts; see EventGap.
func (c *Client) Watch(ctx context.Context, key string) (*Watcher, error) {
	w := &Watcher{client: c, key: key, events: make(chan Event, c.config.WatchBuffer+1)}
	c.mu.Lock()
	c.watchers[key] = append(c.watchers[key], w)
	c.mu.Unlock()
	a, err := c.do(ctx, Version{}, []byte("KEYNOTIFY"), []byte(key))
	if err == nil && a.reply.Kind != resp.ReplyOK {
		err = unexpected(a)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		var refused *ServerError
		if c.dropLocked(w) && !errors.As(err, &refused) {
			c.watchAgainLocked(key, nil) // the store may have the watch; as the key has no watcher, this sends STOP
		}
		w.endLocked(err)
		return nil, err
	}
	if w.ended { // meanwhile the client was closed, or the store refused another KEYNOTIFY of the key
		return nil, w.err
	}
	w.established = true
	return w, nil
}

// Events returns the channel of changes, in their order. It is closed when the watch has ended.
func (w *Watcher) Events() <-chan Event { return w.events }

// Err returns why the watch ended, after Events was closed: ErrClosed after Client.Close, the error of the store if it refused the watch, and nil after
// Close.
func (w *Watcher) Err() error {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	return w.err
}

// Close ends the watch. If this was the client's last watcher of the key, it ends the watch in the store.
func (w *Watcher) Close(ctx context.Context) error {
	c := w.client
	c.mu.Lock()
	last := c.dropLocked(w)
	w.endLocked(nil)
	c.mu.Unlock()
	if !last {
		return nil
	}
	if err := c.stopWatching(ctx, w.key); err != nil {
		return fmt.Errorf("stop watching: %w", err)
	}
	return nil
}

// stopWatching ends the watch of a key in the store.
func (c *Client) stopWatching(ctx context.Context, key string) error {
	_, err := c.do(ctx, Version{}, []byte("KEYNOTIFY"), []byte(key), []byte("STOP"))
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.watchers[key]) > 0 { // added meanwhile; this STOP may have ended their watch
		c.watchAgainLocked(key, slices.Clone(c.watchers[key]))
	}
	return err
}

// dropLocked removes a watcher and reports whether it was the last of its key. c.mu must be held.
func (c *Client) dropLocked(w *Watcher) bool {
	watchers := c.watchers[w.key]
	at := slices.Index(watchers, w)
	if at < 0 {
		return false
	}
	if len(watchers) == 1 {
		delete(c.watchers, w.key)
		return true
	}
	c.watchers[w.key] = slices.Delete(watchers, at, at+1)
	return false
}

// endLocked closes the channel. Client.mu must be held.
func (w *Watcher) endLocked(err error) {
	if w.ended {
		return
	}
	w.ended, w.err = true, err
	close(w.events)
}

// deliverLocked queues an event. The last slot of the channel is reserved for an EventGap. If only that slot is free, it queues an
// EventGap instead. Client.mu must be held.
func (w *Watcher) deliverLocked(event Event) {
	switch {
	case w.ended:
	case len(w.events) < cap(w.events)-1:
		w.events <- event
		w.gapped = false
	default:
		w.gapLocked()
	}
}

// gapLocked queues an EventGap, unless the last queued event is one. Client.mu must be held.
func (w *Watcher) gapLocked() {
	if w.ended || (w.gapped && len(w.events) > 0) {
		return
	}
	select {
	case w.events <- Event{Kind: EventGap, Key: w.key}:
		w.gapped = true
	default: // cannot happen: only a gap takes the last place, and then gapped is set
	}
}

// watchAgainLocked sends KEYNOTIFY for a key, in a new goroutine: in a new session, to renew the watch, or after a STOP that may have ended
// a newer watch. It tries until the store accepts or refuses, or the session ends. When the store accepts, it queues an EventGap for the
// watchers in missed, and, if an attempt failed, for those that were established then: the store may have ended the watch meanwhile. If the store refuses, it ends all watchers of the key. If the key has no
// watcher, or loses its last one meanwhile, it sends STOP. Client.mu must be held.
func (c *Client) watchAgainLocked(key string, missed []*Watcher) {
	session := c.session
	if session == nil {
		return // the next session watches all keys again
	}
	session.watching[key]++
	go func() { // ends with the session at the latest
		defer c.endWatchAgain(session, key)
		const retry = 500 * time.Millisecond
		for c.isWatched(key) {
			ctx, cancel := context.WithTimeout(session.ctx, c.config.Timeout)
			a, err := c.do(ctx, Version{}, []byte("KEYNOTIFY"), []byte(key))
			cancel()
			if err == nil && a.reply.Kind != resp.ReplyOK {
				err = unexpected(a)
			}
			if c.watchedAgain(key, missed, err) {
				break
			}
			missed = c.established(key)
			if !pause(session.ctx, retry) {
				return
			}
		}
		if !c.isWatched(key) { // the KEYNOTIFY may have followed the STOP
			ctx, cancel := context.WithTimeout(session.ctx, c.config.Timeout)
			defer cancel()
			_ = c.stopWatching(ctx, key) // an error means that the session has ended, or that the watch stays until it does
		}
	}()
}

// endWatchAgain counts the end of a goroutine of watchAgainLocked.
func (c *Client) endWatchAgain(s *session, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.watching[key]--; s.watching[key] == 0 {
		delete(s.watching, key)
	}
}

// established returns the watchers of a key whose watch the store has confirmed.
func (c *Client) established(key string) (watchers []*Watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.watchers[key] {
		if w.established {
			watchers = append(watchers, w)
		}
	}
	return watchers
}

// isWatched reports whether a key has watchers.
func (c *Client) isWatched(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.watchers[key]) > 0
}

// watchedAgain handles the result of a KEYNOTIFY, and reports whether it is final.
func (c *Client) watchedAgain(key string, missed []*Watcher, err error) (final bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var refused *ServerError
	switch {
	case err == nil:
		for _, w := range missed {
			w.gapLocked() // for what changed before the store knew of the watch
		}
		return true
	case errors.Is(err, ErrOverloaded) || !errors.As(err, &refused): // not a refusal: try again
		return false
	default:
		for _, w := range c.watchers[key] {
			w.endLocked(err)
		}
		delete(c.watchers, key)
		return true
	}
}

// notified gives a notification to the watchers of its key. suffix is what follows topics.Notifications in its topic.
func (c *Client) notified(suffix string, p *paho.Publish) {
	_, encoded, ok := strings.Cut(suffix, "/command/notify/")
	key, err := hex.DecodeString(encoded)
	if !ok || err != nil {
		return
	}
	notification, err := resp.ReadNotification(p.Payload)
	if err != nil {
		c.config.Log.Warn("malformed notification ignored", "key", string(key), "error", err)
		return
	}
	version, err := hlc.Parse(p.Properties.User.Get("__ts"))
	if err != nil {
		c.config.Log.Warn("notification without a valid __ts ignored", "key", string(key), "error", err)
		return
	}
	event := Event{Kind: EventSet, Key: string(key), Value: notification.Value, Version: version}
	if notification.Deleted {
		event.Kind = EventDeleted
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mergeLocked(version)
	for _, w := range c.watchers[event.Key] {
		event.Value = bytes.Clone(event.Value) // each receiver owns its own
		w.deliverLocked(event)
	}
}
