package client

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
	// EventGap says that changes may have been missed: the connection was lost, or the receiver was too slow. Whoever needs
	// the present value gets it with Get.
	EventGap
)

// Event is a change of a watched key, or a gap. A gap has no Value and no Version.
type Event struct {
	Kind    EventKind
	Key     string
	Value   []byte
	Version Version // of the new or of the deleted value
}

// Watcher receives the changes of one key. Receive from Events until it is closed, which Close does.
type Watcher struct {
	client *Client
	key    string
	events chan Event

	// The fields below are guarded by Client.mu.
	established bool // the store has confirmed the watch
	gapped      bool // the last thing put into events is a gap
	ended       bool
	err         error
	once        sync.Once
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
		c.dropLocked(w)
		w.endLocked(err)
		return nil, err
	}
	w.established = true
	return w, nil
}

// Events returns the channel of changes, in their order. It is closed when the watch has ended.
func (w *Watcher) Events() <-chan Event { return w.events }

// Err returns why the watch ended, after Events was closed. It is nil when Close did it.
func (w *Watcher) Err() error {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	return w.err
}

// Close ends the watch. The store is told when this was the client's last watch of the key.
func (w *Watcher) Close(ctx context.Context) error {
	c := w.client
	c.mu.Lock()
	last := c.dropLocked(w)
	w.endLocked(nil)
	c.mu.Unlock()
	if !last {
		return nil
	}
	_, err := c.do(ctx, Version{}, []byte("KEYNOTIFY"), []byte(w.key), []byte("STOP"))
	c.mu.Lock()
	if len(c.watchers[w.key]) > 0 { // made meanwhile, and perhaps ended by this STOP
		c.watchAgainLocked(w.key, slices.Clone(c.watchers[w.key]))
	}
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("stop watching: %w", err)
	}
	return nil
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
	w.once.Do(func() {
		w.ended, w.err = true, err
		close(w.events)
	})
}

// deliverLocked gives an event to the receiver. When there is no room, the last place, which is kept for it, gets an EventGap. Client.mu
// must be held.
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

// gapLocked tells the receiver that it may have missed changes, unless that is what it will read last anyway. Client.mu must be held.
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

// watchAgainLocked makes a watch anew: in a new session, at a renewal, or after a STOP that may have ended a newer watch. It tries until
// the store answers, and tells those watchers who may have missed something. It ends the watchers only when the store refuses. Client.mu must be held.
func (c *Client) watchAgainLocked(key string, missed []*Watcher) {
	session := c.session
	if session == nil {
		return // the next one makes all watches anew
	}
	go func() { // ends with the session at the latest
		const retry = 500 * time.Millisecond
		for {
			ctx, cancel := context.WithTimeout(session.ctx, c.config.Timeout)
			_, err := c.do(ctx, Version{}, []byte("KEYNOTIFY"), []byte(key))
			cancel()
			var refused *ServerError
			c.mu.Lock()
			watchers := c.watchers[key]
			switch {
			case err == nil:
				for _, w := range missed {
					w.gapLocked() // for what changed before the store knew of the watch
				}
			case errors.Is(err, ErrOverloaded): // it says: try again
			case errors.As(err, &refused):
				for _, w := range watchers {
					w.endLocked(err)
				}
				delete(c.watchers, key)
			}
			c.mu.Unlock()
			if err == nil || refused != nil || len(watchers) == 0 {
				return
			}
			if !pause(session.ctx, retry) {
				return
			}
		}
	}()
}

// notified gives a notification to the watchers of its key. rest is what follows the prefix of its topic.
func (c *Client) notified(rest string, p *paho.Publish) {
	_, encoded, ok := strings.Cut(rest, "/command/notify/")
	key, err := hex.DecodeString(encoded)
	if !ok || err != nil {
		return
	}
	notification, err := resp.ReadNotification(p.Payload)
	if err != nil {
		c.config.Log.Warn("a notification is not understood", "error", err)
		return
	}
	version, err := hlc.Parse(p.Properties.User.Get("__ts"))
	if err != nil {
		c.config.Log.Warn("a notification has no valid version (__ts)", "error", err)
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
