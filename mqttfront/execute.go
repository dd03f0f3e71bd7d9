package mqttfront

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/wire"
)

// execute gives a request to the store, or answers it where the store is not needed. A request that waited too long for a leader that
// was there all the time is refused; one that waited for an election is not. It needs Front.mu.
func (l *leader) execute(f *Front, r *request, mayRefuse bool) {
	now := time.Now()
	if r.messageExpired(now) {
		f.world.Metrics.ignored.WithLabelValues(wire.ReasonExpired).Inc()
		if !r.inTable() {
			f.end(r)
			return
		}
	}
	late := r.state == stateLate || mayRefuse && now.Sub(r.arrived) > f.config.maxWait()
	known := r.state == stateCopy || r.outcome != 0
	barred := r.inTable() && (known || late || f.mustBar(r, now))
	f.world.Metrics.stage("queue", now.Sub(r.arrived))
	overloaded := mayRefuse && !barred && f.overloadedLocked(r, now)
	if overloaded && r.logged() && r.Command.ID.IsZero() {
		// Another node may receive it later, or this one again. A refusal could not be kept, so there is none.
		f.world.Metrics.heldDropped.WithLabelValues("overloaded").Inc()
		f.end(r)
		return
	}
	switch r.began = now; {
	case barred && r.state == stateCopy:
		r.state = stateRepeating
	case barred:
		r.state = stateBarring
	case overloaded:
		r.state = stateRefusing
	default:
		r.state = stateExecuting
	}
	f.beginWorkLocked(r)
	command := r.Command
	switch {
	case r.answerKnown():
		l.answer(f, r, 0, &fsm.Result{Code: fsm.CodeError, Error: command.Error})
		return
	case overloaded && mayRefuseUnlogged(r):
		l.answer(f, r, 0, &fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded})
		return
	case overloaded || barred:
		// What expired or was shed had no effect, and a copy of it is told so. Of the rest nobody can say that.
		silent := barred && (late || known)
		command = command.Refusal(silent && f.version >= fsm.VersionProlong)
	case r.Read && f.pending.noConflictingWrite(r):
		if !f.store.Read(&r.Command, r) {
			f.requeue(r)
		}
		return
	default:
		f.leaveOutOversize(&command)
	}
	f.pending.beginWrite(r)
	if !f.store.Propose(command, r) {
		f.requeue(r)
	}
}

// mustBar reports whether a write without a known outcome must not have an effect any more: it has expired, or was shed; or it is taken from another
// node, and expired here, so that its client's later requests may have been executed. f.mu is held.
func (f *Front) mustBar(r *request, now time.Time) bool {
	return r.messageExpired(now) || f.wasShed(r) || r.elsewhere && !f.pending.hints.endedAt(r.Command.ID, endExpired).IsZero()
}

// answersBarred handles the result of a barred request, and reports whether it is to be answered: if it had an outcome before. Without an answer
// the request ends here.
func (l *leader) answersBarred(f *Front, r *request, result *fsm.Result) bool {
	if result.Repeat && result.Code != fsm.CodeDropped && !r.expired(time.Now()) {
		return true
	}
	f.world.Metrics.heldDropped.WithLabelValues("outcome_unknown").Inc()
	l.silent = true
	f.pending.endWrite(r)
	f.endWorkLocked(r)
	f.end(r)
	return false
}

// overloadedLocked reports whether a request is refused: it waited for too long, or its client has too much under way.
func (f *Front) overloadedLocked(r *request, now time.Time) bool {
	switch {
	case now.Sub(r.arrived) > f.config.OverloadAge:
		f.world.Metrics.refused.WithLabelValues("age").Inc()
	case f.shares.full(r.ordering(), r.Size):
		f.world.Metrics.refused.WithLabelValues("client_share").Inc()
	default:
		return false
	}
	return true
}

// leaveOutOversize replaces what is over the limits by the mere fact: it need not go through the log.
func (f *Front) leaveOutOversize(command *fsm.Command) {
	if int64(len(command.Key)) > f.limits.KeyBytes ||
		int64(len(command.Value)) > f.limits.ValueBytes || int64(len(command.Expected)) > f.limits.ValueBytes {
		command.Key, command.Value, command.Expected, command.Oversize = nil, nil, nil, true
	}
}

// requeue makes a request wait for the next leadership. It needs Front.mu.
func (f *Front) requeue(r *request) {
	r.hold()
	f.endWorkLocked(r)
	f.role.givenBack(f, r)
}

// parkCommitted makes a request that has taken effect wait for the next leadership, which finds its outcome by its identity. One
// without must never be proposed again, so it stays unanswered. f.mu is held.
func (f *Front) parkCommitted(r *request) {
	f.requeue(r)
	if r.state.isHeld() && !r.Read && r.Command.ID.IsZero() {
		f.world.Metrics.heldDropped.WithLabelValues("outcome_unknown").Inc()
		f.end(r)
	}
}

// mayRefuseUnlogged reports whether a request may be told that the service is overloaded without an entry in the log: it never has an effect.
func mayRefuseUnlogged(r *request) bool { return r.Read }
