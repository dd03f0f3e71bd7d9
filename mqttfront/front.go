package mqttfront

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/fsm"
)

// Front is the MQTT side of one node. Run receives, Serve answers while the node leads; Applied, ReadDone and Failed are
// called by the store. All methods are safe for concurrent use.
type Front struct {
	config Config
	world  World
	store  Store

	hasStore chan struct{} // closed when store is set
	queue    chan message
	drain    chan struct{} // closed when nothing more is taken up
	once     sync.Once
	pending  chan Departure // that a leader has to put into the log

	mu        sync.Mutex
	room      sync.Cond  // somebody waits to hand a request to the store
	held      *list.List // of *request: all that are not ended, in the order of their arrival
	heldBytes int
	byID      map[fsm.RequestID]*request
	known     []knownOutcome // followers: requests whose outcome is applied and not yet known to be published, by index
	writing   map[string]int // by ordering: writes in the hands of the store
	mark      uint64         // the published mark, as the log has it
	applied   uint64         // index of the last entry that the store told of
	unlooked  bool           // something is held that nobody has looked at: it may be a copy of what has had its effect
	busy      int            // requests executing or answering
	serving   *serving
	limits    fsm.Limits
	expiry    time.Duration // of notifications
	stopped   bool
	early     early // followers: what is known of requests that have not arrived yet
	// dropped are the requests that were refused for want of room even to remember that. A copy that another node still holds, because
	// it is slow to hear of it, must not be executed after later requests of the same client.
	dropped            early
	answered           []fsm.RequestID // leader: answered outside of the log, and not reported yet
	sequence           uint64          // of the last request that was taken in
	outbox             *outbox         // while the node leads
	upSince            time.Time       // the ingest session is up or down since then
	contest            contest
	freshAt            time.Time // when the last fresh probe came
	staleFrom, staleTo time.Time // what arrived between the two is old, whatever it says
	fullAt             time.Time // when a request was last dropped because there was no room to hold it
	started            time.Time

	pushesBack atomic.Bool  // a request waits for room, and whatever comes from the broker behind it
	backlog    atomic.Bool  // what comes from the broker is old
	heard      atomic.Int64 // when the broker last sent anything: nanoseconds since started
	session    string       // what the ingest session is doing, for people
	up         bool         // the ingest session is
}

// message is what the ingest session has received.
type message struct {
	publish *paho.Publish
	arrived time.Time
	release func() // gives its bytes back to the connection
	done    func() // acknowledges it to the broker
}

// New returns a front end for a store, which may be given later by SetStore: the store needs the front end, too.
func New(config Config, world World) (*Front, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	settings := fsm.DefaultSettings()
	f := &Front{
		config: config, world: world, queue: make(chan message, config.QueueMessages), pending: make(chan Departure, 1024),
		hasStore: make(chan struct{}), drain: make(chan struct{}), held: list.New(), byID: make(map[fsm.RequestID]*request), writing: make(map[string]int),
		limits: settings.Limits, expiry: time.Duration(settings.NotificationExpiry) * time.Millisecond, session: "not connected yet",
		upSince: time.Now(), started: time.Now(), dropped: early{memory: droppedMemory},
	}
	f.room.L = &f.mu
	return f, nil
}

// SetStore gives the front end its store. It is called once, before Run; Serve waits for it.
func (f *Front) SetStore(store Store) {
	f.store = store
	close(f.hasStore)
}

// Run receives requests until the context ends. It returns an error only when the node cannot go on.
func (f *Front) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	workers.Go(func() { f.takeUp(ctx) })
	workers.Go(func() { f.expireHeld(ctx) })
	workers.Go(func() { f.watchDepartures(ctx) })
	workers.Go(func() {
		if err := f.receive(ctx); err != nil {
			cancel(err)
		}
	})
	<-ctx.Done()
	f.mu.Lock()
	f.stopped = true
	f.room.Broadcast()
	f.mu.Unlock()
	workers.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// heardFresh notes that what came before is young.
func (f *Front) heardFresh() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.freshAt = time.Now()
}

// dropSinceFresh lets go of what came since the last fresh probe: it lay in a queue or in a socket for so long that deduplication
// may have forgotten it, whatever time this node thinks that it arrived.
func (f *Front) dropSinceFresh() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.staleFrom, f.staleTo = f.freshAt, time.Now()
	for element := f.held.Back(); element != nil; {
		r := element.Value.(*request)
		element = element.Prev()
		if r.state == stateHeld && f.isStale(r) {
			f.world.Metrics.heldDropped.WithLabelValues("stale").Inc()
			f.end(r)
		}
	}
}

// isStale reports whether a request came when what came was old. f.mu is held.
func (f *Front) isStale(r *request) bool {
	return r.arrived.After(f.staleFrom) && !r.arrived.After(f.staleTo)
}

// fullShown is how long a node that had to drop a request says so.
const fullShown = 10 * time.Second

// Ready returns nil when the ingest session is up, else what is wrong.
func (f *Front) Ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.up || f.silence(time.Now()) > silent:
		return fmt.Errorf("broker session: %s", f.session)
	case time.Since(f.fullAt) < fullShown:
		return errors.New("the hold buffer is full")
	default:
		return nil
	}
}

// Serving reports whether requests are answered here as they come.
func (f *Front) Serving() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.serving != nil && f.serving.open
}

// Drain takes up no more requests and waits until those that were are answered, or the context ends. What was received
// besides is not acknowledged: the broker keeps it for whoever comes next.
func (f *Front) Drain(ctx context.Context) {
	f.once.Do(func() { close(f.drain) })
	const poll = 5 * time.Millisecond
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		f.mu.Lock()
		busy := f.busy
		f.mu.Unlock()
		if busy == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// takeUp decodes what was received, in order.
func (f *Front) takeUp(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.drain:
			return
		case m := <-f.queue:
			f.take(ctx, m)
			m.release()
		}
	}
}

func (f *Front) take(ctx context.Context, m message) {
	r, verdict, reason := f.decode(m.publish, m.arrived)
	if reason != "" {
		f.world.Metrics.ignored.WithLabelValues(reason).Inc()
	}
	if verdict == verdictIgnore {
		f.world.Log.Debug("message on the invoke topic is not executed", "reason", reason)
		m.done()
		return
	}
	if verdict == verdictSendAway {
		m.done()
		f.sendAway(ctx, r)
		return
	}
	r.done = m.done
	f.admit(ctx, r)
}

// sendAway disconnects the publisher of a request with an invalid response topic, where it is known beyond doubt: a forged
// identity must not get somebody else thrown out.
func (f *Front) sendAway(ctx context.Context, r *request) {
	clientID := r.command.Principal.ClientID
	result := "untrusted"
	if f.world.Driver.TrustedIdentity() && clientID != "" {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		switch err := f.world.Driver.Disconnect(ctx, clientID); {
		case err == nil:
			result = "done"
		case errors.Is(err, ErrUnsupported):
			result = "unsupported"
		default:
			result = "failed"
			f.world.Log.Warn("a client could not be sent away", "error", err)
		}
	}
	f.world.Metrics.sentAway.WithLabelValues(result).Inc()
}

// admit takes a request in: a leader executes it, another node keeps it.
func (f *Front) admit(ctx context.Context, r *request) {
	looked, published := f.recognize(r)
	published = published && f.backlog.Load()
	f.mu.Lock()
	defer f.mu.Unlock()
	// Whoever answers, or is the only one to have a request, waits for room, and TCP pushes back.
	alone := f.store.Alone()
	for !f.stopped && (f.serving != nil && f.busy >= f.config.Executing || (f.serving != nil || alone) && f.full(r)) {
		f.pushesBack.Store(true)
		f.room.Wait()
	}
	f.pushesBack.Store(false)
	f.unlooked = f.unlooked || !looked && f.serving == nil
	if f.serving == nil && f.isStale(r) {
		f.world.Metrics.heldDropped.WithLabelValues("stale").Inc()
		return // not acknowledged: the session ends
	}
	if f.stopped || ctx.Err() != nil {
		return // not acknowledged: the broker has it still
	}
	if f.serving == nil && f.backlog.Load() && !f.dropped.since(r.command.ID).IsZero() { // an old copy of what was dropped
		published = true
	}
	if f.serving == nil && (published || !f.keeps(r, alone)) {
		r.done()
		return
	}
	if f.full(r) {
		f.fullAt = time.Now()
		f.world.Metrics.heldDropped.WithLabelValues("full").Inc()
		r.done()
		return
	}
	f.sequence++
	r.sequence = f.sequence
	r.element = f.held.PushBack(r)
	f.heldBytes += r.size
	f.world.Metrics.held.Set(float64(f.held.Len()))
	if !r.command.ID.IsZero() {
		f.byID[r.command.ID] = r
	}
	if !alone { // else a request that is not answered when the node dies has to come again: nobody else has it
		r.done()
		r.done = func() {}
	}
	switch {
	case f.serving != nil && f.serving.open:
		f.execute(r, true)
	case f.serving == nil && r.outcome != 0:
		f.addKnown(r)
	}
}

// addKnown notes that the outcome of a held request is applied and not yet known to be published. f.mu is held.
func (f *Front) addKnown(r *request) {
	at := len(f.known)
	for at > 0 && f.known[at-1].index > r.outcome {
		at--
	}
	f.known = slices.Insert(f.known, at, knownOutcome{r, r.outcome})
}

// knownOutcome is a held request with the index of the entry that has its outcome.
type knownOutcome struct {
	request *request
	index   uint64
}

// full reports whether there is no room to keep a request. A single one always finds room. f.mu is held.
func (f *Front) full(r *request) bool {
	return f.held.Len() > 0 && (f.heldBytes+r.size > f.config.HoldBytes || f.held.Len() >= f.config.HoldMessages)
}

// keeps reports whether a node that does not lead keeps the request. In a cluster of one it is the only node to have it.
func (f *Front) keeps(r *request, alone bool) bool {
	if alone {
		return true
	}
	if r.command.ID.IsZero() {
		return false
	}
	if earlier, held := f.byID[r.command.ID]; held {
		if earlier.outcome == 0 { // one copy is enough
			earlier.absorb(r)
			return false
		}
		f.end(earlier) // the client asks again for an outcome that may be published, but did not reach it
		return true
	}
	index, known := f.early.take(r.command.ID)
	if known && index <= f.mark {
		return false // answered before it came
	}
	r.outcome = index
	return true
}

// end lets go of a request. f.mu is held.
func (f *Front) end(r *request) {
	if r.state == stateEnded {
		return
	}
	r.state = stateEnded
	f.held.Remove(r.element)
	f.heldBytes -= r.size
	f.world.Metrics.held.Set(float64(f.held.Len()))
	if f.byID[r.command.ID] == r {
		delete(f.byID, r.command.ID)
	}
	r.done()
	f.room.Signal()
}

// expireHeld gives up what nobody waits for any more.
func (f *Front) expireHeld(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			f.giveUp(now)
			f.recognizeHeld()
		}
	}
}

func (f *Front) giveUp(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.early.forget(now)
	f.dropped.forget(now)
	for element := f.held.Front(); element != nil; {
		r := element.Value.(*request)
		element = element.Next()
		if r.state == stateHeld && now.After(r.holdUntil) {
			if r.outcome == 0 {
				f.world.Metrics.heldDropped.WithLabelValues("expired").Inc()
			}
			f.end(r)
		}
	}
}

// watchDepartures keeps asking the driver who went away.
func (f *Front) watchDepartures(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.world.Driver.Departures(ctx, f.departed)
		if err != nil && ctx.Err() == nil {
			f.world.Log.Warn("the broker does not tell who goes away", "error", err)
		}
		f.pause(ctx, f.config.BackoffMax)
	}
}

// departed notes a client's end for whoever leads, this node perhaps: a follower keeps the latest.
func (f *Front) departed(d Departure) {
	for {
		select {
		case f.pending <- d:
			return
		default:
		}
		select {
		case <-f.pending:
		default:
		}
	}
}

// pause waits, with jitter, or until the context ends.
func (f *Front) pause(ctx context.Context, d time.Duration) {
	jittered := d/2 + time.Duration(f.world.Random()%uint64(d/2+1))
	timer := time.NewTimer(jittered)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
