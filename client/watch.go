package client

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"

	"holdfast/hlc"
	"holdfast/internal/glob"
	"holdfast/resp"
)

// EventKind says what a Watcher saw.
type EventKind uint8

// The kinds of events.
const (
	EventSet     EventKind = iota + 1 // the key has a new value
	EventDeleted                      // the key was deleted or has expired
	// EventGap says that changes may have been missed. The connection was lost, the watch could not
	// be renewed, the STOP of an earlier watch may have ended this one, or the receiver was too
	// slow. Call Get for the current value. Follow does that by itself.
	EventGap
)

// String returns set, deleted or gap.
func (k EventKind) String() string {
	switch k {
	case EventSet:
		return "set"
	case EventDeleted:
		return "deleted"
	case EventGap:
		return "gap"
	default:
		return fmt.Sprintf("EventKind(%d)", uint8(k))
	}
}

// Event is a change of a watched key, or a gap. A gap has no Value and no Version.
type Event struct {
	Kind    EventKind
	Key     string // in an EventGap of a pattern: the pattern
	Value   []byte
	Version Version // the version of the new value, or of the deleted one
}

// String returns the event for a log, as in `set "line-7/speed" "140" 1696374425000:0:StateStore`.
// It cuts a long value off.
func (e Event) String() string {
	const most = 64 // bytes of the value that are shown
	text := fmt.Sprintf("%v %q", e.Kind, e.Key)
	switch {
	case e.Kind != EventSet:
	case len(e.Value) > most:
		text += fmt.Sprintf(" %.64q…", e.Value)
	default:
		text += fmt.Sprintf(" %q", e.Value)
	}
	if !e.Version.IsZero() {
		text += " " + e.Version.String()
	}
	return text
}

// Watcher receives the changes of a key, or of all keys that match a pattern. Receive from Events
// until the channel is closed: by Close, by Client.Close, or because the store refused the watch.
// Err says which. All methods are safe for concurrent use.
type Watcher struct {
	client  *Client
	watched subject
	pattern *glob.Pattern // nil for a key
	events  chan Event

	// The fields below are guarded by Client.mu.
	established bool     // the store has confirmed the watch
	confirmedIn *session // the last session in which the store confirmed the watch
	gapped      bool     // the last event that was queued is an EventGap
	queued      int      // how many events were queued, ever
	gaps        int      // how many of them were EventGaps
	ended       bool
	err         error
}

// WatchOption changes what Watch watches.
type WatchOption func(*subject)

// Glob makes Watch watch all keys that match a pattern, now or later, and that the client may read.
// See Client.Keys for the pattern language. A key of more than 4096 bytes, or that is not valid
// UTF-8, matches no pattern. Only Holdfast has GLOB; other stores of the protocol do not know it.
func Glob() WatchOption { return func(s *subject) { s.isGlob = true } }

// Watch watches a key. When it returns, every later change is received. After a lost connection the
// client makes the watch again, and the Watcher gets an EventGap. The context bounds the call, not
// the watch. For a pattern that is malformed, or longer than 1024 bytes, the error is
// ErrNotExecuted.
func (c *Client) Watch(ctx context.Context, key string, list ...WatchOption) (*Watcher, error) {
	w := &Watcher{
		client: c, watched: subject{key: key},
		events: make(chan Event, c.config.WatchBuffer+1),
	}
	for _, option := range list {
		option(&w.watched)
	}
	if w.watched.isGlob {
		var err error
		if w.pattern, err = glob.Compile(key); err != nil {
			return nil, fmt.Errorf("%w: pattern %q: %w", ErrNotExecuted, key, err)
		}
	}
	c.mu.Lock()
	c.watchers.add(w)
	c.mu.Unlock()
	a, err := c.do(ctx, Version{}, w.watched.keyNotify()...)
	if err == nil && a.reply.Kind != resp.ReplyOK {
		err = unexpected(a)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		var refused *ServerError
		if errors.As(err, &refused) {
			c.watchers.remove(w)
		}
		// unless the store refused, it may have the watch: then this sends STOP
		w.abandonLocked(err)
		return nil, err
	}
	if w.ended {
		// meanwhile the client was closed, or the store refused another KEYNOTIFY for the same
		// subject
		return nil, w.err
	}
	w.established = true
	if w.confirmedIn == nil || a.session == c.session {
		// otherwise a later session may have confirmed the watch already
		w.confirmedIn = a.session
	}
	if a.session != c.session {
		// the answer is of an earlier session, and the new one did not renew this watch, which was
		// not established
		w.gapLocked()
		c.syncWatchLocked(w.watched, []*Watcher{w})
	}
	return w, nil
}

// Events returns the channel of changes, in their order. It is closed when the watch has ended.
func (w *Watcher) Events() <-chan Event { return w.events }

// Err returns why Events was closed: ErrClosed after Client.Close, the error of the store if it
// refused the watch, and nil after Close. It is nil before.
func (w *Watcher) Err() error {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	return w.err
}

// Close ends the watch. If this was the client's last watcher of the key or pattern, it sends STOP
// to the store. After an error, a goroutine of the client sends STOP again until the store accepts
// it, for at most Config.Timeout.
func (w *Watcher) Close(ctx context.Context) error {
	c := w.client
	c.mu.Lock()
	last := c.watchers.remove(w)
	w.endLocked(nil)
	c.mu.Unlock()
	if !last {
		return nil
	}
	if err := c.stopWatching(ctx, w.watched); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.syncWatchLocked(w.watched, nil) // the subject has no watcher, so this sends STOP
		return fmt.Errorf("stop watching: %w", err)
	}
	return nil
}

// abandonLocked ends the watch without waiting for the store. Client.mu must be held.
func (w *Watcher) abandonLocked(err error) {
	if w.client.watchers.remove(w) {
		w.client.syncWatchLocked(w.watched, nil) // the subject has no watcher, so this sends STOP
	}
	w.endLocked(err)
}

// stopWatching ends a watch in the store.
func (c *Client) stopWatching(ctx context.Context, watched subject) error {
	_, err := c.do(ctx, Version{}, watched.keyNotifyStop()...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.watchers.bySubject[watched]) > 0 {
		// added meanwhile; this STOP may have ended their watch
		c.syncWatchLocked(watched, slices.Clone(c.watchers.bySubject[watched]))
	}
	return err
}

// isConfirmedLocked reports whether there is a connection, and the store has confirmed the watch on
// it. Client.mu must be held.
func (w *Watcher) isConfirmedLocked() bool {
	return w.client.session != nil && w.confirmedIn == w.client.session
}

// endLocked closes the channel. Client.mu must be held.
func (w *Watcher) endLocked(err error) {
	if w.ended {
		return
	}
	w.ended, w.err = true, err
	close(w.events)
}

// deliverLocked queues an event. The last slot of the channel is reserved for an EventGap. If only
// that slot is free, it queues an EventGap instead. Client.mu must be held.
func (w *Watcher) deliverLocked(event Event) {
	switch {
	case w.ended:
	case len(w.events) < cap(w.events)-1:
		w.events <- event
		w.gapped = false
		w.queued++
	default:
		w.gapLocked()
	}
}

// gapLocked queues an EventGap, unless the last event that waits in the channel is an EventGap.
// Client.mu must be held.
func (w *Watcher) gapLocked() {
	if w.ended || (w.gapped && len(w.events) > 0) {
		return
	}
	select {
	case w.events <- Event{Kind: EventGap, Key: w.watched.key}:
		w.gapped = true
		w.gaps++
		w.queued++
	default: // cannot happen: only a gap takes the last place, and then gapped is set
	}
}

// syncWatchLocked sends KEYNOTIFY from a new goroutine. It is called in four cases: a new session
// has begun; the watch needs to be renewed; a STOP may have ended a newer watch; a STOP must be
// sent. The goroutine sends again until the store accepts or refuses, or the session ends.
//
//   - When the store accepts, the watchers in missed get an EventGap. So do the watchers that were
//     established when an attempt failed: the store may have ended the watch meanwhile.
//   - When the store refuses, all watchers of the subject end.
//   - When the subject has no watcher, or its last one ends meanwhile, the goroutine sends STOP.
//
// Client.mu must be held.
func (c *Client) syncWatchLocked(watched subject, missed []*Watcher) {
	session := c.session
	if session == nil {
		return // the next session watches all keys again
	}
	session.watchSyncs[watched]++
	session.working.Go(func() { // ends with the session at the latest
		defer c.endWatchSync(session, watched)
		const retry = 500 * time.Millisecond
		for c.isWatched(watched) {
			ctx, cancel := context.WithTimeout(session.ctx, c.config.Timeout)
			a, err := c.do(ctx, Version{}, watched.keyNotify()...)
			cancel()
			if err == nil && a.reply.Kind != resp.ReplyOK {
				err = unexpected(a)
			}
			if c.handleKeyNotify(watched, missed, a.session, err) {
				break
			}
			missed = c.establishedWatchers(watched)
			if !backoff.Pause(session.ctx, retry) {
				return
			}
		}
		ctx, cancel := context.WithTimeout(session.ctx, c.config.Timeout)
		defer cancel()
		for !c.isWatched(watched) {
			// the store may have executed the KEYNOTIFY after an earlier STOP
			if c.stopWatching(ctx, watched) == nil || !backoff.Pause(ctx, retry) {
				return // after the timeout, the watch stays in the store until the session ends
			}
		}
	})
}

// endWatchSync counts the end of a goroutine of syncWatchLocked.
func (c *Client) endWatchSync(s *session, watched subject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.watchSyncs[watched]--; s.watchSyncs[watched] == 0 {
		delete(s.watchSyncs, watched)
	}
}

// establishedWatchers returns the watchers whose watch the store has confirmed.
func (c *Client) establishedWatchers(watched subject) (watchers []*Watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.watchers.bySubject[watched] {
		if w.established {
			watchers = append(watchers, w)
		}
	}
	return watchers
}

// isWatched reports whether the subject has watchers.
func (c *Client) isWatched(watched subject) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.watchers.bySubject[watched]) > 0
}

// handleKeyNotify handles the result of a KEYNOTIFY. It reports whether the result is final.
// session is the one in which the answer came.
func (c *Client) handleKeyNotify(watched subject, missed []*Watcher, session *session,
	err error,
) (final bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var refused *ServerError
	switch {
	case err == nil:
		for _, w := range missed {
			w.gapLocked() // for what changed before the store knew of the watch
		}
		if session == c.session {
			for _, w := range c.watchers.bySubject[watched] {
				if w.confirmedIn != nil && w.confirmedIn != session {
					// changes between the sessions may be lacking for a watcher outside the list
					// missed, too
					w.gapLocked()
				}
				w.confirmedIn = session
			}
		}
		return true
	case errors.Is(err, ErrOverloaded) || !errors.As(err, &refused): // not a refusal: try again
		return false
	default:
		for _, w := range c.watchers.bySubject[watched] {
			w.endLocked(err)
		}
		c.watchers.removeAll(watched)
		return true
	}
}

// handleNotification gives a notification to the watchers of its key, and of patterns that the key
// matches. suffix is what follows topics.Notifications in its topic.
func (c *Client) handleNotification(suffix string, p *mqttconn.Publish) {
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
	text := p.Properties.User.Get("__ts")
	if text == "" {
		return // no change: the store finds out whether this client is still there
	}
	version, err := hlc.Parse(text)
	if err != nil {
		c.config.Log.Warn("notification without a valid __ts ignored", "key", string(key), "error",
			err)
		return
	}
	event := Event{Kind: EventSet, Key: string(key), Value: notification.Value, Version: version}
	if notification.Deleted {
		event.Kind = EventDeleted
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mergeLocked(version)
	c.watchers.deliver(event)
}
