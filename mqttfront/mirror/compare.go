package mirror

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
)

// comparison is what came of a comparison of the retained messages with the state.
type comparison struct {
	keys    int  // with a mirror
	missing int  // retained messages
	stale   int  // retained messages that were not as in the state, or of no key
	blind   bool // the broker does not send what it retains
	dropped bool // the broker dropped some of what it retains, at each pass
}

// compareAll compares the retained messages with the state at once, and each time that this is asked for, until the context ends.
func (s *session) compareAll(ctx context.Context) {
	for {
		if err := s.compare(ctx); err != nil && ctx.Err() == nil {
			s.end(err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-s.again:
		}
	}
}

// compare has the broker send the retained messages, and queues what they lack. Where the broker drops some, it is asked again: what it has sent, and what is
// stale, does not come again.
func (s *session) compare(ctx context.Context) error {
	s.begin()
	var all comparison
	for range maxPasses {
		found, err := s.pass(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		all.keys, all.blind, all.dropped = found.keys, found.blind, found.dropped
		all.missing += found.missing
		all.stale += found.stale
		if !found.dropped {
			break
		}
		s.env.Log.Warn("the broker dropped retained messages: let it queue as many bytes for a client as it retains below the mirrors", "stale", found.stale)
		if found.stale == 0 { // it would send the same ones again
			break
		}
	}
	s.env.Log.Info("compared the retained messages of mirrors with the state", "keys", all.keys, "missing", all.missing, "stale", all.stale)
	if all.blind {
		s.env.Log.Warn("the broker sends no retained messages to a subscription with a wildcard: topics of keys that were deleted while no node led may stay")
	}
	s.compared(all)
	return nil
}

// pass is one attempt of compare.
func (s *session) pass(ctx context.Context) (found comparison, err error) {
	s.marked.Store(false)
	s.first.Store(false)
	s.last.Store(false)
	s.stale.Store(0)
	s.scan(func(t topic) { s.backlog.expect(t) })
	markers := [...]string{s.config.markerTopics() + "first/", s.config.markerTopics() + "last/"}
	for _, marker := range markers {
		err := s.ask(func() error {
			response, err := s.client.Publish(ctx, &paho.Publish{Topic: marker + "marker", QoS: 1, Retain: true, Payload: []byte{'1'}})
			if response != nil {
				return nil // also where the broker refuses it: then it counts as one that sends no retained messages
			}
			return err
		})
		if err != nil {
			return found, fmt.Errorf("publish a marker: %w", err)
		}
	}
	s.setHealthy()
	// No Local would hide what earlier leaders published under the same client id. At a higher QoS, brokers bound how many messages may wait.
	var subscriptions []paho.SubscribeOptions
	var filters []string
	for _, prefix := range slices.Concat(markers[:1], s.prefixes, markers[1:]) {
		subscriptions, filters = append(subscriptions, paho.SubscribeOptions{Topic: prefix + "#"}), append(filters, prefix+"#")
	}
	if err := s.ask(func() error { return mqttconn.Subscribe(ctx, s.client, subscriptions...) }); err != nil {
		return found, err
	}
	// At QoS 0: a broker that drops retained messages may drop a PUBACK as well.
	if _, err := s.client.Publish(ctx, &paho.Publish{Topic: markers[1] + "marker", Payload: []byte{'1'}}); err != nil {
		return found, fmt.Errorf("publish a marker: %w", err)
	}
	if !s.awaitRetained(ctx) {
		return found, nil
	}
	unsubscribe := func() error { // what the node publishes itself would come back
		_, err := s.client.Unsubscribe(ctx, &paho.Unsubscribe{Topics: filters})
		return err
	}
	if err := s.ask(unsubscribe); err != nil {
		return found, fmt.Errorf("unsubscribe: %w", err)
	}
	found.keys = s.scan(func(t topic) {
		if s.wasRefused(t) {
			s.backlog.postpone(t)
		} else if s.backlog.missing(t) {
			found.missing++
		}
	})
	s.env.Metrics.corrections.WithLabelValues(reasonMissing).Add(float64(found.missing))
	found.stale, found.blind, found.dropped = int(s.stale.Load()), !s.first.Load(), s.first.Load() && !s.last.Load()
	return found, nil
}

// setHealthy notes that the broker has acknowledged something.
func (s *session) setHealthy() {
	select {
	case <-s.healthy:
	default:
		close(s.healthy)
	}
}

// awaitRetained waits until the broker has probably sent all retained messages, and returns false if the context ends before.
func (s *session) awaitRetained(ctx context.Context) bool {
	subscribed := time.Now()
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		last := s.began.Add(time.Duration(s.lastRetained.Load()))
		if last.Before(subscribed) {
			last = subscribed
		}
		if time.Since(last) >= quiet && (s.marked.Load() || time.Since(subscribed) >= markerWait) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// scan calls visit for the topic of each key that is shown, in the order of the keys, and returns how many keys have a mirror. The state is locked while
// visit runs.
func (s *session) scan(visit func(topic)) (keys int) {
	for after, more := "", true; more; {
		s.env.View(func(m *fsm.Machine) {
			after, more = m.ScanMirrored(after, scanPage, func(key string, shown fsm.Mirrored) {
				keys++
				if t := (topic{shown.Topic, key}); s.messageOf(t, &shown).result == resultSet {
					visit(t)
				}
			})
		})
	}
	return keys
}

// received compares a message with the state. One that is not retained was just published, by this node as a rule.
func (s *session) received(message mqttconn.Message) {
	s.heard()
	if marker, ok := strings.CutPrefix(message.Topic, s.config.markerTopics()); ok {
		switch {
		case !message.Retain:
			s.marked.Store(true)
		case strings.HasPrefix(marker, "first/"):
			s.first.Store(true)
		default:
			s.last.Store(true)
		}
		return
	}
	t, ok := topicOf(message.Topic, s.prefixes)
	if !ok {
		return
	}
	if message.Retain {
		s.lastRetained.Store(int64(time.Since(s.began)))
	}
	w, ok := s.lookup(t)
	switch {
	case !ok:
	case w.value == string(message.Payload) && w.version == versionOf(message):
		s.backlog.same(t)
	case s.backlog.push(t) && message.Retain:
		s.stale.Add(1)
		s.env.Metrics.corrections.WithLabelValues(reasonStale).Inc()
	}
}
