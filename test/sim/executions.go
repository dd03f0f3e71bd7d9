package sim

import (
	"strings"
	"time"

	"holdfast/fsm"
	"holdfast/resp"
	"holdfast/test/history"
	"holdfast/test/sim/schedule"
)

// executions records which SETs of clients took effect in the log. A value is written by one
// request and its copies only.
type executions struct {
	mu     schedule.Mutex
	newest uint64             // index of the newest entry that some node has applied
	last   map[string]outcome // the last outcome of the request that sets a value, by key and value
	// requests that took effect while an earlier outcome of theirs had to be remembered
	again []string
}

type outcome struct {
	at time.Duration // when an entry with the request was last applied
	// how long the outcome has to be remembered after that; 0 for a request without an identity
	lifetime time.Duration
	effect   bool // the request took effect
}

func newExecutions() executions {
	return executions{last: make(map[string]outcome)}
}

// apply notes the effects of an entry, when the first node applies it.
func (e *executions) apply(o *fsm.EntryOutcome, now time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if o.Index <= e.newest {
		return
	}
	e.newest = o.Index
	if o.Skipped {
		return
	}
	for i := range o.Commands {
		command, result := &o.Commands[i], &o.Results[i]
		if command.Kind == fsm.KindTxn && result.Code == fsm.CodeReplies {
			e.recordSets(command, result, now)
		} else {
			e.recordSet(command, result, now)
		}
	}
}

// recordSets notes the outcomes of the SETs of a transaction that took effect.
func (e *executions) recordSets(transaction *fsm.Command, result *fsm.Result, now time.Duration) {
	for i, set := range transaction.Operations {
		set.ID, set.Lifetime = transaction.ID, transaction.Lifetime
		e.recordSet(&set, &fsm.Result{Code: result.Replies[i].Code, Repeat: result.Repeat}, now)
	}
}

// recordSet notes the outcome of a command or of an operation of a transaction, if it is a SET of a
// value that no other request writes.
func (e *executions) recordSet(set *fsm.Command, result *fsm.Result, now time.Duration) {
	if set.Kind == fsm.KindSet && hasOneWriter(string(set.Key), string(set.Value)) &&
		result.Code != fsm.CodeNoReply {
		e.record(set, result, now)
	}
}

// commitTime bounds the time that an entry needs to be committed. Outcomes are forgotten by cluster
// time, which may differ from virtual time by so much. Of a short lifetime at least the first half
// is checked.
const commitTime = 8 * time.Second

// record notes the outcome of a request.
func (e *executions) record(command *fsm.Command, result *fsm.Result, now time.Duration) {
	what := string(command.Key) + " " + string(command.Value)
	known, lifetime := e.last[what], time.Duration(0)
	if command.IsRemembered() {
		lifetime = time.Duration(command.Lifetime) * time.Millisecond
	}
	effect := result.Code == fsm.CodeOK && !result.Repeat
	if effect && now-known.at < max(known.lifetime/2, known.lifetime-commitTime) {
		e.again = append(e.again, what)
	}
	e.last[what] = outcome{at: now, lifetime: lifetime, effect: effect || known.effect}
}

// hasOneWriter reports whether a value is written by one request only.
func hasOneWriter(key, value string) bool {
	return value != "" && !strings.HasPrefix(key, "lock/") && !strings.HasPrefix(key, "app/")
}

// effect reports whether a SET took effect.
func (e *executions) effect(o *history.Op) bool {
	return e.last[o.Key+" "+o.Value].effect && o.Verb == history.Set
}

// checkExecutions checks that no request took effect twice, and that none took effect that was
// answered with an error. Not checked are late requests, whose outcome may be forgotten, and those
// without an identity, of which a copy may have taken effect, unless they were refused as overload.
func (s *simulation) checkExecutions() {
	for _, what := range s.executions.again {
		s.violation("exactly once", "SET %s took effect while its outcome had to be remembered",
			what)
	}
	for _, o := range s.load.History.Ops {
		refused := o.Known && o.Reply.Kind == resp.ReplyError && !o.Late &&
			(!o.Anonymous || o.Overloaded())
		for _, set := range o.Operations() {
			if refused && hasOneWriter(set.Key, set.Value) && s.executions.effect(&set) {
				s.violation("effect after an error", "%s took effect", o)
			}
		}
	}
}
