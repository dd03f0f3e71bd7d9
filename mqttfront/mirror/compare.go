package mirror

import (
	"context"
	"errors"
	"fmt"
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
	// markerWait is how long the comparison waits for a message that the node sends itself, and that follows the retained ones with most brokers.
	// Two further markers are retained: they show whether the broker sends retained messages at all, and whether it drops some.
	markerWait = 5 * time.Second
	// packetTimeout bounds the wait for the answer to a SUBSCRIBE, which may come behind all retained messages, however long these take. If the broker sends
	// nothing, the keep-alive ends the connection before.
	packetTimeout = 10 * time.Minute
	// correctionWait is how long a comparison waits for the broker to acknowledge what it has corrected, before it looks once more.
	correctionWait = 30 * time.Second
	// maxPasses is how often at most the broker is asked for its retained messages in one comparison: a broker drops those for which it has no room.
	maxPasses = 20
	// maxVerified bounds the corrections that a further pass verifies.
	maxVerified = 10_000
	// maxUnlike bounds pass.unlike. When it is full, the pass forgets no refused topic.
	maxUnlike = 100_000
)

// comparison is the result of a comparison of the retained messages with the state, or of one pass of it.
type comparison struct {
	keys       int  // with a mirror
	unshown    int  // of keys: those that make no valid topic
	missing    int  // retained messages
	stale      int  // retained messages that were not as in the state, or of no key
	unretained int  // that the broker has acknowledged, and does not retain
	blind      bool // the broker does not send what it retains
	dropped    bool // the broker dropped some of what it retains, at the last pass
}

// compareAll compares the retained messages with the state at once, and each time that this is asked for, until the context ends.
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

// compare has the broker send the retained messages, and queues what they lack. If it corrected anything, it looks once more when the broker has
// acknowledged that. Where the broker drops messages, it looks again for as long as it finds stale ones: each makes room for others.
func (s *session) compare(ctx context.Context) error {
	s.begun()
	s.backlog.setComparing(true)
	defer s.backlog.setComparing(false)
	var all comparison
	queuedVersions := make(map[topic]string) // version, by topic
	for number := range maxPasses {
		found, err := s.runPass(ctx, queuedVersions)
		if err != nil || ctx.Err() != nil {
			s.corrected(found)
			return err
		}
		all.keys, all.unshown, all.blind, all.dropped, all.unretained = found.keys, found.unshown, found.blind, found.dropped, found.unretained
		if found.blind { // nothing is known of what is missing
			all.missing, all.unretained = 0, 0
		}
		s.corrected(found)
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

// awaitCorrections waits until the broker has acknowledged what was queued until now.
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

// pass is one connection of a comparison.
type pass struct {
	s              *session
	began          time.Time
	client         *paho.Client
	queuedVersions map[topic]string // version that this pass or an earlier one has queued to be published; guarded by mu
	ended          chan error       // why the connection ended; only the first is kept

	lastRetained atomic.Int64 // when the last retained message came, in nanoseconds since began
	marked       atomic.Bool  // the marker that is published behind the subscription has come back
	first, last  atomic.Bool  // the retained markers before and behind the topics of mirrors have come

	mu         sync.Mutex
	unlike     map[topic]struct{} // topics of retained messages that are not as in the state; at most maxUnlike
	seen       int                // retained messages
	stale      int
	unretained int
}

// runPass is one attempt of compare. It adds the versions that it queues to queuedVersions. After an error, found has what it corrected before.
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
	watching.Go(func() { // paho would wait for its timeout
		select {
		case <-ctx.Done():
		case <-p.client.Done():
			cancel(p.reason())
		}
	})
	defer watching.Wait()
	defer cancel(nil)
	s.scan(func(t topic, _ *wanted) { s.backlog.expect(t) })
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

// queueMissing queues the topics that the broker has not sent. It returns what scan does, and how many topics it has queued.
func (p *pass) queueMissing() (keys, unshown, queued int) {
	keys, unshown = p.s.scan(func(t topic, w *wanted) {
		published := p.wasPublished(t, w.version)
		switch missing := p.s.backlog.resolveExpected(t, !published); {
		case missing && published:
			p.count(&p.unretained)
		case missing:
			queued++
			p.correct(t, w.version)
		}
	})
	return keys, unshown, queued
}

// dropCleared forgets the refused topics that are to have no retained message, if the broker retains nothing on them: nothing is left to publish.
func (p *pass) dropCleared() {
	for _, t := range p.s.backlog.refusedToPublish() {
		if w, ok := p.s.lookup(t); ok && w.value == "" && !p.isUnlike(t) {
			p.s.backlog.markInSync(t)
		}
	}
}

// isUnlike reports whether the broker may have sent a retained message of a topic that is not as in the state.
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

// subscribe has the broker send what it retains below the mirrors, between two markers, and then one more marker. It returns whether the broker refuses
// some of that.
func (p *pass) subscribe(ctx context.Context) (blind bool, err error) {
	markers := [...]string{p.s.config.markerTopics() + "first/", p.s.config.markerTopics() + "last/"}
	for _, marker := range markers {
		response, err := p.client.Publish(ctx, &paho.Publish{Topic: marker + "marker", QoS: 1, Retain: true, Payload: []byte{'1'}})
		if response == nil { // a broker that refuses it counts as one that sends no retained messages
			return false, fmt.Errorf("publish a marker: %w", err)
		}
	}
	// At a higher QoS, brokers bound how many messages may wait.
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

// received compares a message with the state. One that is not retained was just published, by this node as a rule.
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
		p.s.backlog.markInSync(t) // it is not missing, too
		p.count(&p.unretained)
	case p.s.backlog.push(t) && message.Retain:
		p.correct(t, w.version)
		p.count(&p.stale)
	}
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

// correct notes that a pass publishes a version.
func (p *pass) correct(t topic, version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queuedVersions) < maxVerified {
		p.queuedVersions[t.clone()] = version
	}
}
