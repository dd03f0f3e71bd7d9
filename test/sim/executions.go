package sim

import (
	"strings"
	"time"

	"holdfast/fsm"
	"holdfast/resp"
	"holdfast/test/history"
	"holdfast/test/sim/schedule"
)

// executions is what the log did with the values that clients set. Each value is written by one request only, and its copies.
type executions struct {
	mu     schedule.Mutex
	newest uint64             // index of the newest entry that some node has applied
	last   map[string]outcome // by key and value: when the log last had the request
	again  []string           // requests that took effect although their outcome had to be remembered
	led    map[uint64]*host   // who served, by term
}

type outcome struct {
	at          time.Duration
	lifetime    time.Duration // for which the log has to remember it from then on; 0 for a request without an identity
	effect      bool          // the request took effect
	firstEffect time.Duration // when it did so first
	term        uint64        // of the leader that executed it then
}

func newExecutions() executions {
	return executions{last: make(map[string]outcome), led: make(map[uint64]*host)}
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
			e.recordSets(command, result, o.Term, now)
		} else {
			e.recordSet(command, result, o.Term, now)
		}
	}
}

// recordSets notes the outcomes of the SETs of a transaction that took effect.
func (e *executions) recordSets(transaction *fsm.Command, result *fsm.Result, term uint64, now time.Duration) {
	for i, set := range transaction.Operations {
		set.ID, set.Lifetime = transaction.ID, transaction.Lifetime
		e.recordSet(&set, &fsm.Result{Code: result.Replies[i].Code, Repeat: result.Repeat}, term, now)
	}
}

// recordSet notes the outcome of a command or of an operation of a transaction, if it is a SET of a value that no other request writes.
func (e *executions) recordSet(set *fsm.Command, result *fsm.Result, term uint64, now time.Duration) {
	if set.Kind == fsm.KindSet && isOfOne(string(set.Key), string(set.Value)) && result.Code != fsm.CodeNoReply {
		e.record(set, result, term, now)
	}
}

// commitTime is by how much cluster time and virtual time may differ between two entries: the time that an entry may need to be committed.
const commitTime = 8 * time.Second

// record notes the outcome of a request.
func (e *executions) record(command *fsm.Command, result *fsm.Result, term uint64, now time.Duration) {
	what := string(command.Key) + " " + string(command.Value)
	known, lifetime := e.last[what], time.Duration(0)
	if command.IsRemembered() {
		lifetime = time.Duration(command.Lifetime) * time.Millisecond
	}
	effect := result.Code == fsm.CodeOK && !result.Repeat
	if effect && now-known.at < max(known.lifetime/2, known.lifetime-commitTime) {
		e.again = append(e.again, what)
	}
	next := outcome{at: now, lifetime: lifetime, effect: effect || known.effect, firstEffect: known.firstEffect, term: known.term}
	if effect && !known.effect {
		next.firstEffect, next.term = now, term
	}
	e.last[what] = next
}

// isOfOne reports whether a value is written by one request only.
func isOfOne(key, value string) bool { return value != "" && !strings.HasPrefix(key, "lock/") }

// effect returns when a SET took effect first, if it did, and the host whose node executed it, if it is known.
func (e *executions) effect(o *history.Op) (at time.Duration, by *host, ok bool) {
	known := e.last[o.Key+" "+o.Value]
	return known.firstEffect, e.led[known.term], known.effect && o.Verb == history.Set
}

// begin notes that a node begins to serve.
func (e *executions) begin(h *host, term uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.led[term] = h
}

// checkExecutions: no request takes effect twice, and none that was refused.
func (s *simulation) checkExecutions() {
	for _, what := range s.executions.again {
		s.violation("exactly once", "SET %s took effect while its outcome had to be remembered", what)
	}
	for _, o := range s.load.History.Ops {
		refused := o.Known && o.Reply.Kind == resp.ReplyError && !o.Late && (!o.Anonymous || o.Overloaded())
		for _, set := range o.Operations() {
			if _, _, effect := s.executions.effect(&set); refused && isOfOne(set.Key, set.Value) && effect {
				s.violation("effect after an error", "%s took effect", o)
			}
		}
	}
}
