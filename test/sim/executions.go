package sim

import (
	"strings"
	"time"

	"holdfast/fsm"
	"holdfast/resp"
	"holdfast/test/history"
	"holdfast/test/sim/schedule"
)

// executions records which SETs of clients took effect in the log. A value is written by one request and its copies only.
type executions struct {
	mu     schedule.Mutex
	newest uint64             // index of the newest entry that some node has applied
	last   map[string]outcome // the last outcome of the request that sets a value, by key and value
	again  []string           // requests that took effect while an earlier outcome of theirs had to be remembered
	led    map[uint64]*host   // the host whose node led, by term
}

type outcome struct {
	at          time.Duration // when an entry with the request was last applied
	lifetime    time.Duration // how long the outcome has to be remembered after that; 0 for a request without an identity
	effect      bool          // the request took effect
	firstEffect time.Duration // when it first took effect
	term        uint64        // term of the leader that executed it then
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
	if set.Kind == fsm.KindSet && hasOneWriter(string(set.Key), string(set.Value)) && result.Code != fsm.CodeNoReply {
		e.record(set, result, term, now)
	}
}

// commitTime bounds the time that an entry needs to be committed. Outcomes are forgotten by cluster time, which may differ from virtual time by so much. Of a
// short lifetime at least the first half is checked.
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

// hasOneWriter reports whether a value is written by one request only.
func hasOneWriter(key, value string) bool {
	return value != "" && !strings.HasPrefix(key, "lock/") && !strings.HasPrefix(key, "app/")
}

// effect returns when a SET first took effect, and the host whose node executed it then, nil if that is not known. ok is false if it took no effect.
func (e *executions) effect(o *history.Op) (at time.Duration, by *host, ok bool) {
	known := e.last[o.Key+" "+o.Value]
	return known.firstEffect, e.led[known.term], known.effect && o.Verb == history.Set
}

// begin records that a node begins to lead in a term.
func (e *executions) begin(h *host, term uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.led[term] = h
}

// checkExecutions checks that no request took effect twice, and that none took effect that was answered with an error. Not checked are late requests, whose
// outcome may be forgotten, and those without an identity, of which a copy may have taken effect, unless they were refused as overload.
func (s *simulation) checkExecutions() {
	for _, what := range s.executions.again {
		s.violation("exactly once", "SET %s took effect while its outcome had to be remembered", what)
	}
	for _, o := range s.load.History.Ops {
		refused := o.Known && o.Reply.Kind == resp.ReplyError && !o.Late && (!o.Anonymous || o.Overloaded())
		for _, set := range o.Operations() {
			if _, _, effect := s.executions.effect(&set); refused && hasOneWriter(set.Key, set.Value) && effect {
				s.violation("effect after an error", "%s took effect", o)
			}
		}
	}
}
