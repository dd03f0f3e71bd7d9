package mirror

import (
	"slices"
	"sync"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
)

const (
	// scanPage is how many keys are looked at while the state is locked.
	scanPage = 1000
	// maxTooLarge bounds the topics that are remembered because the broker has refused their values
	// as too large.
	maxTooLarge = 4096
)

// desired computes from the state what the broker's retained messages are to be. It belongs to one
// connection, because brokers differ in what is too large for them. It is safe for concurrent use.
type desired struct {
	view func(f func(*fsm.Machine)) // Environment.View
	// size in bytes of the largest packet that the broker accepts
	maxPacket int

	mu sync.Mutex
	// by topic, the version of the value that the broker has refused as too large
	tooLarge map[topic]string
}

func newDesired(view func(f func(*fsm.Machine)), maxPacket int) *desired {
	return &desired{view: view, maxPacket: maxPacket, tooLarge: make(map[topic]string)}
}

// wanted is what the retained message of a topic is to be.
type wanted struct {
	// resultSet; or resultCleared or resultTooLarge if there is to be no retained message
	result         string
	value, version string
}

// messageOf returns what the retained message of a topic is to be. An empty value means that there
// is to be none.
func (d *desired) messageOf(t topic, shown *fsm.Mirrored) wanted {
	if !shown.Exists || shown.Value == "" || !t.isValid() {
		return wanted{result: resultCleared}
	}
	w := wanted{resultSet, shown.Value, shown.Version.String()}
	if size := overhead + len(t.prefix) + len(t.key) + len(w.value) +
		len(w.version); size > d.maxPacket || d.isTooLarge(t, w.version) {
		return wanted{result: resultTooLarge}
	}
	return w
}

// overhead is the maximum size of a packet without its topic, its payload and the version, in
// bytes.
const overhead = 5 + 2 + 2 + 4 + 1 + 2 + len(versionProperty) + 2

// lookup returns what the retained message of a topic is to be. ok is false if no mirror in force
// has the topic's prefix.
func (d *desired) lookup(t topic) (w wanted, ok bool) {
	d.view(func(m *fsm.Machine) {
		settings, _ := m.Settings()
		ok = slices.ContainsFunc(settings.Mirrors,
			func(mirror fsm.Mirror) bool { return mirror.Topic == t.prefix })
		shown, mirrored := m.Mirrored(t.key)
		if !mirrored || shown.Topic != t.prefix {
			shown = fsm.Mirrored{}
		}
		w = d.messageOf(t, &shown)
	})
	return w, ok
}

// scan calls visit for each topic that is to have a retained message, in the order of the keys. It
// returns how many keys have a mirror, and how many of these have an invalid topic. The state is
// locked while visit runs.
func (d *desired) scan(visit func(topic, *wanted)) (keys, unshown int) {
	for after, more := "", true; more; {
		d.view(func(m *fsm.Machine) {
			after, more = m.ScanMirrored(after, scanPage, func(key string, shown fsm.Mirrored) {
				keys++
				t := topic{shown.Topic, key}
				if !t.isValid() {
					unshown++
				} else if w := d.messageOf(t, &shown); w.result == resultSet {
					visit(t, &w)
				}
			})
		})
	}
	return keys, unshown
}

// rememberTooLarge remembers that the broker does not take a version, and reports whether there was
// room for that.
func (d *desired) rememberTooLarge(t topic, version string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.tooLarge[t]; !known && len(d.tooLarge) >= maxTooLarge {
		return false
	}
	d.tooLarge[t] = version
	return true
}

func (d *desired) forgetTooLarge(t topic) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.tooLarge, t)
}

func (d *desired) isTooLarge(t topic, version string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.tooLarge) > 0 && d.tooLarge[t] == version
}

// versionProperty is the user property with the version of a key.
const versionProperty = "__ts"

func versionOf(message mqttconn.Message) string {
	if message.Properties == nil {
		return ""
	}
	return message.Properties.User.Get(versionProperty)
}
