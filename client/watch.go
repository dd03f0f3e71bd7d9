package client

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"

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

// Event is a change of a watched key.
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
	missed      bool // an event did not fit; a gap is to be told
	ended       bool
	err         error
	once        sync.Once
}

// Watch watches a key. When it returns, every later change is received, as long as the connection lasts; see EventGap.
func (c *Client) Watch(ctx context.Context, key string) (*Watcher, error) {
	w := &Watcher{client: c, key: key, events: make(chan Event, c.config.WatchBuffer)}
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
		c.remember(key, w, false)
		w.end(err)
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
	last := c.remember(w.key, w, false)
	w.end(nil)
	c.mu.Unlock()
	if !last {
		return nil
	}
	if _, err := c.do(ctx, Version{}, []byte("KEYNOTIFY"), []byte(w.key), []byte("STOP")); err != nil {
		return fmt.Errorf("stop watching: %w", err)
	}
	return nil
}

// remember adds or removes a watcher and reports whether the key has none left. c.mu is held.
func (c *Client) remember(key string, w *Watcher, keep bool) bool {
	watchers := c.watchers[key]
	at := slices.Index(watchers, w)
	if at < 0 || keep {
		return false
	}
	watchers = slices.Delete(watchers, at, at+1)
	if len(watchers) == 0 {
		delete(c.watchers, key)
		return true
	}
	c.watchers[key] = watchers
	return false
}

// end closes the channel. Client.mu is held.
func (w *Watcher) end(err error) {
	w.once.Do(func() {
		w.ended, w.err = true, err
		close(w.events)
	})
}

// gap tells the receiver that it may have missed changes. Client.mu is held.
func (w *Watcher) gap() {
	w.missed = true
	w.tell()
}

// tell sends what is due of a gap, if there is room. Client.mu is held.
func (w *Watcher) tell() bool {
	if w.ended {
		return false
	}
	if w.missed {
		select {
		case w.events <- Event{Kind: EventGap, Key: w.key}:
			w.missed = false
		default:
			return false
		}
	}
	return true
}

// watchAgain makes a watch anew after a connection was lost. Client.mu is held.
func (c *Client) watchAgain(key string) {
	go func() { // ends with the command's timeout at the latest
		ctx, cancel := context.WithTimeout(context.Background(), c.config.Timeout)
		defer cancel()
		if _, err := c.do(ctx, Version{}, []byte("KEYNOTIFY"), []byte(key)); err != nil {
			c.config.Log.Warn("a watch could not be made anew", "error", err)
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, w := range c.watchers[key] {
				w.end(err)
			}
			delete(c.watchers, key)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, w := range c.watchers[key] {
			w.gap() // also for what changed between the connection and the watch
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
		c.config.Log.Warn("a notification has no version", "error", err)
		return
	}
	event := Event{Kind: EventSet, Key: string(key), Value: notification.Value, Version: version}
	if notification.Deleted {
		event.Kind = EventDeleted
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.merge(version)
	for _, w := range c.watchers[event.Key] {
		if !w.tell() {
			continue
		}
		select {
		case w.events <- event:
		default:
			w.missed = true
		}
	}
}
