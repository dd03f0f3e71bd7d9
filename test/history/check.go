package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast/hlc"
	"holdfast/resp"
)

// Conditions are what a judge has to know of a run.
type Conditions struct {
	// ClocksWild says that the clocks of a majority of the nodes may have been wrong.
	ClocksWild bool
	// QuotaTight reports whether a quota may have been used up during an operation; nil is never.
	// WatchesTight says that the quota of watches may be used up at any time.
	QuotaTight   func(*Op) bool
	WatchesTight bool
	// Restricted is the prefix of the ids of clients to which policy may deny operations at times;
	// empty is none.
	Restricted string
	// ArrivedInOrder reports whether two requests of one client, each sent once, certainly reached
	// the leader in the order in which they were sent. If it is nil, the order of each client is
	// not checked.
	ArrivedInOrder func(a, b *Op) bool
	// NotificationsComplete says that no notification was given up, expired or lost during the run.
	NotificationsComplete bool
	// WatchTTL is how long a watch lasts that is not renewed; 0 is no limit.
	WatchTTL time.Duration
	// Patience bounds a search for an order of the operations on one key or bank. The checker makes
	// at most two searches for each. 0 is no bound.
	Patience time.Duration
}

// Violation is something that must never happen.
type Violation struct {
	Check string
	Text  string
}

// Findings are the result of Check.
type Findings struct {
	Violations []Violation
	// ExpectedNotes is how many notifications had to come, Repeated how many came again.
	ExpectedNotes, Repeated int
	// Checked is how many keys and banks (see banks.go) were checked against a model. Undecided is
	// how many of them took too long.
	Checked, Undecided int
	// Sums is how many transactions read all accounts of a bank.
	Sums int
	// Scans is how many scans were checked, Pages how many pages they had.
	Scans, Pages int
	// Contested is how many lock acquisitions had their token used after another client had
	// acquired the lock.
	Contested int
	// Ordered says that the order of each client was checked, Complete that notifications were
	// checked for completeness.
	Ordered, Complete bool
	// picture shows the first key or bank whose replies no order of its operations explains. It is
	// nil if there is none.
	picture *picture
}

// picture is the input of porcupine's drawing of operations.
type picture struct {
	model porcupine.Model
	info  porcupine.LinearizationInfo
}

type judge struct {
	history    *History
	conditions Conditions
	findings   Findings
	lastUse    map[hlc.Timestamp]time.Duration // call of the last request with each fencing token
	count      map[string]int                  // number of violations, by check
}

// MaxViolations is how many violations of each check are kept.
const MaxViolations = 20

func (j *judge) violation(check, format string, args ...any) {
	if j.count[check]++; j.count[check] <= MaxViolations {
		j.findings.Violations = append(j.findings.Violations,
			Violation{check, fmt.Sprintf(format, args...)})
	}
}

// Check checks a history against docs/guarantees.md. The history must not change meanwhile.
func Check(h *History, conditions Conditions) *Findings {
	j := &judge{
		history: h, conditions: conditions, lastUse: make(map[hlc.Timestamp]time.Duration),
		count: make(map[string]int),
	}
	for _, o := range h.Ops {
		if !o.Token.IsZero() {
			j.lastUse[o.Token] = max(j.lastUse[o.Token], o.Call)
		}
	}
	for _, text := range h.Odd {
		j.violation("odd reply", "%s", text)
	}
	if !conditions.ClocksWild {
		for _, text := range h.Ahead {
			j.violation("version ahead", "%s", text)
		}
	}
	j.checkErrors()
	j.checkRepeats()
	j.checkVersions()
	j.findings.Ordered, j.findings.Complete = conditions.ArrivedInOrder != nil,
		conditions.NotificationsComplete
	if conditions.ArrivedInOrder != nil {
		j.checkOrder()
	}
	j.checkFencing()
	j.checkLocks()
	j.checkExpiry()
	j.checkElements()
	j.checkLost()
	j.checkNotes()
	j.checkScans()
	j.checkLinearizable()
	j.checkBanks()
	return &j.findings
}

// family returns the first level of a key. It shows what the workload (test/workload/families.go)
// uses the key for: r for registers, p for keys on which one client sends without waiting for
// replies, brief for keys that expire, and so on.
func family(key string) string {
	name, _, _ := strings.Cut(key, "/")
	return name
}

// checkErrors: every error has a cause in the run, and a refused request has no effect.
func (j *judge) checkErrors() {
	refused := make(map[string]*Op)
	for _, o := range j.history.Ops {
		if !o.Known || o.Reply.Kind != resp.ReplyError {
			continue
		}
		for _, set := range o.sets() {
			if set.Value != "" && !o.Late && !o.Anonymous {
				// a copy of a late or anonymous SET may take effect after an error
				refused[set.Value] = o
			}
		}
		explained := false
		switch o.Reply.Error {
		case errorOverloaded:
			explained = true
		case errorTokenLower, errorTokenRequired:
			explained = family(o.Key) == "protected"
		case errorQuota:
			explained = o.Verb == Notify && j.conditions.WatchesTight ||
				j.conditions.QuotaTight != nil && j.conditions.QuotaTight(o)
		case errorNotAuthorized:
			explained = j.conditions.Restricted != "" &&
				strings.HasPrefix(o.Client, j.conditions.Restricted)
		case errorTimestamp, errorToken:
			explained = j.conditions.ClocksWild
		}
		if !explained {
			j.violation("odd reply", "%s", o)
		}
	}
	for _, o := range j.history.Ops {
		for _, value := range read(&o.Reply) {
			if r := refused[value]; r != nil && r.Value != r.Client {
				// a lock's value is its client's id, so it does not identify one SET
				j.violation("effect after an error", "%s was seen by %s", r, o)
			}
		}
	}
	for _, client := range slices.Sorted(maps.Keys(j.history.Notifications)) {
		for _, n := range j.history.Notifications[client] {
			if r := refused[n.Value]; r != nil && !n.Deleted && r.Value != r.Client {
				j.violation("effect after an error", "%s was told to %s", r, client)
			}
		}
	}
}

// checkRepeats: all replies to one request are equal, except for GET, SCAN, anonymous and late
// requests.
func (j *judge) checkRepeats() {
	for _, o := range j.history.Ops {
		if o.Verb == Get || o.Verb == Scan || o.Anonymous || o.Late {
			continue
		}
		for _, again := range o.Again {
			if again.Payload != o.Payload || again.Version != o.Version {
				j.violation("exactly once", "%s was answered %q %s as well", o, again.Payload,
					again.Version)
			}
		}
	}
}

// checkVersions: a write that began after another one was answered has a higher version, and a
// value has one version.
func (j *judge) checkVersions() {
	versions := make(map[string]hlc.Timestamp) // version of each value
	given := make(map[hlc.Timestamp]*Op)
	var sets []*Op
	for _, o := range j.history.Ops {
		if len(o.sets()) == 0 || !o.Applied() {
			continue
		}
		sets = append(sets, o)
		if other := given[o.Version]; other != nil {
			j.violation("versions", "%s and %s have the same version", o, other)
		}
		given[o.Version] = o
		if last := o.sets()[len(o.sets())-1]; family(o.Key) != "lock" && last.Value != "" &&
			!o.Late {
			// a copy of a late SET may take effect again
			versions[last.Value] = o.Version
		}
	}
	for _, client := range slices.Sorted(maps.Keys(j.history.Notifications)) {
		for _, n := range j.history.Notifications[client] {
			f := family(n.Key)
			if n.Deleted || f != "bank" && f != "watched" {
				continue
			}
			switch version, known := versions[n.Value]; {
			case known && version != n.Version:
				j.violation("versions",
					"%s was told of %s %s with another version than it has: %s, not %s", client,
					n.Key, n.Value, n.Version, version)
			case f == "bank":
				// the reply has only the version of the last SET, so the others are learned here
				versions[n.Value] = n.Version
			}
		}
	}
	byReply := slices.SortedFunc(slices.Values(sets),
		func(a, b *Op) int { return cmp.Compare(a.Replied, b.Replied) })
	slices.SortFunc(sets, func(a, b *Op) int { return cmp.Compare(a.Call, b.Call) })
	var latest *Op
	for _, o := range sets {
		for len(byReply) > 0 && byReply[0].Replied < o.Call {
			if latest == nil || latest.Version.Before(byReply[0].Version) {
				latest = byReply[0]
			}
			byReply = byReply[1:]
		}
		if latest != nil && o.Version.Before(latest.Version) {
			j.violation("versions", "%s began after %s was answered, and has a lower version", o,
				latest)
		}
	}
	for _, o := range j.history.Ops {
		if !o.Known || o.Verb != Get || o.Reply.Kind != resp.ReplyBulk || family(o.Key) == "lock" ||
			o.Anonymous {
			continue
		}
		if version, known := versions[string(o.Reply.Bulk)]; known &&
			family(o.Key) != "anonymous" && version != o.Version {
			j.violation("versions", "%s shows another version than the SET got: %s", o, version)
		}
	}
}

// checkOrder: requests that a client sends without waiting take effect in the order of sending, and
// its reads see its earlier writes.
func (j *judge) checkOrder() {
	type stream struct{ client, key string }
	sent := make(map[stream][]*Op)
	for _, o := range j.history.Ops {
		if f := family(o.Key); f == "p" || f == "flood" {
			sent[stream{o.Client, o.Key}] = append(sent[stream{o.Client, o.Key}], o)
		}
	}
	byClientAndKey := func(a, b stream) int {
		return cmp.Or(cmp.Compare(a.client, b.client),
			cmp.Compare(a.key, b.key))
	}
	for _, from := range slices.SortedFunc(maps.Keys(sent), byClientAndKey) {
		ops := sent[from]
		slices.SortFunc(ops, func(a, b *Op) int { return cmp.Compare(a.Sequence, b.Sequence) })
		var latest *Op
		for _, o := range ops {
			if !o.Known || !o.SentOnce() || o.Reply.Kind == resp.ReplyError || o.Verb == Notify ||
				o.Verb == Stop {
				continue
			}
			if latest != nil && o.Version.Before(latest.Version) &&
				j.conditions.ArrivedInOrder(latest, o) {
				j.violation("order of a client", "%s was sent after %s, and took effect before it",
					o, latest)
			}
			if o.Verb == Set && o.Applied() && (latest == nil || latest.Version.Before(o.Version)) {
				latest = o
			}
		}
	}
}

// checkFencing: after a write with a token, no write of the key with an older token takes effect.
func (j *judge) checkFencing() {
	for key, ops := range j.history.inKeyOrder() {
		if family(key) != "protected" {
			continue
		}
		ops = slices.DeleteFunc(slices.Clone(ops),
			func(o *Op) bool { return o.Verb != Set || !o.Applied() })
		slices.SortFunc(ops, func(a, b *Op) int { return a.Version.Compare(b.Version) })
		for i := 1; i < len(ops); i++ {
			if ops[i].Token.Before(ops[i-1].Token) {
				j.violation("fencing", "%s was let in after %s", ops[i], ops[i-1])
			}
		}
	}
}

// checkLocks: no client acquires a lock before another client's time to live has passed, or that
// client has released it. The fencing token of a lock is the version of the SET that acquired it:
// checkVersions checks that versions grow.
func (j *judge) checkLocks() {
	for key, ops := range j.history.inKeyOrder() {
		if family(key) != "lock" {
			continue
		}
		acquired := slices.DeleteFunc(slices.Clone(ops),
			func(o *Op) bool { return o.Verb != Set || !o.Applied() })
		slices.SortFunc(acquired, func(a, b *Op) int { return a.Version.Compare(b.Version) })
		for i, o := range acquired {
			heldUntil := o.Call + o.TTL
			for _, d := range ops {
				if d.Verb == VDel && d.Client == o.Client && (!d.Known || d.Replied >= o.Call) {
					heldUntil = min(heldUntil, max(d.Call, o.Call))
				}
			}
			for _, other := range acquired[i+1:] {
				if other.Client != o.Client && other.Replied < heldUntil {
					j.violation("lock lost early", "%s got the lock of %s", other, o)
				}
			}
			if j.isContested(o, acquired[i+1:]) {
				j.findings.Contested++
			}
		}
	}
}

// isContested reports whether the token of a lock acquisition was used after another client had
// acquired the lock: the first client did not know yet that it had lost the lock.
func (j *judge) isContested(o *Op, later []*Op) bool {
	last := j.lastUse[o.Version]
	return slices.ContainsFunc(later, func(other *Op) bool {
		return other.Client != o.Client &&
			other.Replied < last
	})
}

// checkExpiry: a key with a time to live exists until that has passed, and does not exist at the
// end of the run.
func (j *judge) checkExpiry() {
	for key, ops := range j.history.inKeyOrder() {
		if family(key) != "brief" {
			continue
		}
		var set *Op
		for _, o := range ops {
			switch {
			case o.Verb == Set:
				set = o
			case set == nil || !set.Applied() || !o.Known || o.Call < set.Replied:
			case o.Reply.Kind == resp.ReplyNull && o.Replied < set.Call+set.TTL:
				j.violation("expired early", "%s although %s", o, set)
			}
		}
	}
	for _, o := range j.history.Ops {
		if o.Final && family(o.Key) == "brief" && o.Known && o.Reply.Kind == resp.ReplyBulk {
			j.violation("never expired", "%s", o)
		}
	}
}

// checkLost: the last read of a key of the families flood and watched is no older than its last
// acknowledged SET. No model checks these keys.
func (j *judge) checkLost() {
	acknowledged := make(map[string]*Op)
	for _, o := range j.history.Ops {
		if o.Verb == Set && o.Applied() &&
			(acknowledged[o.Key] == nil || acknowledged[o.Key].Version.Before(o.Version)) {
			acknowledged[o.Key] = o
		}
	}
	for _, o := range j.history.Ops {
		last := acknowledged[o.Key]
		if !o.Final || !o.Known || last == nil || family(o.Key) != "flood" &&
			family(o.Key) != "watched" {
			continue
		}
		lost := o.Reply.Kind == resp.ReplyBulk && o.Version.Before(last.Version) ||
			o.Reply.Kind == resp.ReplyNull && family(o.Key) == "flood"
		if lost {
			j.violation("acknowledged write lost", "%s after %s", o, last)
		}
	}
}

// checkLinearizable: the operations on each key are linearizable. Banks are checked by checkBanks.
func (j *judge) checkLinearizable() {
	for key, all := range j.history.inKeyOrder() {
		switch family(key) {
		case "r", "p", "protected", "large", "element":
		default:
			continue
		}
		ops := slices.DeleteFunc(slices.Clone(all), func(o *Op) bool {
			return o.Verb == Notify || o.Verb == Stop || o.Anonymous && o.Verb != Get
		})
		j.checkAgainstModel(registerModel(), key, ops)
	}
}

// checkAgainstModel: there is an order of the operations in which the model gives every reply, and
// each takes effect between its call and its reply. key is the key or the bank that they work on.
func (j *judge) checkAgainstModel(model porcupine.Model, key string, ops []*Op) {
	j.findings.Checked++
	result, info := linearizable(model, ops, j.conditions.Patience)
	switch result {
	case porcupine.Illegal:
		var lines []string
		for _, o := range ops {
			lines = append(lines, o.String())
		}
		j.violation("linearizability",
			"no order of the operations on %s explains their replies:\n    %s", key,
			strings.Join(lines, "\n    "))
		if j.findings.picture == nil {
			j.findings.picture = &picture{model, info}
		}
	case porcupine.Unknown:
		j.findings.Undecided++
	}
}
