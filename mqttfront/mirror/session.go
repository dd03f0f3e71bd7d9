package mirror

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
)

const (
	// scanPage is how many keys are looked at while the state is locked.
	scanPage = 1000
	// maxTooLarge bounds the topics that are remembered because the broker has refused their values as too large.
	maxTooLarge = 4096
	// step is the interval at which waits check their condition again.
	step = 100 * time.Millisecond
)

// session is one publishing connection to the broker, with the comparisons that belong to it.
type session struct {
	config            *Config
	env               *Environment
	prefixes          []string // of the topics of all mirrors
	backlog           *backlog
	publisher         *mqttconn.Publisher
	maxPacket         int              // size in bytes of the largest packet that the broker accepts
	recordBegin       func()           // called when a comparison begins
	recordCorrections func(comparison) // called after each pass of a comparison, with what it has found
	compared          func(comparison) // called when a comparison has succeeded
	comparisonFailed  func(error)      // called when a comparison has failed, and will be retried
	onRefused         func(topic)      // called when the broker refuses a topic

	mu       sync.Mutex
	tooLarge map[topic]string // by topic, the version of the value that the broker has refused as too large
}

// serve compares the retained messages with the state, and publishes, until the connection or the context ends. It returns why the connection ended, and
// whether that may be because of what was in flight.
func (s *session) serve(ctx context.Context) (failed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	for _, work := range []func(context.Context){s.publishAll, s.compareAll} {
		working.Go(func() { work(ctx) })
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-s.publisher.Done():
			err = s.publisher.Err()
			slow := s.backlog.transferTime() > s.env.Login.KeepAlive/2 // a PINGREQ waits behind what is in flight
			failed = !mqttconn.IsTakenOver(err) && (slow || !errors.Is(err, mqttconn.ErrSilent))
		case <-ticker.C:
			var overdue bool
			if overdue, failed = s.backlog.handleOverdue(time.Now()); overdue {
				err = errUnanswered
			}
		}
	}
	cancel()
	s.publisher.Abort() // nothing that is buffered is worth the wait
	working.Wait()
	return failed, err
}

var errUnanswered = errors.New("the broker leaves topics unanswered")

// publishAll publishes the topics of the backlog until the context or the connection ends. It waits for an answer only where the backlog does.
func (s *session) publishAll(ctx context.Context) {
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		next := s.backlog.take(time.Now())
		if next != nil {
			s.publisher.Expedite(next.alone)
			if !s.publish(ctx, next) {
				return
			}
			continue
		}
		s.publisher.Flush()
		select {
		case <-ctx.Done():
			return
		case <-s.publisher.Done():
			return
		case <-s.backlog.wake:
		case <-ticker.C: // a backoff of a quarantined mirror may have ended
		}
	}
}

// publish makes the retained message of a topic like the state, and reports whether the connection is still good.
func (s *session) publish(ctx context.Context, next *entry) bool {
	t := next.topic
	w, ok := s.lookup(t)
	if !ok { // the mirror is not configured any more; its retained messages stay
		s.skipped(next, resultSkipped)
		return true
	}
	message := &packets.Publish{Topic: t.String(), Retain: true, Payload: []byte(w.value), Properties: &packets.Properties{}}
	if w.version != "" {
		message.Properties.User = []packets.User{{Key: versionProperty, Value: w.version}}
	}
	s.backlog.setSize(next, len(w.value))
	err := s.publisher.Publish(ctx, message, func(reason byte, err error) {
		if err == nil { // on an error the topic stays in flight, because backlog.end may suspect it
			s.acknowledged(next, &w, reason)
		}
	})
	if errors.Is(err, mqttconn.ErrTooLarge) { // messageOf leaves out too large a value, so even a message without one is too large
		s.skipped(next, resultTooLarge)
		return true
	}
	return err == nil
}

// acknowledged handles the PUBACK of a topic, by its reason code.
func (s *session) acknowledged(sent *entry, w *wanted, reason byte) {
	switch {
	case reason < 0x80:
		if w.result != resultTooLarge {
			s.forgetTooLarge(sent.topic)
		}
		s.answered(sent, w.result)
	case reason == reasonPacketTooLarge && w.value != "" && s.noteTooLarge(sent.topic, w.version):
		s.backlog.done(sent, true)
		s.backlog.push(sent.topic) // the next message clears it; its result is counted
	default:
		s.answered(sent, resultRefused)
		s.onRefused(sent.topic)
	}
}

// reasonPacketTooLarge is the reason code of a PUBACK for a message that is larger than the broker accepts, although it has announced no such limit.
const reasonPacketTooLarge = 0x95

func (s *session) answered(sent *entry, result string) {
	s.env.Metrics.published.WithLabelValues(result).Inc()
	s.backlog.done(sent, result != resultRefused)
}

// skipped counts a topic for which nothing was sent, and ends the attempt to publish it.
func (s *session) skipped(taken *entry, result string) {
	s.env.Metrics.published.WithLabelValues(result).Inc()
	s.backlog.skip(taken)
}

// noteTooLarge remembers that the broker does not take a version, and reports whether there was room for that.
func (s *session) noteTooLarge(t topic, version string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.tooLarge[t]; !known && len(s.tooLarge) >= maxTooLarge {
		return false
	}
	s.tooLarge[t] = version
	return true
}

func (s *session) forgetTooLarge(t topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tooLarge, t)
}

func (s *session) isTooLarge(t topic, version string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tooLarge) > 0 && s.tooLarge[t] == version
}

// wanted is what the retained message of a topic is to be.
type wanted struct {
	result         string // resultSet; or resultCleared or resultTooLarge if there is to be no retained message
	value, version string
}

// messageOf returns what the retained message of a topic is to be. An empty value means that there is to be none.
func (s *session) messageOf(t topic, shown *fsm.Mirrored) wanted {
	if !shown.Exists || shown.Value == "" || !t.isValid() {
		return wanted{result: resultCleared}
	}
	w := wanted{resultSet, shown.Value, shown.Version.String()}
	if size := overhead + len(t.prefix) + len(t.key) + len(w.value) + len(w.version); size > s.maxPacket || s.isTooLarge(t, w.version) {
		return wanted{result: resultTooLarge}
	}
	return w
}

// overhead is the maximum size of a packet without its topic, its payload and the version, in bytes.
const overhead = 5 + 2 + 2 + 4 + 1 + 2 + len(versionProperty) + 2

// lookup returns what the retained message of a topic is to be. ok is false if no mirror in force has the topic's prefix.
func (s *session) lookup(t topic) (w wanted, ok bool) {
	s.env.View(func(m *fsm.Machine) {
		settings, _ := m.Settings()
		ok = slices.ContainsFunc(settings.Mirrors, func(mirror fsm.Mirror) bool { return mirror.Topic == t.prefix })
		shown, mirrored := m.Mirrored(t.key)
		if !mirrored || shown.Topic != t.prefix {
			shown = fsm.Mirrored{}
		}
		w = s.messageOf(t, &shown)
	})
	return w, ok
}

// versionProperty is the user property with the version of a key.
const versionProperty = "__ts"

func versionOf(message mqttconn.Message) string {
	if message.Properties == nil {
		return ""
	}
	return message.Properties.User.Get(versionProperty)
}

// scan calls visit for each topic that is to have a retained message, in the order of the keys. It returns how many keys have a mirror, and how many of
// these have an invalid topic. The state is locked while visit runs.
func (s *session) scan(visit func(topic, *wanted)) (keys, unshown int) {
	for after, more := "", true; more; {
		s.env.View(func(m *fsm.Machine) {
			after, more = m.ScanMirrored(after, scanPage, func(key string, shown fsm.Mirrored) {
				keys++
				t := topic{shown.Topic, key}
				if !t.isValid() {
					unshown++
				} else if w := s.messageOf(t, &shown); w.result == resultSet {
					visit(t, &w)
				}
			})
		})
	}
	return keys, unshown
}
