package mqttfront

import (
	"time"

	"holdfast/fsm"
)

// execute hands a request to the store, or answers it where the store is not needed. One that waited too long for a leader that
// was there all the time is refused; one that waited for an election is not. f.mu is held.
func (f *Front) execute(r *request, mayRefuse bool) {
	now := time.Now()
	if !r.deadline.IsZero() && !now.Before(r.deadline) {
		f.world.Metrics.ignored.WithLabelValues(reasonExpired).Inc()
		f.noteLapsed(r)
		f.end(r)
		return
	}
	f.world.Metrics.stage("queue", now.Sub(r.arrived))
	overloaded := mayRefuse && f.overloadedLocked(r, now)
	r.state = stateExecuting
	r.began = now
	f.beginWorkLocked(r)
	command := r.command
	switch {
	case r.version != "" || command.Kind == 0:
		f.answer(r, 0, &fsm.Result{Code: fsm.CodeError, Error: command.Error})
		return
	case overloaded && mayRefuseUnlogged(r):
		f.answer(r, 0, &fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded})
		return
	case overloaded:
		command = fsm.Command{Kind: fsm.KindReject, Rejected: []fsm.Rejection{{
			ID: command.ID, ClientID: command.Principal.ClientID, Lifetime: command.Lifetime, Dialect: command.Dialect,
		}}}
	case r.read && f.mayReadBeside(r):
		if !f.store.Read(&r.command, r) {
			f.putBack(r)
		}
		return
	default:
		f.leaveOutOversize(&command)
	}
	f.writing[r.ordering()]++
	r.writing = true
	if !f.store.Propose(command, r) {
		f.putBack(r)
	}
}

// overloadedLocked reports whether a request is refused: it waited for too long, or its client has too much under way.
func (f *Front) overloadedLocked(r *request, now time.Time) bool {
	switch {
	case now.Sub(r.arrived) > f.config.OverloadAge:
		f.world.Metrics.refused.WithLabelValues("age").Inc()
	case f.shares.full(r.ordering(), r.size):
		f.world.Metrics.refused.WithLabelValues("client_share").Inc()
	default:
		return false
	}
	return true
}

// mayReadBeside reports whether no write that the GET has to see can be under way. Without an identity any of them may be its
// client's. f.mu is held.
func (f *Front) mayReadBeside(r *request) bool {
	if r.command.Principal.ClientID == "" {
		return len(f.writing) == 0
	}
	return f.writing[r.ordering()] == 0
}

// leaveOutOversize replaces what is over the limits by the mere fact: it need not go through the log.
func (f *Front) leaveOutOversize(command *fsm.Command) {
	if int64(len(command.Key)) > f.limits.KeyBytes ||
		int64(len(command.Value)) > f.limits.ValueBytes || int64(len(command.Expected)) > f.limits.ValueBytes {
		command.Key, command.Value, command.Expected, command.Oversize = nil, nil, nil, true
	}
}

// leave takes a request out of the hands of the store. f.mu is held.
func (f *Front) leave(r *request) {
	if r.writing {
		r.writing = false
		if f.writing[r.ordering()]--; f.writing[r.ordering()] == 0 {
			delete(f.writing, r.ordering())
		}
	}
}

// putBack makes a request wait for the next leadership. f.mu is held.
func (f *Front) putBack(r *request) {
	if f.serving == nil { // else this leadership is about to end, and no GET that its client sends after a write may be answered before that
		f.leave(r)
	}
	r.state = stateHeld
	f.endWorkLocked(r)
	if f.config.FollowLeader && f.serving == nil {
		f.letGo(r)
		return
	}
	if f.isStale(r) { // a leader that was stopped had it in hand
		f.world.Metrics.heldDropped.WithLabelValues("stale").Inc()
		f.end(r)
		return
	}
	if f.serving == nil {
		f.isSpare(r)
	}
}

// setAside makes a request that has taken effect wait for the next leadership, which finds its outcome by its identity. One
// without must never be proposed again, so it stays unanswered. f.mu is held.
func (f *Front) setAside(r *request) {
	f.putBack(r)
	if r.state == stateHeld && !r.read && r.command.ID.IsZero() {
		f.world.Metrics.heldDropped.WithLabelValues("outcome_unknown").Inc()
		f.end(r)
	}
}

// mayRefuseUnlogged reports whether a request may be told that the service is overloaded without a word in the log: nobody else holds
// it, or executing it later has no effect.
func mayRefuseUnlogged(r *request) bool { return r.read || r.command.ID.IsZero() }
