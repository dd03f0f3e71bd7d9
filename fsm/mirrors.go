package fsm

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"holdfast/hlc"
	"holdfast/internal/glob"
)

// Mirror is a setting: the leader publishes the value of each key that matches a pattern as a
// retained message (docs/protocol.md, Mirrors).
type Mirror struct {
	Keys  string // pattern of package glob
	Topic string // prefix of the topic; the key follows
}

// MaxMirrors bounds the mirrors. Together with glob.MaxWatchedKey it bounds what they add to the
// cost of a change.
const MaxMirrors = 64

var (
	errMirrorPattern = errors.New("the pattern of a mirror")
	errMirrors       = fmt.Errorf("more than %d mirrors", MaxMirrors)
)

// mirrors are the mirrors in force. They are derived from the settings.
type mirrors []compiledMirror

type compiledMirror struct {
	pattern *glob.Pattern
	topic   string
}

// compileMirrors compiles the patterns of mirrors. All replicas must accept the same mirrors, so
// that may change only with a version of the log.
func compileMirrors(settings []Mirror) (mirrors, error) {
	if len(settings) > MaxMirrors {
		return nil, errMirrors
	}
	compiled := make(mirrors, len(settings))
	for i, mirror := range settings {
		pattern, err := glob.Compile(mirror.Keys)
		if err != nil {
			return nil, fmt.Errorf("%w: %q: %w", errMirrorPattern, mirror.Keys, err)
		}
		compiled[i] = compiledMirror{pattern, mirror.Topic}
	}
	return compiled, nil
}

// of returns the topic prefix of the first mirror that matches a key. A key that is longer than
// glob.MaxWatchedKey, or not valid UTF-8, has no mirror.
func (s mirrors) of(key string) (topic string, ok bool) {
	if len(s) == 0 || len(key) > glob.MaxWatchedKey || !utf8.ValidString(key) {
		return "", false
	}
	for i := range s {
		if s[i].pattern.MatchText(key) {
			return s[i].topic, true
		}
	}
	return "", false
}

// cost returns an upper bound on the work to find the mirror of a key: the sum over all mirrors of
// glob.Pattern.Weight for each byte of the key.
func (s mirrors) cost(key string) (cost int) {
	if len(key) > glob.MaxWatchedKey {
		return 0
	}
	for i := range s {
		cost += s[i].pattern.Weight() * (len(key) + 1)
	}
	return cost
}

// MirroredKey is a key with a mirror.
type MirroredKey struct {
	Topic string // prefix of the topic; the key follows
	Key   string
}

// Mirrored is a key as its mirror shows it.
type Mirrored struct {
	Topic   string // prefix of the topic
	Exists  bool   // the key exists, and the fields below are set
	Value   string
	Version hlc.Timestamp
}

// Mirrored returns a key as its mirror shows it. ok is false if the key has no mirror.
func (m *Machine) Mirrored(key string) (shown Mirrored, ok bool) {
	topic, ok := m.mirrors.of(key)
	if !ok {
		return Mirrored{}, false
	}
	if found, exists := m.values.find([]byte(key)); exists && found.deadline > m.now {
		return mirroredRecord(topic, found), true
	}
	return Mirrored{Topic: topic}, true
}

// mirroredRecord returns a record as a mirror shows it.
func mirroredRecord(topic string, r *record) Mirrored {
	return Mirrored{
		Topic: topic, Exists: true, Value: r.value(),
		Version: r.version().Timestamp(hlc.StoreNodeID),
	}
}

// maxMirrorScanCost bounds the bytes that one call of ScanMirrored compares with patterns. The
// state is locked meanwhile.
const maxMirrorScanCost = 2_000_000

// ScanMirrored examines the next keys after a key, in byte order: limit keys, or fewer if it takes
// long to find their mirrors. It calls visit for each that has not expired and has a mirror. It
// returns the last key that it examined, or after, and whether there are more.
func (m *Machine) ScanMirrored(after string, limit int,
	visit func(key string, shown Mirrored),
) (last string, more bool) {
	last = after
	cost := 0
	m.values.byKey.Ascend(&record{data: after, keySize: uint32(len(after))}, func(r *record) bool {
		if r.key() == after {
			return true
		}
		if limit == 0 || cost >= maxMirrorScanCost {
			more = true
			return false
		}
		limit--
		last = r.key()
		cost += m.mirrors.cost(last)
		if topic, ok := m.mirrors.of(last); ok && r.deadline > m.now {
			visit(last, mirroredRecord(topic, r))
		}
		return true
	})
	return last, more
}
