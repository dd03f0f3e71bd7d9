package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/publish"
	"holdfast/mqttfront/wire"
)

// answerLocked queues the reply to a request, or ends the request if the result has no reply (CodeNoReply). index is that of the entry with the outcome, 0
// if the outcome is not in the log.
func (l *Leader) answerLocked(r *pending.Request, index uint64, result *fsm.Result) {
	if r.State().IsHeld() {
		l.load.add(r) // not counted yet: this leader did not execute it, it only sends the reply
	}
	l.pending.EndProposal(r)
	r.MarkDelivering(index, time.Now())
	l.metrics.ObserveStage(metrics.StageCommit, time.Since(r.Began))
	l.metrics.Answered(r, result)
	if result.Code == fsm.CodeNoReply {
		l.addUnsentLocked(index)
		l.markInheritedAnsweredLocked(r)
		l.load.remove(r)
		l.endLocked(r)
		return
	}
	if r.Command.Kind == fsm.KindKeyNotify && result.Code == fsm.CodeOK {
		l.clients.subscribe(r.Command.Principal.ClientID, nil)
	}
	l.watermark.Add(index)
	l.sendLocked(r.ClientKey(), &publish.Output{Index: index, Request: &r.Request, Tag: r, Deadline: r.Deadline, Result: *result, Queued: time.Now()})
}

// notifyLocked sends the notifications of a change on their way. age is the time since the change.
func (l *Leader) notifyLocked(event *fsm.Event, age time.Duration) {
	if age >= l.known.expiry {
		return
	}
	own := *event // a waiting notification must not keep the other events of its entry in memory
	event = &own
	for i := range event.Receivers {
		l.watermark.Add(event.Index)
		l.sendLocked(event.Receivers[i].ClientID, &publish.Output{
			Index: event.Index, Event: event, Receiver: &event.Receivers[i], Queued: time.Now(), TTL: l.known.expiry - age,
		})
	}
}

// sendLocked queues an output for a client.
func (l *Leader) sendLocked(client string, o *publish.Output) {
	for _, givenUp := range l.sender.Send(client, o) {
		l.tests.ended(givenUp)
		if givenUp.Index != 0 {
			l.unsent = append(l.unsent, givenUp.Index)
		}
		l.endReplyLocked(givenUp)
	}
}

// addUnsentLocked notes an outcome without a reply. The delivery watermark (the log index up to which no output is outstanding) moves past it, so that the
// other nodes drop their copies.
func (l *Leader) addUnsentLocked(index uint64) {
	if index != 0 {
		l.watermark.Add(index)
		l.unsent = append(l.unsent, index)
	}
}

// passUnsentLocked moves the delivery watermark past the outputs in unsent. It is called when all outputs of an entry are added: the watermark must not
// pass an output that is still to be added.
func (l *Leader) passUnsentLocked() {
	for _, index := range l.unsent {
		l.publishedLocked(index)
	}
	l.unsent = l.unsent[:0]
}

// Published implements publish.Handler.
func (l *Leader) Published(o *publish.Output) {
	l.testEnded(o, false)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading {
		l.publishedLocked(o.Index)
		l.endReplyLocked(o)
	}
}

// NoSubscriber implements publish.Handler. If the driver can, it subscribes the client to its notifications. Otherwise NoSubscriber proposes to end the
// client's watches that match the key. The state machine keeps those that are newer than the change.
func (l *Leader) NoSubscriber(o *publish.Output) {
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

// Kick implements publish.Handler.
func (l *Leader) Kick(r *wire.Request) {
	l.mu.Lock()
	leading := l.leading
	l.mu.Unlock()
	if leading {
		l.clients.Kick(r)
	}
}

// publishedLocked notes that an output of the entry at an index is published, or need not be.
func (l *Leader) publishedLocked(index uint64) {
	if l.watermark.Done(index) {
		l.store.SetPublished(l.watermark.Index())
	}
}

// endReplyLocked ends the request of a reply that is published or given up. It does nothing for a notification.
func (l *Leader) endReplyLocked(o *publish.Output) {
	if o.Request == nil {
		return
	}
	if r := o.Tag.(*pending.Request); r.State() == pending.StateDelivering {
		now := time.Now()
		l.metrics.ObserveStage(metrics.StagePublish, now.Sub(o.Queued))
		l.load.turnaround += (now.Sub(r.Arrived) - l.load.turnaround) / 64
		if o.Index == 0 || r.Read { // no entry of the log tells the peers that it is answered
			l.reportLocked(r.Command.ID)
		}
		l.markInheritedAnsweredLocked(r)
		l.load.remove(r)
		l.endLocked(r)
	}
}

// markInheritedAnsweredLocked notes that a request need not be answered any more, if it is in inherited: an earlier leader executed it.
func (l *Leader) markInheritedAnsweredLocked(r *pending.Request) {
	if _, ok := l.inherited[r.Command.ID]; ok {
		l.inherited[r.Command.ID] = true
	}
}
