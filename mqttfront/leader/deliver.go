package leader

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/outbox"
	"holdfast/mqttfront/wire"
)

// applied handles an applied log entry: the changes of watched keys and the outcomes of commands,
// in the order of the entry. The notifications of a command's changes come before its reply.
func (l *Leader) applied(outcome *fsm.EntryOutcome, tags []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	events := outcome.Events
	notifyUpTo := func(position int) {
		for len(events) > 0 && events[0].Command <= position {
			l.notifyLocked(&events[0], 0)
			events = events[1:]
		}
	}
	if !outcome.Skipped {
		for i := range outcome.Commands {
			notifyUpTo(i)
			l.appliedCommandLocked(outcome, i, tags)
		}
		notifyUpTo(len(outcome.Commands))
	}
	l.passGivenUpLocked()
}

// appliedCommandLocked handles the outcome of one command of an entry.
func (l *Leader) appliedCommandLocked(outcome *fsm.EntryOutcome, i int, tags []any) {
	command := &outcome.Commands[i]
	if command.Kind == fsm.KindConfigure {
		l.known.adopt(command.Settings)
	}
	if tags == nil || tags[i] == nil {
		return
	}
	if r := tags[i].(*Request); l.hasLocked(r) {
		l.committedLocked(r, outcome, i)
	}
}

// committedLocked handles the outcome of a request that this leader proposed: command i of an
// entry.
func (l *Leader) committedLocked(r *Request, outcome *fsm.EntryOutcome, i int) {
	if r.Command.Kind == fsm.KindScan { // the command in the log was a no-op
		l.endProposalLocked(r)
		if !l.store.Read(&r.Command, r) {
			l.givenBackLocked(r)
		}
		l.store.Flush()
		return
	}
	command, result := &outcome.Commands[i], &outcome.Results[i]
	if isUnremembered(command, result) {
		l.metrics.Refused.WithLabelValues("outcomes").Inc()
	}
	// The store proposes a refusal in place of a write that waited there for longer than
	// ProposalAge. The outcome of such a write may be forgotten. So may that of a request whose
	// refusal waited there for so long.
	late := command.Kind == fsm.KindReject && r.state != stateShedding ||
		r.state == stateShedding && time.Since(r.began) > l.config.ProposalAge
	if (late || r.state == stateRefusing) && !isAnswer(result, r.expired(time.Now())) {
		l.metrics.Dropped.WithLabelValues("outcome_unknown").Inc()
		l.endLocked(r)
		return
	}
	l.answerLocked(r, result)
}

// isUnremembered reports whether a command was refused because there is no room to remember its
// outcome.
func isUnremembered(command *fsm.Command, result *fsm.Result) bool {
	return command.Kind != fsm.KindReject && !result.Repeat &&
		(result.Error == fsm.ErrorOverloaded || result.Code == fsm.CodeNoReply)
}

// isAnswer reports whether the result of a refusal in the log is the reply to the request: the
// dedup table had an outcome with a reply, and the request has not expired.
func isAnswer(result *fsm.Result, expired bool) bool {
	return result.Repeat && result.Code != fsm.CodeNoReply && !expired
}

// readDone handles the result of a GET or a SCAN.
func (l *Leader) readDone(r *Request, result *fsm.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.hasLocked(r) {
		return
	}
	if r.scan == scanReading {
		l.load.scans.move(r.clientKey(), &r.scan, scanDelivering)
	}
	l.answerLocked(r, result)
}

// failed handles a request that has no result. One that cannot be encoded must not come again,
// first, to every leader.
func (l *Leader) failed(r *Request, invalid bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.hasLocked(r):
	case invalid:
		l.metrics.Dropped.WithLabelValues("invalid").Inc()
		l.endLocked(r)
	default:
		l.givenBackLocked(r)
	}
}

// answerLocked queues the reply to a request, or ends the request if the result has no reply
// (CodeNoReply).
func (l *Leader) answerLocked(r *Request, result *fsm.Result) {
	l.endProposalLocked(r)
	now := time.Now()
	l.metrics.ObserveStage(metrics.StageCommit, now.Sub(r.began))
	l.metrics.Answered(r.Command.Kind, result)
	if result.Code == fsm.CodeNoReply {
		l.endLocked(r)
		return
	}
	if result.Error == fsm.ErrorQuota {
		l.tellLimitLocked(r, result.Limit, now)
	}
	r.state, r.queued = stateDelivering, now
	l.delivering.add(r)
	if r.Command.Kind == fsm.KindKeyNotify && result.Code == fsm.CodeOK {
		l.clients.subscribe(r.Command.Principal.ClientID, nil)
	}
	l.sendLocked(r.clientKey(),
		&outbox.Output{Request: &r.Request, Tag: r, Result: *result, Queued: now})
}

// limitPause is the least time between two lines of the log about one limit.
const limitPause = time.Minute

// tellLimitLocked tells a client, the metrics and the log which limit a request has met. A copy of
// a request that was refused before has none.
func (l *Leader) tellLimitLocked(r *Request, limit fsm.Limit, now time.Time) {
	if limit == fsm.NoLimit {
		return
	}
	r.Limit = limit.Text(&l.known.limits)
	l.metrics.Limited.WithLabelValues(limit.Name()).Inc()
	if last, told := l.limitsTold[limit]; !told || now.Sub(last) >= limitPause {
		l.limitsTold[limit] = now
		l.log.Warn("a request was refused: the quota has been exceeded", "limit", r.Limit,
			"client", r.Command.Principal.ClientID, "username", r.Command.Principal.Username)
	}
}

// notifyLocked sends the notifications of a change on their way, or gives them up if they have
// expired. age is the time since the change.
func (l *Leader) notifyLocked(event *fsm.Event, age time.Duration) {
	if age >= l.known.expiry {
		l.watermark.Add(event.Index)
		l.givenUp = append(l.givenUp, event.Index)
		return
	}
	own := *event // a waiting notification must not keep the other events of its entry in memory
	event = &own
	for i := range event.Receivers {
		l.watermark.Add(event.Index)
		l.sendLocked(event.Receivers[i].ClientID, &outbox.Output{
			Index: event.Index, Event: event, Receiver: &event.Receivers[i], Queued: time.Now(),
			TTL: l.known.expiry - age,
		})
	}
}

// sendLocked queues an output for a client.
func (l *Leader) sendLocked(client string, o *outbox.Output) {
	for _, givenUp := range l.sender.Send(client, o) {
		l.tests.ended(givenUp)
		if givenUp.Index != 0 {
			l.givenUp = append(l.givenUp, givenUp.Index)
		}
		l.endReplyLocked(givenUp)
	}
}

// passGivenUpLocked moves the delivery watermark past the notifications in givenUp. It is called
// when all notifications of an entry are added: the watermark must not pass one that is still to be
// added.
func (l *Leader) passGivenUpLocked() {
	for _, index := range l.givenUp {
		l.publishedLocked(index)
	}
	l.givenUp = l.givenUp[:0]
}

// Published implements outbox.Handler.
func (l *Leader) Published(o *outbox.Output) {
	l.testEnded(o, false)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.publishedLocked(o.Index)
		l.endReplyLocked(o)
	}
}

// NoSubscriber implements outbox.Handler. If the driver can, it subscribes the client to its
// notifications. Otherwise NoSubscriber proposes to end the client's watches that match the key.
// The state machine keeps those that are newer than the change.
func (l *Leader) NoSubscriber(o *outbox.Output) {
	l.testEnded(o, true)
	end := fsm.Command{
		Kind: fsm.KindWatchEnd, Principal: principal(o.Receiver.ClientID), Key: []byte(o.Event.Key),
		NotificationIndex: o.Event.Index, ChangedAt: o.Event.At,
	}
	if !l.clients.subscribe(o.Receiver.ClientID, &end) {
		l.store.Propose(end, nil)
		l.store.Flush()
	}
}

// Kick implements outbox.Handler.
func (l *Leader) Kick(r *wire.Request) {
	l.mu.Lock()
	ended := l.ended
	l.mu.Unlock()
	if !ended {
		l.clients.Kick(r)
	}
}

// publishedLocked notes that a notification of the entry at an index is published, or need not be.
func (l *Leader) publishedLocked(index uint64) {
	if l.watermark.Done(index) {
		l.store.SetPublished(l.watermark.Index())
	}
}

// endReplyLocked ends the request of a reply that is published or given up. It does nothing for a
// notification.
func (l *Leader) endReplyLocked(o *outbox.Output) {
	if o.Request == nil {
		return
	}
	if r := o.Tag.(*Request); r.state == stateDelivering {
		now := time.Now()
		l.metrics.ObserveStage(metrics.StagePublish, now.Sub(o.Queued))
		l.load.turnaround += (now.Sub(r.Arrived) - l.load.turnaround) / 64
		l.endLocked(r)
	}
}
