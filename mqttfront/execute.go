package mqttfront

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/wire"
)

// execute gives a request to the store, or answers it where the store is not needed. A request that waited too long for a leader that
// was there all the time is refused; one that waited for an election is not. It needs Front.mu.
func (l *leader) execute(f *Front, r *pending.Request, mayRefuse bool) {
	now := time.Now()
	if r.MessageExpired(now) {
		f.world.Metrics.ignored.WithLabelValues(wire.ReasonExpired).Inc()
		if !r.InTable() {
			f.end(r)
			return
		}
	}
	late := r.State == pending.StateLate || mayRefuse && now.Sub(r.Arrived) > f.config.maxWait()
	known := r.State == pending.StateCopy || r.Outcome != 0
	barred := r.InTable() && (known || late || f.mustBar(r, now))
	f.world.Metrics.stage("queue", now.Sub(r.Arrived))
	overloaded := mayRefuse && !barred && f.overloadedLocked(r, now)
	if overloaded && r.Logged() && r.Command.ID.IsZero() {
		// Another node may receive it later, or this one again. A refusal could not be kept, so there is none.
		f.world.Metrics.heldDropped.WithLabelValues("overloaded").Inc()
		f.end(r)
		return
	}
	switch r.Began = now; {
	case barred && r.State == pending.StateCopy:
		r.State = pending.StateRepeating
	case barred:
		r.State = pending.StateBarring
	case overloaded:
		r.State = pending.StateRefusing
	default:
		r.State = pending.StateExecuting
	}
	f.beginWorkLocked(r)
	command := r.Command
	switch {
	case r.AnswerKnown():
		l.answer(f, r, 0, &fsm.Result{Code: fsm.CodeError, Error: command.Error})
		return
	case overloaded && mayRefuseUnlogged(r):
		l.answer(f, r, 0, &fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded})
		return
	case overloaded || barred:
		// What expired or was shed had no effect, and a copy of it is told so. Of the rest nobody can say that.
		silent := barred && (late || known)
		command = command.Refusal(silent && f.version >= fsm.VersionProlong)
	case r.Read && f.pending.NoConflictingWrite(r):
		if !f.store.Read(&r.Command, r) {
			f.requeue(r)
		}
		return
	default:
		f.leaveOutOversize(&command)
	}
	f.pending.BeginWrite(r)
	if !f.store.Propose(command, r) {
		f.requeue(r)
	}
}

// mustBar reports whether a write without a known outcome must not have an effect any more: it has expired, or was shed; or it is taken from another
// node, and expired here, so that its client's later requests may have been executed. f.mu is held.
func (f *Front) mustBar(r *pending.Request, now time.Time) bool {
	return r.MessageExpired(now) || f.wasShed(r) || r.Elsewhere && !f.pending.Hints.EndedAt(r.Command.ID, pending.EndExpired).IsZero()
}

// answersBarred handles the result of a barred request, and reports whether it is to be answered: if it had an outcome before. Without an answer
// the request ends here.
func (l *leader) answersBarred(f *Front, r *pending.Request, result *fsm.Result) bool {
	if result.Repeat && result.Code != fsm.CodeDropped && !r.Expired(time.Now()) {
		return true
	}
	f.world.Metrics.heldDropped.WithLabelValues("outcome_unknown").Inc()
	l.silent = true
	f.pending.EndWrite(r)
	f.endWorkLocked(r)
	f.end(r)
	return false
}

// overloadedLocked reports whether a request is refused: it waited for too long, or its client has too much under way.
func (f *Front) overloadedLocked(r *pending.Request, now time.Time) bool {
	switch {
	case now.Sub(r.Arrived) > f.config.OverloadAge:
		f.world.Metrics.refused.WithLabelValues("age").Inc()
	case f.shares.full(r.Ordering(), r.Size):
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
func (f *Front) requeue(r *pending.Request) {
	r.Hold()
	f.endWorkLocked(r)
	f.role.givenBack(f, r)
}

// parkCommitted makes a request that has taken effect wait for the next leadership, which finds its outcome by its identity. One
// without must never be proposed again, so it stays unanswered. f.mu is held.
func (f *Front) parkCommitted(r *pending.Request) {
	f.requeue(r)
	if r.State.IsHeld() && !r.Read && r.Command.ID.IsZero() {
		f.world.Metrics.heldDropped.WithLabelValues("outcome_unknown").Inc()
		f.end(r)
	}
}

// mayRefuseUnlogged reports whether a request may be told that the service is overloaded without an entry in the log: it never has an effect.
func mayRefuseUnlogged(r *pending.Request) bool { return r.Read }
