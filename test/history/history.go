// Package history records what clients of the store saw, and checks it against the promises of
// docs/guarantees.md. It shares the packages hlc and resp with the product. Its model of the store
// is not made from the product's state machine.
package history

import (
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"holdfast/hlc"
	"holdfast/resp"
)

// Verb is what an operation does.
type Verb string

// The verbs of the protocol.
const (
	Set    Verb = "SET"
	Get    Verb = "GET"
	Del    Verb = "DEL"
	VDel   Verb = "VDEL"
	Notify Verb = "KEYNOTIFY"
	Stop   Verb = "STOP" // KEYNOTIFY STOP
	Scan   Verb = "SCAN" // reads one page; Key is the pattern
	Txn    Verb = "TXN"  // executes Parts together; Key is what their keys begin with
)

// Condition is the condition of a SET. IFVER can also be that of a DEL.
type Condition string

// The conditions of the protocol.
const (
	Always Condition = ""
	NX     Condition = "NX"
	NEX    Condition = "NEX"
	// Expected is the value that had ExpectedVersion: it stands for the version, because values are
	// unique
	IfVer Condition = "IFVER"
)

// Op is one operation as its client saw it. Times are since the beginning of the run. Until the end
// of the run only its client writes to it, from several goroutines: a reply and a later copy are
// recorded under the client's mutex.
type Op struct {
	Number    int
	Client    string
	Verb      Verb
	Key       string
	Value     string // SET, VDEL: the value, or the label of a long one (test/workload/label.go)
	Condition Condition
	// NEX: the expected value, empty if that is Value; IFVER: the value that had ExpectedVersion
	Expected string
	// ExpectedVersion is the version that IFVER expects.
	ExpectedVersion hlc.Timestamp
	TTL             time.Duration
	Token           hlc.Timestamp
	Anonymous       bool // too little correlation data: the store cannot recognize copies
	Late            bool // copies may arrive after the store has forgotten the outcome
	NoExpiry        bool // sent without a message expiry
	Final           bool // a read at the end of the run
	Size            int  // size of the value in bytes, if Value is its label; otherwise 0
	KeySize         int  // size of the key in bytes, if Key is its label; otherwise 0

	// Wrapped says that a SET is sent as the only operation of a TXN. The reply is that of the
	// operation.
	Wrapped bool
	Parts   []Op // TXN: its operations; fields of a reply are not set

	Glob bool // KEYNOTIFY and STOP: the key is a pattern, and all keys that match are watched

	// SCAN: number of the scan among its client's, from 1; all pages of a scan have the same
	ScanNumber int
	After      string // SCAN: the continuation token, or its label; empty for the first page

	Call     time.Duration // when the request was first published
	Sendings []Sending     `json:"Copies"` // the first publication and all copies
	// Replied to Version describe the first reply. Again has later replies: those to a write have
	// to equal the first.
	Replied time.Duration
	Known   bool
	Reply   resp.Reply
	Payload string
	Version hlc.Timestamp // version in the reply; zero if there is none
	Again   []Repeat

	Sequence int // position among the operations of its client, in the order of sending
	NotesAt  int // how many notifications its client had when the reply came
}

// Sending is one publication of a request.
type Sending struct {
	At time.Duration
	// simulation: the sessions that got it; chaos: "broker" upon PUBACK; nil if it is not known to
	// have reached the broker
	Receivers []string
}

// Repeat is a later reply to an operation that already had one.
type Repeat struct {
	At      time.Duration
	Reply   resp.Reply
	Payload string
	Version hlc.Timestamp
}

// Correlation returns the correlation data of the operation's requests.
func (o *Op) Correlation() string {
	if o.Anonymous {
		return fmt.Sprintf("%08d", o.Number)
	}
	return fmt.Sprintf("%016d", o.Number)
}

// String describes the operation for people.
func (o *Op) String() string {
	text := fmt.Sprintf("#%d %s %s", o.Number, o.Client, o.command())
	for i := range o.Parts {
		text += "; " + o.Parts[i].command()
	}
	if !o.Token.IsZero() {
		text += " with token " + o.Token.String()
	}
	text += fmt.Sprintf(" [%.6f", o.Call.Seconds())
	if !o.Known {
		return text + " …] unknown"
	}
	text += fmt.Sprintf(" %.6f] %q", o.Replied.Seconds(), o.Payload)
	if !o.Version.IsZero() {
		text += " " + o.Version.String()
	}
	return text
}

// command describes what is sent.
func (o *Op) command() string {
	text := fmt.Sprintf("%s %s", o.Verb, o.Key)
	if o.Wrapped {
		text = "TXN " + text
	}
	if o.Glob {
		text += " GLOB"
	}
	if o.Value != "" {
		text += " " + o.Value
	}
	if o.Condition != Always {
		text += " " + string(o.Condition)
	}
	if o.Expected != "" {
		text += " expecting " + o.Expected
	}
	if !o.ExpectedVersion.IsZero() {
		text += " of version " + o.ExpectedVersion.String()
	}
	if o.TTL > 0 {
		text += fmt.Sprintf(" PX %d", o.TTL.Milliseconds())
	}
	return text
}

// sets returns the SETs of an operation: itself, or those among its parts.
func (o *Op) sets() (sets []*Op) {
	if o.Verb == Set {
		return []*Op{o}
	}
	for i := range o.Parts {
		if o.Parts[i].Verb == Set {
			sets = append(sets, &o.Parts[i])
		}
	}
	return sets
}

// read returns the values that a reply shows.
func read(reply *resp.Reply) (values []string) {
	if reply.Kind == resp.ReplyBulk {
		return []string{string(reply.Bulk)}
	}
	for i := range reply.Replies {
		values = append(values, read(&reply.Replies[i])...)
	}
	return values
}

// Applied reports whether the operation is known to have taken effect. A TXN takes effect if its
// conditions hold, even if it only reads. It is false for a GET, a SCAN and a KEYNOTIFY.
func (o *Op) Applied() bool {
	switch o.Verb {
	case Set:
		return o.Known && o.Reply.Kind == resp.ReplyOK
	case Txn:
		return o.Known && o.Reply.Kind == resp.ReplyArray
	case Del, VDel:
		return o.Known && o.Reply.Kind == resp.ReplyInteger && o.Reply.Integer == 1
	default:
		return false
	}
}

// Watches reports whether the operation begins or ends a watch that a key belongs to. In path.Match
// a '*' does not match a '/', in the store it does. For the workload's patterns and keys both give
// the same result.
func (o *Op) Watches(key string) bool {
	if o.Verb != Notify && o.Verb != Stop {
		return false
	}
	if !o.Glob {
		return o.Key == key
	}
	matched, err := path.Match(o.Key, key)
	return err == nil && matched
}

// Overloaded reports whether the operation was refused because the store was too busy.
func (o *Op) Overloaded() bool {
	return o.Known && o.Reply.Kind == resp.ReplyError && o.Reply.Error == errorOverloaded
}

// SentOnce reports whether the request was published once, and is known to have reached a session
// (simulation) or the broker (chaos).
func (o *Op) SentOnce() bool { return len(o.Sendings) == 1 && len(o.Sendings[0].Receivers) > 0 }

// Notification is a notification as its client saw it.
type Notification struct {
	At      time.Duration
	Key     string
	Deleted bool
	Value   string
	Version hlc.Timestamp
}

// Gap is a time at which a client may have missed notifications through no fault of the store.
type Gap struct {
	Client string
	At     time.Duration
}

// History is what all clients saw. The Add methods, NotificationCount and Keys are safe for
// concurrent use. Use the fields and the other methods only after the run.
type History struct {
	mu            sync.Mutex
	Ops           []*Op
	Notifications map[string][]Notification // by client
	Gaps          []Gap
	// descriptions of what no client should ever see, for instance of unreadable replies
	Odd   []string
	Ahead []string // descriptions of versions that are far ahead of real time
}

// New returns an empty history.
func New() *History { return &History{Notifications: make(map[string][]Notification)} }

// Add adds an operation, and numbers it.
func (h *History) Add(o *Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o.Number = len(h.Ops) + 1
	h.Ops = append(h.Ops, o)
}

// AddNote adds a notification.
func (h *History) AddNote(client string, n Notification) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Notifications[client] = append(h.Notifications[client], n)
}

// NotificationCount returns how many notifications a client has.
func (h *History) NotificationCount(client string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.Notifications[client])
}

// AddGap notes that a client may have missed notifications.
func (h *History) AddGap(client string, at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Gaps = append(h.Gaps, Gap{client, at})
}

// AddOdd adds a description of what no client should ever see.
func (h *History) AddOdd(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Odd = append(h.Odd, fmt.Sprintf(format, args...))
}

// AddAhead adds a description of a version that is far ahead of real time.
func (h *History) AddAhead(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Ahead = append(h.Ahead, fmt.Sprintf(format, args...))
}

// Keys returns all keys of operations and of the parts of transactions. It leaves out patterns, and
// keys that are recorded as labels.
func (h *History) Keys() (keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := make(map[string]bool)
	add := func(o *Op) {
		if o.Verb != Scan && !o.Glob && o.KeySize == 0 && !known[o.Key] {
			known[o.Key] = true
			keys = append(keys, o.Key)
		}
	}
	for _, o := range h.Ops {
		if o.Verb != Txn {
			add(o)
		}
		for i := range o.Parts {
			add(&o.Parts[i])
		}
	}
	return keys
}

// gapBetween reports whether a client may have missed something between two moments.
func (h *History) gapBetween(client string, from, to time.Duration) bool {
	return slices.ContainsFunc(h.Gaps,
		func(g Gap) bool { return g.Client == client && g.At >= from && g.At <= to })
}

// byKey returns the operations of each key, in the order in which they were added. The key of a
// SCAN or of a watch of a pattern is the pattern. The key of a TXN is what the keys of its parts
// begin with.
func (h *History) byKey() map[string][]*Op {
	keys := make(map[string][]*Op)
	for _, o := range h.Ops {
		keys[o.Key] = append(keys[o.Key], o)
	}
	return keys
}

// inKeyOrder returns the operations of each key, in the order of the keys.
func (h *History) inKeyOrder() iter.Seq2[string, []*Op] {
	return func(yield func(string, []*Op) bool) {
		keys := h.byKey()
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if !yield(key, keys[key]) {
				return
			}
		}
	}
}
