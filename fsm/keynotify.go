package fsm

import (
	"errors"
	"math"

	"github.com/cespare/xxhash/v2"

	"holdfast/internal/glob"
	"holdfast/internal/topics"
)

// maxNotificationTopic is how long an MQTT topic name can be, in bytes.
const maxNotificationTopic = 65_535

// fitsTopic reports whether a client can be notified of a key: the notification topic contains the
// client id and the key.
func fitsTopic[T ~string | ~[]byte](clientID string, key T) bool {
	return topics.NotificationSize(clientID, key) <= maxNotificationTopic
}

func (m *Machine) keyNotify(command *Command, result *Result) {
	added := &watch{
		watchID: command.watchID(), dialect: result.Dialect,
		index: m.index, renewed: m.now, brokerTime: command.BrokerTime,
	}
	if command.Pattern {
		pattern, err := glob.Compile(added.key)
		if err != nil {
			result.fail(ErrorSyntax)
			if errors.Is(err, glob.ErrTooLong) {
				result.failQuota(LimitPatternBytes)
			}
			return
		}
		added.pattern = &watchedPattern{pattern, command.Principal}
	}
	if limit := m.watches.exceeded(&m.settings.Limits, added); limit != NoLimit {
		result.failQuota(limit)
		return
	}
	m.watches.put(added)
	kind := byte('K')
	if command.Pattern {
		kind = 'Q'
	}
	m.mixIntoStateHash(kind, xxhash.Sum64(command.Key),
		xxhash.Sum64String(command.Principal.ClientID), uint64(result.Dialect),
		uint64(command.BrokerTime))
	result.Code = CodeOK
}

// watchID returns which watch a KeyNotify, a KeyNotifyStop or a WatchEnd is about.
func (c *Command) watchID() watchID {
	return watchID{key: string(c.Key), isPattern: c.Pattern, clientID: c.Principal.ClientID}
}

func (m *Machine) keyNotifyStop(command *Command, result *Result) {
	found, ok := m.watches.find(command.watchID())
	if !ok {
		result.Code = CodeMissing
		return
	}
	m.endWatch(found)
	result.Code = CodeOK
}

// clientGone ends the watches of a client that disconnected. Times of the broker are only compared
// with times of the broker: a watch that was made at an unknown time, or after the disconnect,
// stays.
func (m *Machine) clientGone(command *Command) {
	for _, candidate := range m.watches.ofClient(command.Principal.ClientID, command.Everyone) {
		if candidate.brokerTime != 0 && candidate.brokerTime <= command.BrokerTime {
			m.endWatch(candidate)
		}
	}
}

// watchGrace is in milliseconds of cluster time. A notification without a subscriber ends a watch
// only if the watch was made or renewed at least watchGrace before the change: a client may send
// KEYNOTIFY before it subscribes.
const watchGrace = 5_000

// anyAge is the NotificationIndex of a WatchEnd by an operator: it ends exactly one watch, whatever
// its age.
const anyAge = math.MaxUint64

// watchEnd ends one watch for an operator. For a notification without a subscriber it ends the
// client's watches of the key, and of patterns that match the key. Of these, watches that were made
// or renewed less than watchGrace before the change stay.
func (m *Machine) watchEnd(command *Command) {
	if found, ok := m.watches.find(command.watchID()); ok && command.mayEnd(found) {
		m.endWatch(found)
	}
	clientID := command.Principal.ClientID
	if command.NotificationIndex == anyAge || !m.watches.patterns.has(clientID) {
		return
	}
	matching, _ := m.watches.patterns.appendMatching(nil, string(command.Key))
	for _, w := range matching {
		if w.clientID == clientID && command.mayEnd(w.watch) {
			m.endWatch(w.watch)
		}
	}
}

// mayEnd reports whether the age of a watch lets a WatchEnd end it.
func (c *Command) mayEnd(w *watch) bool {
	return c.NotificationIndex == anyAge || w.index < c.NotificationIndex && w.renewed+
		watchGrace <= c.ChangedAt
}

func (m *Machine) endWatch(ended *watch) {
	m.watches.delete(ended)
	kind := byte('W')
	if ended.isPattern {
		kind = 'V'
	}
	m.mixIntoStateHash(kind, xxhash.Sum64String(ended.key), xxhash.Sum64String(ended.clientID))
}
