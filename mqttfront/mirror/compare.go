package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/mqttconn"
)

const (
	// quiet is how long the broker must have sent no retained message of a mirror before it counts as having sent all of them.
	quiet = time.Second
	// markerWait bounds the wait for a marker: a message that the node publishes to itself after it has subscribed. Most brokers deliver it after the
	// retained messages. Two further markers are retained: they show whether the broker sends retained messages at all, and whether it drops some.
	markerWait = 5 * time.Second
	// packetTimeout bounds the wait for the answer to a SUBSCRIBE, which may come after all retained messages, however long these take. If the broker sends
	// nothing, the keep-alive ends the connection earlier.
	packetTimeout = 10 * time.Minute
	// correctionWait is how long a comparison waits for the broker to acknowledge what it has corrected, before it looks once more.
	correctionWait = 30 * time.Second
	// maxPasses bounds the passes of one comparison. Each pass asks the broker for its retained messages once; a broker drops those for which it has no room.
	maxPasses = 20
	// maxVerified bounds pass.queuedVersions: only these corrections are verified by a further pass.
	maxVerified = 10_000
	// maxUnlike bounds pass.unlike. When it is full, the pass forgets no refused topic.
	maxUnlike = 100_000
)

// comparison is the result of a comparison of the retained messages with the state, or of one pass of it.
type comparison struct {
	keys       int  // number of keys with a mirror
	unshown    int  // number of these keys whose topic is invalid
	missing    int  // number of retained messages that the broker lacked
	stale      int  // number of retained messages that differed from the state, or belonged to no key
	unretained int  // number of messages that the broker acknowledged but does not retain
	blind      bool // the broker does not send what it retains
	dropped    bool // the broker dropped some of what it retains, at the last pass
}

// compareAll compares the retained messages with the state at once, and again for each element of backlog.recompare, until the context ends.
func (s *session) compareAll(ctx context.Context) {
	for delay := s.config.BackoffMin; ctx.Err() == nil; {
		err := s.compare(ctx)
		if err != nil && ctx.Err() == nil {
			s.comparisonFailed(err)
			s.env.Log.Warn("the retained messages of mirrors could not be compared with the state, will retry", "client", s.config.comparingID(), "error", err)
			s.env.Pause(ctx, delay)
			delay = min(2*delay, s.config.BackoffMax)
			continue
		}
		delay = s.config.BackoffMin
		select {
		case <-ctx.Done():
		case <-s.backlog.recompare:
		}
	}
}

// compare has the broker send the retained messages, and queues the topics that are missing or stale. If the first pass queued any, a second one verifies
// them when the broker has acknowledged them. If the broker drops messages, passes follow as long as they find stale ones: each that is cleared makes room
// for others.
func (s *session) compare(ctx context.Context) error {
	s.recordBegin()
	s.backlog.setComparing(true)
	defer s.backlog.setComparing(false)
	var all comparison
	queuedVersions := make(map[topic]string) // version, by topic
	for number := range maxPasses {
		found, err := s.runPass(ctx, queuedVersions)
		if err != nil || ctx.Err() != nil {
			s.recordCorrections(found)
			return err
		}
		all.keys, all.unshown, all.blind, all.dropped, all.unretained = found.keys, found.unshown, found.blind, found.dropped, found.unretained
		if found.blind { // nothing is known of what is missing
			all.missing, all.unretained = 0, 0
		}
		s.recordCorrections(found)
		all.stale += found.stale
		if found.blind {
			break
		}
		all.missing += found.missing
		if found.dropped {
			s.env.Log.Warn("the broker dropped retained messages: let it queue as many bytes for a client as it retains below the mirrors", "stale", found.stale)
		}
		if found.missing+found.stale == 0 || !found.dropped && number > 0 || found.dropped && number > 0 && found.stale == 0 {
			break
		}
		s.awaitCorrections(ctx)
	}
	if all.dropped {
		all.unretained = 0 // that is not known
	}
	s.env.Log.Info("compared the retained messages of mirrors with the state", "keys", all.keys, "unshown", all.unshown, "missing", all.missing, "stale", all.stale, "unretained", all.unretained)
	if all.blind {
		s.env.Log.Warn("the broker does not send what it retains below the mirrors: topics of keys that were deleted without a connection for mirrors may stay")
	}
	s.backlog.dropSynced()
	s.compared(all)
	return nil
}

// awaitCorrections waits until the broker has acknowledged what was queued before the call, for at most correctionWait.
func (s *session) awaitCorrections(ctx context.Context) {
	moment := time.Now()
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for ctx.Err() == nil && !s.backlog.answeredAllBefore(moment) && time.Since(moment) < correctionWait {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// pass is one attempt, with a connection of its own, to receive the retained messages and compare them with the state.
type pass struct {
	s              *session
	began          time.Time
	client         *paho.Client
	queuedVersions map[topic]string // by topic, the version that this pass or an earlier one has queued to be published; guarded by mu
	ended          chan error       // why the connection ended; only the first is kept

	lastRetained atomic.Int64 // when the last retained message came, in nanoseconds since began
	marked       atomic.Bool  // the marker that was published after the subscription has arrived
	first, last  atomic.Bool  // the retained markers before and after the retained messages of mirrors have arrived

	mu         sync.Mutex
	unlike     map[topic]struct{} // topics of retained messages that are not as in the state; at most maxUnlike
	seen       int                // number of retained messages received
	stale      int
	unretained int
}

// runPass makes one pass of a comparison. It adds the versions that it queues to queuedVersions. After an error, found counts what it corrected before.
func (s *session) runPass(ctx context.Context, queuedVersions map[topic]string) (found comparison, err error) {
	p := &pass{s: s, began: time.Now(), queuedVersions: queuedVersions, unlike: make(map[topic]struct{}), ended: make(chan error, 1)}
	conn, err := p.connect(ctx)
	if err != nil {
		return found, err
	}
	defer func() {
		conn.Hurry()
		_ = p.client.Disconnect(&paho.Disconnect{}) // an error means that the connection is gone already
		<-p.client.Done()
		_ = conn.Close()
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { // ends the waits below with the connection; paho would wait for its timeout
		select {
		case <-ctx.Done():
		case <-p.client.Done():
			cancel(p.reason())
		}
	})
	defer watching.Wait()
	defer cancel(nil)
	s.scan(func(t topic, _ *wanted) { s.backlog.expect(t) })
	p.forgetPending()
	if found.blind, err = p.subscribe(ctx); err == nil {
		err = p.awaitRetained(ctx)
	}
	if err == nil {
		found.keys, found.unshown, found.missing = p.queueMissing()
		if p.first.Load() && p.last.Load() && !found.blind {
			p.dropCleared()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	found.stale, found.unretained, found.dropped = p.stale, p.unretained, p.first.Load() && !p.last.Load()
	if found.blind = found.blind || !p.first.Load() || p.seen == 0 && p.unretained > 0; found.blind {
		found.missing = 0 // what the broker does not send may be there
	}
	s.env.Metrics.corrections.WithLabelValues(reasonMissing).Add(float64(found.missing))
	s.env.Metrics.corrections.WithLabelValues(reasonStale).Add(float64(found.stale))
	return found, err
}

// queueMissing queues the topics that the broker has not sent. A topic that the broker acknowledged in an earlier pass counts as unretained instead.
// queueMissing returns the counts of scan, and how many topics it queued.
func (p *pass) queueMissing() (keys, unshown, queued int) {
	keys, unshown = p.s.scan(func(t topic, w *wanted) {
		published := p.wasPublished(t, w.version)
		switch missing := p.s.backlog.resolveExpected(t, !published); {
		case missing && published:
			p.count(&p.unretained)
		case missing:
			queued++
			p.recordQueued(t, w.version)
		}
	})
	return keys, unshown, queued
}

// dropCleared forgets the refused topics that are to have no retained message, and on which the broker retains none. Nothing is left to publish on them.
func (p *pass) dropCleared() {
	for _, t := range p.s.backlog.refusedToPublish() {
		if w, ok := p.s.lookup(t); ok && w.value == "" && !p.isUnlike(t) {
			p.s.backlog.markInSync(t)
		}
	}
}

// isUnlike reports whether the broker sent a retained message of the topic that differs from the state. While p.unlike is full it returns true for any topic.
func (p *pass) isUnlike(t topic) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, is := p.unlike[t]
	return is || len(p.unlike) >= maxUnlike
}

// noteUnlike records a topic for isUnlike. It is called before the topic is queued: the broker may refuse it at once.
func (p *pass) noteUnlike(t topic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unlike) < maxUnlike {
		p.unlike[t.clone()] = struct{}{}
	}
}

func (p *pass) connect(ctx context.Context) (*mqttconn.Conn, error) {
	s := p.s
	login, id := s.env.Login, s.config.comparingID()
	ctx, cancel := context.WithTimeout(ctx, login.Timeout)
	defer cancel()
	network, err := login.Dialer.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	conn := mqttconn.NewConn(network, mqttconn.Receiver{MaxPacket: s.config.MaxPacket, Publish: p.received})
	p.client = paho.NewClient(paho.ClientConfig{
		Conn: conn, Session: mqttconn.NewSession(), PingHandler: &mqttconn.Pinger{}, PacketTimeout: packetTimeout, OnClientError: p.end,
		OnServerDisconnect: func(d *paho.Disconnect) { p.end(&mqttconn.ReasonCodeError{Reason: d.ReasonCode}) },
	})
	password, packet := login.PasswordNow(), uint32(s.config.MaxPacket)
	connack, err := p.client.Connect(ctx, &paho.Connect{
		ClientID: id, CleanStart: true, KeepAlive: uint16(login.KeepAlive / time.Second),
		Username: login.Username, UsernameFlag: login.Username != "", Password: password, PasswordFlag: password != nil,
		Properties: &paho.ConnectProperties{MaximumPacketSize: &packet},
	})
	if err == nil && connack.Properties != nil && !connack.Properties.RetainAvailable {
		_ = p.client.Disconnect(&paho.Disconnect{}) // the error below counts
		<-p.client.Done()
		err = errNoRetained
	}
	if err != nil {
		if connack != nil && connack.ReasonCode != 0 {
			err = &mqttconn.ReasonCodeError{Reason: connack.ReasonCode}
		}
		return nil, errors.Join(fmt.Errorf("connect as %s: %w", id, err), conn.Close())
	}
	return conn, nil
}

var errNoRetained = errors.New("the broker keeps no retained messages")

func (p *pass) end(err error) {
	select {
	case p.ended <- err:
	default:
	}
}

// reason returns why the connection ended.
func (p *pass) reason() error {
	select {
	case err := <-p.ended:
		return err
	case <-time.After(step): // paho calls OnClientError and OnServerDisconnect in new goroutines after Done is closed
		return errors.New("the connection ended")
	}
}

// subscribe has the broker send the retained messages of the mirrors between two retained markers, and then a third marker that is not retained. blind is
// true if the broker refuses one of the subscriptions.
func (p *pass) subscribe(ctx context.Context) (blind bool, err error) {
	markers := [...]string{p.s.config.markerTopics() + "first/", p.s.config.markerTopics() + "last/"}
	for _, marker := range markers {
		response, err := p.client.Publish(ctx, &paho.Publish{Topic: marker + "marker", QoS: 1, Retain: true, Payload: []byte{'1'}})
		if response == nil { // a refusal is a response, too; if no marker arrives, the pass is blind
			return false, fmt.Errorf("publish a marker: %w", err)
		}
	}
	// At QoS 0, because at a higher one brokers bound the number of messages that wait for a client.
	var subscriptions []paho.SubscribeOptions
	for _, prefix := range slices.Concat(markers[:1], p.s.prefixes, markers[1:]) {
		subscriptions = append(subscriptions, paho.SubscribeOptions{Topic: prefix + "#"})
	}
	suback, err := p.client.Subscribe(ctx, &paho.Subscribe{Subscriptions: subscriptions})
	if suback == nil {
		return false, fmt.Errorf("subscribe: %w", err)
	}
	if err := mqttconn.CheckReasons(suback, subscriptions); err != nil {
		return false, err
	}
	for i, granted := range suback.Reasons {
		if granted >= 0x80 {
			blind = true
			p.s.env.Log.Warn("the broker refuses a subscription of mirrors: do its access rules let nodes subscribe there?", "filter", subscriptions[i].Topic, "reason", granted)
		}
	}
	// At QoS 0: a broker that drops retained messages may drop a PUBACK as well.
	if _, err := p.client.Publish(ctx, &paho.Publish{Topic: markers[1] + "marker", Payload: []byte{'1'}}); err != nil {
		return false, fmt.Errorf("publish a marker: %w", err)
	}
	return blind, nil
}

// awaitRetained waits until the broker has probably sent all retained messages.
func (p *pass) awaitRetained(ctx context.Context) error {
	subscribed := time.Now()
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		last := p.began.Add(time.Duration(p.lastRetained.Load()))
		if last.Before(subscribed) {
			last = subscribed
		}
		if time.Since(last) >= quiet && (p.marked.Load() || time.Since(subscribed) >= markerWait) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// received compares a message with the state. A message that is not retained was published just now, usually by this node.
func (p *pass) received(message mqttconn.Message) {
	if marker, ok := strings.CutPrefix(message.Topic, p.s.config.markerTopics()); ok {
		switch {
		case !message.Retain:
			p.marked.Store(true)
		case strings.HasPrefix(marker, "first/"):
			p.first.Store(true)
		default:
			p.last.Store(true)
		}
		return
	}
	t, ok := topicOf(message.Topic, p.s.prefixes)
	if !ok {
		return
	}
	if message.Retain {
		p.lastRetained.Store(int64(time.Since(p.began)))
		p.count(&p.seen)
	}
	w, ok := p.s.lookup(t)
	like := w.value == string(message.Payload) && w.version == versionOf(message)
	if ok && !like && message.Retain {
		p.noteUnlike(t)
	}
	switch {
	case !ok:
	case like:
		p.s.backlog.markInSync(t)
	case p.s.backlog.isTouched(t): // the message may be older than a change that the broker has acknowledged
		p.s.backlog.push(t)
	case message.Retain && !p.s.backlog.isPending(t) && p.wasPublished(t, w.version):
		p.s.backlog.markInSync(t) // so that it does not also count as missing
		p.count(&p.unretained)
	case p.s.backlog.push(t) && message.Retain:
		p.recordQueued(t, w.version)
		p.count(&p.stale)
	}
}

// forgetPending removes the corrections that the broker has not acknowledged from queuedVersions: what it sends in this pass may be older.
func (p *pass) forgetPending() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.queuedVersions, func(t topic, _ string) bool { return p.s.backlog.isPending(t) })
}

func (p *pass) count(number *int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*number++
}

// wasPublished reports whether a pass of this comparison has queued this version to be published, and the key has not changed since the comparison began.
// If the topic is not pending any more, the broker has acknowledged the version.
func (p *pass) wasPublished(t topic, version string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	published, is := p.queuedVersions[t]
	return is && published == version && !p.s.backlog.isTouched(t)
}

// recordQueued records the version that this pass has queued for a topic, for wasPublished.
func (p *pass) recordQueued(t topic, version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queuedVersions) < maxVerified {
		p.queuedVersions[t.clone()] = version
	}
}
