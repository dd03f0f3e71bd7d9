package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/hlc"
	"holdfast/resp"
)

// verb is what an operation does.
type verb string

const (
	opSet    verb = "SET"
	opGet    verb = "GET"
	opDel    verb = "DEL"
	opVDel   verb = "VDEL"
	opNotify verb = "KEYNOTIFY"
	opStop   verb = "STOP"
)

// condition restricts a SET.
type condition string

const (
	always condition = ""
	nx     condition = "NX"
	nex    condition = "NEX"
)

// op is one operation as its client saw it. It is written by its client only, until the end of the run.
type op struct {
	number    int
	client    string
	verb      verb
	key       string
	value     string // SET, VDEL
	condition condition
	expected  string // NEX with an expected value; empty: the new one
	ttl       time.Duration
	token     hlc.Timestamp
	anonymous bool // without enough correlation data to be recognized
	noExpiry  bool // no message expiry

	call   time.Duration // first publication
	copies []sending
	// what came back: the first reply counts, others of a write have to be equal
	replied time.Duration
	known   bool
	reply   resp.Reply
	payload string
	version hlc.Timestamp // of the reply; zero for none
	again   []repeat

	sequence int // among those of its client, as sent
	notesAt  int // how many notifications its client had when the reply came
}

// sending is one publication of a request.
type sending struct {
	at        time.Duration
	receivers []string // sessions that got it; nil when the broker did not
}

// repeat is a further reply.
type repeat struct {
	at      time.Duration
	reply   resp.Reply
	payload string
	version hlc.Timestamp
}

// String describes the operation for people.
func (o *op) String() string {
	text := fmt.Sprintf("#%d %s %s %s", o.number, o.client, o.verb, o.key)
	if o.value != "" {
		text += " " + o.value
	}
	if o.condition != always {
		text += " " + string(o.condition)
	}
	if o.expected != "" {
		text += " expecting " + o.expected
	}
	if o.ttl > 0 {
		text += fmt.Sprintf(" PX %d", o.ttl.Milliseconds())
	}
	if !o.token.IsZero() {
		text += " with token " + o.token.String()
	}
	text += fmt.Sprintf(" [%.6f", o.call.Seconds())
	if !o.known {
		return text + " …] unknown"
	}
	text += fmt.Sprintf(" %.6f] %q", o.replied.Seconds(), o.payload)
	if !o.version.IsZero() {
		text += " " + o.version.String()
	}
	return text
}

// applied reports whether the operation is known to have changed something.
func (o *op) applied() bool {
	switch o.verb {
	case opSet:
		return o.known && o.reply.Kind == resp.ReplyOK
	case opDel, opVDel:
		return o.known && o.reply.Kind == resp.ReplyInteger && o.reply.Integer == 1
	default:
		return false
	}
}

// singly reports whether the request was published once, and got to the broker.
func (o *op) singly() bool { return len(o.copies) == 1 && len(o.copies[0].receivers) > 0 }

// note is a notification as its client saw it.
type note struct {
	at      time.Duration
	key     string
	deleted bool
	value   string
	version hlc.Timestamp
}

// gap is a time at which a client may have missed notifications through no fault of the store.
type gap struct {
	client string
	at     time.Duration
}

// history is what all clients saw.
type history struct {
	mu    sync.Mutex
	ops   []*op
	notes map[string][]note
	gaps  []gap
	// odd is what no client should ever see: replies that cannot be read, for instance.
	odd []string
}

func newHistory() *history { return &history{notes: make(map[string][]note)} }

func (h *history) add(o *op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o.number = len(h.ops) + 1
	h.ops = append(h.ops, o)
}

func (h *history) addNote(client string, n note) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes[client] = append(h.notes[client], n)
}

func (h *history) noteCount(client string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.notes[client])
}

func (h *history) addGap(client string, at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gaps = append(h.gaps, gap{client, at})
}

func (h *history) addOdd(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.odd = append(h.odd, fmt.Sprintf(format, args...))
}

// gapBetween reports whether a client may have missed something between two moments.
func (h *history) gapBetween(client string, from, to time.Duration) bool {
	return slices.ContainsFunc(h.gaps, func(g gap) bool { return g.client == client && g.at >= from && g.at <= to })
}

// byKey returns the operations of each key, in the order of their calls.
func (h *history) byKey() map[string][]*op {
	keys := make(map[string][]*op)
	for _, o := range h.ops {
		keys[o.key] = append(keys[o.key], o)
	}
	return keys
}
