package leader

import (
	"math"
	"slices"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/wire"
)

// executeLocked submits a request that has just come to the store, answers it directly, or ends it
// without a reply.
//
// A request is shed when it has waited for longer than Config.OverloadAge or when its client's
// share is used up. A write with an identity that has expired, or that is too old
// (Request.mayBeForgotten), is refused in the log: only so no copy of it is executed behind later
// requests of its client. Other expired requests end.
func (l *Leader) executeLocked(r *Request) {
	now := time.Now()
	expired, weight := r.expired(now), l.load.weightOf(r)
	if expired {
		l.metrics.Ignored.WithLabelValues(wire.ReasonExpired).Inc()
	}
	l.metrics.ObserveStage(metrics.StageQueue, now.Sub(r.Arrived))
	late := r.mayBeForgotten(l.config) || now.Sub(r.Arrived) > l.config.MaxWait()
	refuse := r.isRemembered() && (late || expired)
	overload := ""
	if !refuse && !expired {
		overload = l.overloadReason(r, weight, now)
	}
	l.load.add(r, weight)
	l.metrics.UnderWay.Set(float64(l.load.requests))
	r.began, r.state = now, stateExecuting
	switch {
	case refuse:
		// An expired request had no effect: its copies may get the refusal as an answer. A late one
		// may have had an effect.
		r.state = stateRefusing
		l.proposeLocked(r, r.Command.Refusal(late))
	case expired:
		l.endLocked(r)
	case r.isInvalid():
		l.answerLocked(r, invalidResult(r))
	case overload != "":
		l.shedLocked(r, overload)
	default:
		l.submitLocked(r)
	}
}

// invalidResult returns the error of a request that the message alone decides.
func invalidResult(r *Request) *fsm.Result {
	result := &fsm.Result{Code: fsm.CodeError, Error: r.Command.Error}
	if result.Error == fsm.ErrorQuota { // it was too large to be parsed
		result.Limit = fsm.LimitSizes
	}
	return result
}

// overloadReason returns why a request is to be shed, as the metric of refusals names it; empty if
// it is not.
func (l *Leader) overloadReason(r *Request, weight int, now time.Time) string {
	if r.isInvalid() {
		return ""
	}
	if r.Command.Kind == fsm.KindScan && l.load.scans.full(r.clientKey()) {
		return "scans"
	}
	return l.load.overloadReason(r, weight, now.Sub(r.Arrived), l.config.OverloadAge)
}

// shedLocked refuses a request as overload. A read has no effect that a later copy could repeat:
// its refusal needs no log entry. The dedup table cannot store the refusal of a write without an
// identity: such a write ends without a reply.
func (l *Leader) shedLocked(r *Request, reason string) {
	if r.isWrite() && r.Command.ID.IsZero() {
		l.metrics.Dropped.WithLabelValues("overloaded").Inc()
		l.endLocked(r)
		return
	}
	l.metrics.Refused.WithLabelValues(reason).Inc()
	r.state = stateShedding
	if r.Read {
		l.answerLocked(r, &fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded})
		return
	}
	l.proposeLocked(r, r.Command.Refusal(false))
}

// submitLocked gives a request to the store, as a read or as a proposal.
func (l *Leader) submitLocked(r *Request) {
	isScan := r.Command.Kind == fsm.KindScan
	if isScan {
		l.load.scans.move(r.clientKey(), &r.scan, scanReading)
	}
	switch {
	case r.Read && l.mayReadLocked(r):
		if !l.store.Read(&r.Command, r) {
			l.givenBackLocked(r)
		}
	case isScan:
		// its client has a write in the log: a no-op follows that, and the SCAN reads when the
		// no-op is applied
		l.proposeLocked(r, fsm.NoOp())
	default:
		// a write; or a GET whose client has a write in the log: the GET goes through the log after
		// it
		l.proposeLocked(r, l.commandForLogLocked(r))
	}
}

func (l *Leader) proposeLocked(r *Request, command fsm.Command) {
	l.beginProposalLocked(r)
	if !l.store.Propose(command, r) {
		l.givenBackLocked(r)
	}
}

// stripOversizeLocked clears the key and the values of a command that exceeds a limit, and sets
// Oversize. The entry then carries only that fact.
func (l *Leader) stripOversizeLocked(command *fsm.Command) {
	if int64(len(command.Key)) > l.known.limits.KeyBytes ||
		int64(len(command.Value)) > l.known.limits.ValueBytes ||
		int64(len(command.Expected)) > l.known.limits.ValueBytes {
		command.Key, command.Value, command.Expected, command.Oversize = nil, nil, nil, true
	}
}

// replyFields bounds the bytes of a reply's packet without its payload, its topic and the
// Correlation Data.
const replyFields = 256

// commandForLogLocked returns the command of a request as it goes into the log: without keys and
// values that exceed a limit. For a TXN it sets MaxReply to what the broker accepts, because a
// transaction whose reply cannot be delivered must not take effect.
func (l *Leader) commandForLogLocked(r *Request) fsm.Command {
	command := r.Command
	l.stripOversizeLocked(&command)
	if command.Kind != fsm.KindTxn {
		return command
	}
	command.Operations = slices.Clone(command.Operations) // the request keeps its own
	for i := range command.Operations {
		l.stripOversizeLocked(&command.Operations[i])
	}
	if most := l.sender.MaxPacket(); most < math.MaxInt64 {
		command.MaxReply = max(1, most-int64(len(r.ResponseTopic)+len(r.Correlation)+replyFields))
	}
	return command
}
