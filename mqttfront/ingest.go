package mqttfront

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/mqttfront/wire"
)

// maxPacket is the largest packet that a node accepts from the broker, which is told of it: a request that is just over the
// quota is still answered.
const maxPacket = wire.MaxPayload + 4<<20

// brokerSession is a session with the broker: a node's own, or the cluster's, which follows the leader (ingestmode.go).
type brokerSession struct {
	clientID string
	follows  bool   // the leader
	up       func() // called when it is
	heard    func() // called when something came by it
	requests bool   // it brings them
	probes   *prober
	// cleanStart says that the broker kept a session that was ended by another connection. Such a broker is asked for a clean start.
	cleanStart bool
}

// newOwnSession returns the node's own session. One that brings no requests only tells whether the broker is there.
func (f *Front) newOwnSession(requests bool) *brokerSession {
	return &brokerSession{
		clientID: f.ingestID(), requests: requests, probes: newProber(f, f.probeTopic(f.config.Node), requests, f.world.Wall),
		up: func() { f.setSession(true, "connected") }, heard: f.heardBroker,
	}
}

func (f *Front) probeTopic(whose string) string {
	return fmt.Sprintf("holdfast/%s/%s/probe", f.config.Cluster, whose)
}

// resumes reports whether the broker is to go on with the session that it has kept, and a moment before which the broker received nothing of what
// is in it.
func (s *brokerSession) resumes() (since time.Time, resume bool) {
	switch {
	case !s.requests:
		return time.Now(), false // nothing in it is of worth, and it may be from a time when it was
	case s.follows:
		return time.Now(), true // what is too old in it is told by the probes
	default:
		return s.probes.resumable()
	}
}

// ingest is one connection of a session.
type ingest struct {
	front   *Front
	session *brokerSession
	client  *paho.Client
	conn    *mqttconn.Conn
	acks    *mqttconn.Acks
	probes  *prober

	stale   atomic.Bool // what comes now may be older than the session's age
	since   time.Time   // the broker received what comes now after this moment. Owned by the receiving goroutine.
	handled context.Context
	reason  chan error // why the connection ended, the first word counts
}

// errEnded is all that is known of a connection that the broker closed without a word, as Mosquitto 2.0 does when another client
// connects under the same client id.
var errEnded = errors.New("the connection ended")

// steady is how long a connection has to have been up for the next attempt to be made without delay.
const steady = time.Second

func endedWithoutAWord(err error) bool { return errors.Is(err, errEnded) || errors.Is(err, io.EOF) }

// receive keeps the node's own session connected until the context ends.
func (f *Front) receive(ctx context.Context) error {
	session := f.mode.ownSession(f)
	delay := f.config.BackoffMin
	said := "" // of the attempts since the session was lost
	short := 0 // sessions in a row that ended soon after they began, without a word
	for {
		var watching *takeoverProbe
		if short >= maxShort {
			watching = f.startTakeoverProbe(ctx)
		}
		began := time.Now()
		broker, err := f.connectIngest(ctx, session)
		if ctx.Err() != nil {
			watching.close()
			return nil
		}
		wasUp := f.setSession(false, err.Error())
		if wasUp && time.Since(began) > steady {
			delay = f.config.BackoffMin
		}
		if short++; !wasUp || !endedWithoutAWord(err) || time.Since(began) > shortSession {
			short = 0 // a broker that cannot be reached, as when it is started anew, is another matter
		}
		takenOver := mqttconn.IsTakenOver(err) || short > maxShort && watching.sawSessionTakeover(ctx, broker)
		watching.close()
		if wasUp {
			f.world.Metrics.ingestLosses.Inc()
		}
		if takenOver {
			short = 0
			// Somebody else uses this node's client id. Taking it back would make the two throw each other out for ever.
			f.setSession(false, "another client uses this node's client id "+f.ingestID())
			f.world.Metrics.ingestTaken.Inc()
			f.world.Log.Error("another client has taken over this node's session; is there a second node of this name? Or does the broker refuse something of it?", "client", f.ingestID())
			f.pause(ctx, f.config.SessionAge)
		} else if text := err.Error(); wasUp || text != said { // not once for each attempt
			said = text
			f.world.Log.Warn("no broker session", "was_up", wasUp, "error", err)
		}
		f.world.Dialer.Next()
		f.pause(ctx, delay)
		delay = min(2*delay, f.config.BackoffMax)
	}
}

func (f *Front) ingestID() string { return f.config.Cluster + "-" + f.config.Node + "-in" }

// setSession notes what the ingest session is doing, and returns whether it was up.
func (f *Front) setSession(up bool, text string) (wasUp bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wasUp = f.up
	if up != f.up {
		f.upSince = time.Now()
	}
	f.up, f.session = up, text
	f.heardBroker()
	value := 0.0
	if up {
		value = 1
	}
	f.world.Metrics.ingest.Set(value)
	return wasUp
}

// connectIngest connects once, and receives until the connection ends. It returns the address of the broker, and why it ended.
func (f *Front) connectIngest(ctx context.Context, session *brokerSession) (broker string, err error) {
	dialing, cancel := context.WithTimeout(ctx, f.config.ConnectTime)
	defer cancel()
	since, resume := session.resumes()
	if !resume && session.requests && !session.cleanStart {
		if err := f.endSession(dialing, session.clientID); err != nil {
			return "", err
		}
	}
	network, err := f.world.Dialer.Dial(dialing)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	if !resume {
		since = time.Now()
	}
	in := &ingest{front: f, session: session, probes: session.probes, since: since, handled: ctx, reason: make(chan error, 1)}
	in.conn = mqttconn.NewConn(network, mqttconn.Receiver{MaxPacket: maxPacket, Publish: in.received, Idle: f.store.Flush, Rest: f.coalescingDelay})
	in.acks = mqttconn.NewAcks(in.conn)
	in.client = paho.NewClient(paho.ClientConfig{
		Conn: in.conn, Session: mqttconn.NewSession(), PingHandler: &mqttconn.Pinger{}, PacketTimeout: max(f.config.ConnectTime, f.config.SessionAge),
		OnClientError:      in.ended,
		OnServerDisconnect: func(d *paho.Disconnect) { in.ended(&mqttconn.Refusal{Reason: d.ReasonCode}) },
	})
	in.stale.Store(!resume) // until it is known that the broker has nothing of an old session
	connack, err := in.client.Connect(dialing, in.connect(resume))
	if err != nil {
		_ = in.conn.Close() // the error that counts is the other
		if connack != nil {
			err = &mqttconn.Refusal{Reason: connack.ReasonCode}
		}
		return "", fmt.Errorf("connect as %s: %w", session.clientID, err)
	}
	if connack.SessionPresent && !resume {
		session.cleanStart = true
		in.conn.Hurry()
		_ = in.client.Disconnect(&paho.Disconnect{}) // the error that counts is the other
		<-in.client.Done()
		_ = in.conn.Close()
		return "", errSessionKept
	}
	if !resume {
		in.stale.Store(false)
	}
	in.probes.connected(resume)
	if !connack.SessionPresent && session.requests {
		f.forgetArrivals()
	}
	subscribing := dialing
	if connack.SessionPresent { // what waits in it may come first, and take its time
		subscribing = ctx
		if session.follows {
			session.up()
		}
	}
	err = in.serve(ctx, subscribing)
	in.conn.Hurry()
	_ = in.client.Disconnect(&paho.Disconnect{}) // keeps the session; an error means that the connection is gone already
	<-in.client.Done()
	f.store.Flush() // what came last
	_ = in.conn.Close()
	return network.RemoteAddr().String(), err
}

// errSessionKept says that the broker still had a session that was ended.
var errSessionKept = errors.New("the broker kept a session that was ended: asking for a clean start")

// endSession ends a session at the broker, by a connection with a clean start and without a session expiry. A connection without a clean start
// follows it: Mosquitto writes no session to its disk that a clean start began, so what waits in it would be lost when the broker restarts.
func (f *Front) endSession(ctx context.Context, clientID string) error {
	publisher, err := f.connectPublisher(ctx, clientID)
	if err != nil {
		return err
	}
	publisher.Close()
	return nil
}

// forgetArrivals forgets what ended before it came: with a new session it will not come any more. What does is sent anew, by clients
// that had no answer.
func (f *Front) forgetArrivals() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending.hints.forgetArrivals()
}

func (in *ingest) connect(resume bool) *paho.Connect {
	config := &in.front.config
	password := config.password()
	age, receive, packet := in.probes.sessionExpiry(), uint16(65535), uint32(maxPacket)
	return &paho.Connect{
		ClientID: in.session.clientID, CleanStart: !resume && (in.session.cleanStart || !in.session.requests), KeepAlive: uint16(config.KeepAlive / time.Second),
		Username: config.Username, UsernameFlag: config.Username != "", Password: password, PasswordFlag: password != nil,
		Properties: &paho.ConnectProperties{
			SessionExpiryInterval: &age, ReceiveMaximum: &receive, MaximumPacketSize: &packet, RequestProblemInfo: true,
		},
	}
}

// serve subscribes and stays until the connection or the context ends.
func (in *ingest) serve(ctx, subscribing context.Context) error {
	f := in.front
	subscriptions := []paho.SubscribeOptions{{Topic: in.probes.topic, QoS: 1, RetainHandling: 2}}
	if in.session.requests {
		subscriptions = append(subscriptions, paho.SubscribeOptions{Topic: topics.Invoke, QoS: 1, NoLocal: true, RetainAsPublished: true, RetainHandling: 2})
	}
	if err := mqttconn.Subscribe(subscribing, in.client, subscriptions...); err != nil {
		return err
	}
	in.session.up()
	f.world.Log.Info("broker session up", "client", in.session.clientID)
	in.probes.contact()
	ctx, cancel := context.WithCancel(ctx)
	var probing sync.WaitGroup
	probing.Go(func() { in.probes.run(ctx, in.client) })
	defer probing.Wait()
	defer cancel()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-in.reason:
		return err
	case <-in.client.Done():
		select {
		case err := <-in.reason:
			return err
		case <-time.After(time.Second): // the callbacks come after the end, each in a goroutine of its own
			return errEnded
		}
	}
}

func (in *ingest) ended(err error) {
	select {
	case in.reason <- err:
	default:
	}
}

// received takes a message from the connection, as far as it can: while a request waits for room, TCP pushes back.
func (in *ingest) received(message mqttconn.Message) {
	f := in.front
	in.session.heard()
	done := func() {}
	if message.QoS == 1 {
		number := in.acks.Arrived(message.PacketID)
		done = func() { _ = in.acks.Done(number) } // an error means that the connection has ended, and that comes again
	}
	if in.session.requests && message.Topic == topics.Invoke && in.probes.returned.Load() && in.probes.tooOld(time.Since(in.since)) && !in.stale.Swap(true) {
		// A process that was stopped sent no probes meanwhile. What it reads from its socket now may have been there all the time.
		in.probes.expired()
		if !in.session.follows {
			in.ended(errStale)
		}
	}
	switch {
	case in.stale.Load() && !in.session.follows:
		// Not acknowledged: the session is about to end. A young probe changes nothing: a request behind it may have an earlier one of its client
		// among those that were left out.
	case message.Topic == in.probes.topic:
		in.probed(message.Payload)
		done()
	case in.stale.Load(): // nobody else has what is behind: only this is dropped
		f.world.Metrics.heldDropped.WithLabelValues("stale").Inc()
		done()
	case message.Topic != topics.Invoke || !in.session.requests: // nobody asked for it
		done()
	default:
		select {
		case <-f.drain: // not acknowledged: the broker keeps it for whoever comes next
		default:
			f.take(in.handled, message, time.Now(), done)
		}
	}
}

// probed takes note of a probe: what follows one that is old is too old to be executed, until a young one comes.
func (in *ingest) probed(payload []byte) {
	sent, fresh, isProbe := in.probes.fresh(payload)
	if !isProbe {
		return
	}
	in.since = sent
	in.stale.Store(!fresh)
	if !fresh && !in.session.follows {
		in.ended(errStale)
	}
}
