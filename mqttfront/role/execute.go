package role

import (
	"math"
	"slices"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/wire"
)

// decision says how a request is handled. If neither reject nor overload is set, it is executed.
type decision struct {
	reject   bool   // a refusal goes into the log. The client gets the outcome that the dedup table has; without one the request never takes effect
	silent   bool   // with reject: the request may have taken effect before, so no copy of it may be answered with the refusal
	overload string // the limit that the request exceeds, so that it is shed; empty if it exceeds none
}

// decideLocked decides how a request is handled. See executeLocked for onArrival.
func (l *Leader) decideLocked(r *pending.Request, onArrival bool, now time.Time) (d decision) {
	late := r.State() == pending.StateLate || onArrival && now.Sub(r.Arrived) > l.config.MaxWait() || l.outcomeMayBeForgotten(r, now)
	hasOutcome := r.State() == pending.StateDuplicate || r.OutcomeIndex() != 0
	d.reject = r.UsesDedup() && (hasOutcome || late || l.mustNotExecuteLocked(r, now))
	// An expired or shed request had no effect: its copies may get the refusal as an answer. A late request, or one with an outcome, may
	// have had an effect.
	d.silent = late || hasOutcome
	if onArrival && !d.reject && !r.IsInvalid() {
		d.overload = l.load.overloadReason(r, now.Sub(r.Arrived), l.config.OverloadAge)
	}
	if r.Command.Kind == fsm.KindScan && l.load.scans.full(r.ClientKey()) { // also a SCAN that was held: its refusal needs no log entry
		d.overload = "scans"
	}
	return d
}

// executeLocked submits a request to the store, answers it directly, or drops it without a reply.
//
// onArrival is true for a request that arrives while this node serves. Such a request is shed when it has waited for longer than Config.OverloadAge or when its
// client's share is used up. A write with an identity is rejected in the log after Config.MaxWait. onArrival is false for a request that this node or a peer
// held; of these only SCANs are shed. In both cases, duplicate, late and expired writes with an identity are rejected, and other expired requests dropped.
func (l *Leader) executeLocked(r *pending.Request, onArrival bool) {
	now := time.Now()
	if r.Expired(now) {
		l.metrics.Ignored.WithLabelValues(wire.ReasonExpired).Inc()
		if !r.UsesDedup() {
			l.endLocked(r)
			return
		}
	}
	l.metrics.ObserveStage(metrics.StageQueue, now.Sub(r.Arrived))
	d := l.decideLocked(r, onArrival, now)
	overloaded := d.overload != ""
	if overloaded && r.NeedsLogEntry() && r.Command.ID.IsZero() {
		// The dedup table cannot store a refusal without a request id, and another node may execute the request later. So there is no reply.
		l.metrics.HeldDropped.WithLabelValues("overloaded").Inc()
		l.endLocked(r)
		return
	}
	switch {
	case d.reject:
		r.MarkRejecting(now)
	case overloaded:
		l.metrics.Refused.WithLabelValues(d.overload).Inc()
		r.MarkShedding(now)
	default:
		r.MarkExecuting(now)
		if r.Command.Kind == fsm.KindScan {
			l.load.scans.move(r.ClientKey(), &r.Scan, pending.ScanReading)
		}
	}
	l.load.add(r)
	l.submitLocked(r, d)
}

// submitLocked answers a request, or gives it to the store as a read or as a proposal.
func (l *Leader) submitLocked(r *pending.Request, d decision) {
	overloaded := d.overload != ""
	command := r.Command
	switch {
	case r.IsInvalid():
		l.answerLocked(r, 0, &fsm.Result{Code: fsm.CodeError, Error: command.Error})
		return
	case overloaded && mayRefuseUnlogged(r):
		l.answerLocked(r, 0, &fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded})
		return
	case overloaded || d.reject:
		silent := d.reject && d.silent && l.known.version >= fsm.VersionProlong // earlier versions of the log have no silent refusal
		command = command.Refusal(silent)
	case r.Read && l.pending.NoConflictingWrite(r):
		if !l.store.Read(&r.Command, r) {
			requeueLocked(l.tracker, l, r)
		}
		return
	case command.Kind == fsm.KindScan: // its client has a write in the log: a no-op follows that, and the SCAN reads when the no-op is applied
		command = fsm.NoOp()
	default: // a write; or a GET whose client has a write in the log: the GET goes through the log after it
		command = l.commandForLogLocked(r)
	}
	l.pending.BeginProposal(r)
	if !l.store.Propose(command, r) {
		requeueLocked(l.tracker, l, r)
	}
}

// outcomeMayBeForgotten reports whether the dedup table may have forgotten the outcome of a request that was held: its HoldUntil passed more than
// Config.DedupMargin ago.
func (l *Leader) outcomeMayBeForgotten(r *pending.Request, now time.Time) bool {
	return now.After(r.HoldUntil.Add(l.config.DedupMargin))
}

// mustNotExecuteLocked reports whether a write without a known outcome must be rejected in the log: it has expired, the log refused it without a
// reply, or it came from a peer and this node's copy has expired. Later requests of its client may have been executed since.
func (l *Leader) mustNotExecuteLocked(r *pending.Request, now time.Time) bool {
	return r.Expired(now) || l.refusedWithoutReplyLocked(r) || r.FromPeer && !l.pending.Hints().EndedAt(r.Command.ID, pending.EndExpired).IsZero()
}

// resolveRejectedLocked handles the result of a refusal in the log. It returns true if the client gets an answer: the dedup table had an outcome with a reply,
// and the request has not expired. Otherwise it ends the request without a reply. index is that of the entry.
func (l *Leader) resolveRejectedLocked(r *pending.Request, index uint64, result *fsm.Result) bool {
	if result.Repeat && result.Code != fsm.CodeNoReply && !r.Expired(time.Now()) {
		return true
	}
	l.metrics.HeldDropped.WithLabelValues("outcome_unknown").Inc()
	l.markInheritedAnsweredLocked(r)
	l.addUnsentLocked(index)
	l.pending.EndProposal(r)
	l.load.remove(r)
	l.endLocked(r)
	return false
}

// stripOversizeLocked clears the key and the values of a command that exceeds a limit, and sets Oversize. The entry then carries only
// that fact.
func (l *Leader) stripOversizeLocked(command *fsm.Command) {
	if int64(len(command.Key)) > l.known.limits.KeyBytes ||
		int64(len(command.Value)) > l.known.limits.ValueBytes || int64(len(command.Expected)) > l.known.limits.ValueBytes {
		command.Key, command.Value, command.Expected, command.Oversize = nil, nil, nil, true
	}
}

// replyFields bounds the bytes of a reply's packet without its payload, its topic and the Correlation Data.
const replyFields = 256

// commandForLogLocked returns the command of a request as it goes into the log: encoded for the log version in force, and without keys and values that exceed a limit.
// For a TXN it sets MaxReply to what the broker accepts, because a transaction whose reply cannot be delivered must not take effect.
func (l *Leader) commandForLogLocked(r *pending.Request) fsm.Command {
	command := r.Command.ForVersion(l.known.version)
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

// mayRefuseUnlogged reports whether a request may be refused without a log entry: a read has no effect that a later copy could repeat.
func mayRefuseUnlogged(r *pending.Request) bool { return r.Read }
