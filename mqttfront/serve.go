package mqttfront

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/fsm"
	"holdfast/internal/policy"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/publish"
	"holdfast/mqttfront/wire"
)

// Serve implements the leader's part: it takes over the outgoing connections, answers what the last leader left unanswered,
// and then whatever comes, until the context ends. The error says why it ended.
func (f *Front) Serve(ctx context.Context, term uint64) error {
	select {
	case <-f.hasStore:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	l := &leader{front: f}
	var held heldElsewhere
	var collecting sync.WaitGroup
	ready, isReady := context.WithCancel(ctx)
	collecting.Go(func() { held = f.collectForTakeover(ctx, ready) })
	defer collecting.Wait()
	defer isReady()
	connections, err := f.outbox.TakeOver(ctx, l)
	if err != nil {
		return fmt.Errorf("take over the publishing connections: %w", err)
	}
	defer connections.Close()
	isReady()
	collecting.Wait()
	l.outbox = connections
	if f.newLeaderSession != nil {
		l.session = f.newLeaderSession()
	}
	f.begin(l, held)
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	working.Go(func() { f.reportAnswered(ctx, l) })
	working.Go(func() { f.sweep(ctx, l) })
	if l.session != nil {
		working.Go(func() { l.session.Run(ctx) })
	}
	f.world.Log.Info("serving", "term", term)
	for {
		select {
		case <-ctx.Done():
			f.tell(context.WithoutCancel(ctx), f.stopServing(l)) // else the next leader answers them again
			f.recheckPending()
			return context.Cause(ctx)
		case d := <-f.disconnects.Disconnects():
			f.endWatches(d)
		}
	}
}

// begin makes the front end answer. What the log says is unpublished goes out first, in the order of the log; then what has
// no outcome yet is executed, in the order of arrival.
func (f *Front) begin(l *leader, held heldElsewhere) {
	f.store.View(func(m *fsm.Machine) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.role = l
		settings, _ := m.Settings()
		f.adopt(&settings)
		f.version = max(f.version, m.Status().Version)
		f.pending.Hints.ForgetArrivals()
		if !f.barrier.Passed(held.received) {
			f.keepSettledLocked(m, held.byNode)
		}
		l.takeUpHeld(f, m, held.byNode)
		l.republish(f, m)
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	l.open = true
	defer f.store.Flush()
	for r := range f.pending.All() {
		if r.State.IsHeld() {
			l.execute(f, r, false)
		}
	}
}

// adopt takes up the settings that the front end needs to know. f.mu is held.
func (f *Front) adopt(settings *fsm.Settings) {
	f.limits = settings.Limits
	f.expiry = time.Duration(settings.NotificationExpiry) * time.Millisecond
}

// republish queues what may not have been published: notifications beyond the published mark, and the outcomes of requests
// that this node still holds. f.mu is held, and the state does not move.
func (l *leader) republish(f *Front, m *fsm.Machine) {
	type output struct {
		index uint64
		send  func()
	}
	var outputs []output
	now := m.Status().Now
	for _, event := range m.Unpublished() {
		age := time.Duration(now-event.At) * time.Millisecond
		outputs = append(outputs, output{event.Index, func() { l.notify(f, &event, age) }})
	}
	for r := range f.pending.All() {
		if !r.State.IsHeld() || r.Command.ID.IsZero() {
			continue
		}
		result, index, ok := m.Remembered(r.Command.ID)
		switch {
		case !ok:
		case !m.RemembersFor(r.Command.ID, r.Command.Lifetime-f.config.DedupMargin.Milliseconds()):
			r.State = pending.StateCopy // it came again, and goes through the log, which remembers it for longer: another node may get this copy later
		default:
			outputs = append(outputs, output{index, func() { l.answer(f, r, index, &result) }})
		}
	}
	slices.SortStableFunc(outputs, func(a, b output) int { return cmp.Compare(a.index, b.index) })
	for _, o := range outputs {
		o.send()
	}
	f.pending.ForgetCommitted()
}

// stopServing stops publishing at once. What is not known to be published is held for the next leader, which may be this node.
// It returns what was answered and not reported yet.
func (f *Front) stopServing(l *leader) (answered []fsm.RequestID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.role, f.pending.NeedsLookup = follower{}, true
	answered, l.answered = l.answered, nil
	for _, r := range slices.Collect(f.pending.All()) {
		if r.State == pending.StateDelivering {
			f.parkCommitted(r)
		}
		switch {
		case !r.State.IsHeld():
		case !f.mode.followersHold():
			f.release(r)
		default:
			f.keepFirst(r)
		}
	}
	f.pending.EndWrites()
	f.pending.FindCommitted()
	f.room.Broadcast()
	return answered
}

// answer sends a reply on its way. index is that of the entry with the outcome, 0 for what is not in the log. f.mu is held.
func (l *leader) answer(f *Front, r *pending.Request, index uint64, result *fsm.Result) {
	if r.State.IsHeld() {
		f.beginWorkLocked(r) // the outcome was known before anybody executed it here
	}
	f.pending.EndWrite(r)
	r.State = pending.StateDelivering
	if !r.Read {
		r.Outcome = index
	}
	if r.Began.IsZero() {
		r.Began = time.Now()
	}
	f.world.Metrics.stage("commit", time.Since(r.Began))
	f.world.Metrics.answered(r, result)
	if result.Code == fsm.CodeDropped {
		f.endWorkLocked(r)
		f.end(r)
		return
	}
	f.subscribeLocked(r, result)
	l.watermark.Add(index)
	l.send(r.Ordering(), &publish.Output{Index: index, Request: &r.Request, Tag: r, Deadline: r.Deadline, Result: *result, Queued: time.Now()})
}

// notify sends the notifications of a change on their way. f.mu is held.
func (l *leader) notify(f *Front, event *fsm.Event, age time.Duration) {
	if age >= f.expiry {
		return
	}
	for i := range event.Receivers {
		l.watermark.Add(event.Index)
		l.send(event.Receivers[i].ClientID, &publish.Output{
			Index: event.Index, Event: event, Receiver: &event.Receivers[i], Queued: time.Now(), TTL: f.expiry - age,
		})
	}
}

// send queues an output for a client. f.mu is held.
func (l *leader) send(client string, o *publish.Output) {
	for _, givenUp := range l.outbox.Send(client, o) {
		l.settle(givenUp)
	}
}

// Applied implements the store's observer.
func (f *Front) Applied(outcome *fsm.Outcome, tags []any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	events := outcome.Events
	tell := func(position int) {
		for len(events) > 0 && events[0].Command <= position {
			f.role.changed(f, &events[0])
			events = events[1:]
		}
	}
	if !outcome.Skipped {
		for i := range outcome.Commands {
			tell(i)
			f.appliedCommand(outcome, i, tags)
		}
		tell(len(outcome.Commands))
	}
	f.mark, f.applied = max(f.mark, outcome.Published), outcome.Index
	f.role.applied(f, outcome)
}

// appliedCommand takes up the outcome of one command. f.mu is held.
func (f *Front) appliedCommand(outcome *fsm.Outcome, i int, tags []any) {
	command := &outcome.Commands[i]
	f.version = max(f.version, command.Version)
	if command.Kind == fsm.KindConfigure {
		f.adopt(command.Settings)
	}
	if tags != nil && tags[i] != nil {
		f.role.committed(f, tags[i].(*pending.Request), outcome, i)
	}
	f.learnAll(outcome, i)
}

// learnAll notes how the requests of a command ended. f.mu is held.
func (f *Front) learnAll(outcome *fsm.Outcome, i int) {
	command, end := &outcome.Commands[i], pending.EndAnswered
	expected, now := f.role.expects(f), time.Now()
	if outcome.Results[i].Code == fsm.CodeDropped {
		end = pending.EndShed
	}
	if command.Kind != fsm.KindGet { // of which the leader reports that it is answered
		f.pending.Learn(command.ID, end, outcome.Index, expected, now)
	}
	for j := range command.Rejected {
		f.pending.Learn(command.Rejected[j].ID, end, outcome.Index, expected, now)
	}
}

// ReadDone implements the store's observer.
func (f *Front) ReadDone(tag any, _ uint64, result fsm.Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.role.readDone(f, tag.(*pending.Request), &result)
}

// Failed implements the store's observer. Nothing of it reaches a client: the request waits for the next leadership. One
// without an identity whose outcome is unknown must never be proposed again, so it stays unanswered.
func (f *Front) Failed(tag any, unknown bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := tag.(*pending.Request)
	if unknown {
		f.parkCommitted(r)
	} else {
		f.requeue(r)
	}
}

// Published implements publish.Handler.
func (l *leader) Published(o *publish.Output) {
	f := l.front
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.role == role(l) { // otherwise that leadership is over
		l.settle(o)
	}
}

// NoSubscriber implements publish.Handler. It ends the watch of a client that does not subscribe, if the watch is older than the change: a client
// may watch first and subscribe then.
func (l *leader) NoSubscriber(o *publish.Output) {
	end := fsm.Command{
		Kind: fsm.KindWatchEnd, Principal: principal(o.Receiver.ClientID), Key: []byte(o.Event.Key),
		NotificationIndex: o.Event.Index, PublishedAt: o.Event.At,
	}
	if f := l.front; !f.subscribe(o.Receiver.ClientID, &end) {
		f.propose(end)
	}
}

// Kick implements publish.Handler.
func (l *leader) Kick(r *wire.Request) { l.front.kick(r) }

// published notes that an output of the entry at an index is published, or need not be. It needs Front.mu.
func (l *leader) published(index uint64) {
	if l.watermark.Done(index) {
		l.front.store.SetPublished(l.watermark.Index())
	}
}

// settle ends an output. It needs Front.mu.
func (l *leader) settle(o *publish.Output) {
	f := l.front
	l.published(o.Index)
	if o.Request == nil {
		return
	}
	if r := o.Tag.(*pending.Request); r.State == pending.StateDelivering {
		now := time.Now()
		f.world.Metrics.stage("publish", now.Sub(o.Queued))
		f.turnaround += (now.Sub(r.Arrived) - f.turnaround) / 64
		if o.Index == 0 || r.Read { // the log does not say that it is answered
			l.report(f, r.Command.ID)
		}
		f.endWorkLocked(r)
		f.end(r)
	}
}

func principal(clientID string) (p policy.Principal) {
	p.ClientID = clientID
	return p
}
