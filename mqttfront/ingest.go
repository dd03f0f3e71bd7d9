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
)

// maxPacket is the largest packet that a node accepts from the broker, which is told of it: a request that is just over the
// quota is still answered.
const maxPacket = maxPayload + 4<<20

// ingest is one connection of the ingest session.
type ingest struct {
	front  *Front
	client *paho.Client
	conn   *mqttconn.Conn
	acks   *mqttconn.Acks
	probes *prober

	stale   atomic.Bool // what comes now may be older than the session's age
	handled context.Context
	reason  chan error // why the connection ended, the first word counts
}

// errEnded is all that is known of a connection that the broker closed without a word, as Mosquitto 2.0 does when another client
// connects under the same client id.
var errEnded = errors.New("the connection ended")

// steady is how long a connection has to have been up for the next attempt to be made without delay.
const steady = time.Second

func endedWithoutAWord(err error) bool { return errors.Is(err, errEnded) || errors.Is(err, io.EOF) }

// receive keeps the ingest session connected until the context ends.
func (f *Front) receive(ctx context.Context) error {
	probes := newProber(f)
	delay := f.config.BackoffMin
	said := "" // of the attempts since the session was lost
	short := 0 // sessions in a row that ended soon after they began, without a word
	for {
		var watching *witness
		if short >= maxShort {
			watching = f.callWitness(ctx)
		}
		began := time.Now()
		broker, err := f.connectIngest(ctx, probes)
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
		takenOver := isTakenOver(err) || short > maxShort && watching.sawTakeOver(ctx, broker)
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
func (f *Front) connectIngest(ctx context.Context, probes *prober) (broker string, err error) {
	dialing, cancel := context.WithTimeout(ctx, f.config.ConnectTime)
	defer cancel()
	network, err := f.world.Dialer.Dial(dialing)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	in := &ingest{front: f, conn: mqttconn.NewConn(network, maxPacket, f.config.QueueBytes), probes: probes, handled: ctx, reason: make(chan error, 1)}
	in.acks = mqttconn.NewAcks(in.conn)
	in.client = paho.NewClient(paho.ClientConfig{
		Conn: in.conn, Session: mqttconn.NewSession(), PingHandler: &mqttconn.Pinger{}, PacketTimeout: f.config.ConnectTime,
		OnPublishReceived:  []func(paho.PublishReceived) (bool, error){in.handle},
		OnClientError:      in.ended,
		OnServerDisconnect: func(d *paho.Disconnect) { in.ended(&mqttconn.Refusal{Reason: d.ReasonCode}) },
	})
	resume := probes.resumable()
	connack, err := in.client.Connect(dialing, in.connect(resume))
	if err != nil {
		_ = in.conn.Close() // the error that counts is the other
		if connack != nil {
			err = &mqttconn.Refusal{Reason: connack.ReasonCode}
		}
		return "", fmt.Errorf("connect as %s: %w", f.ingestID(), err)
	}
	probes.connected(resume)
	if !connack.SessionPresent {
		f.forgetEarly()
	}
	err = in.serve(ctx, dialing)
	in.conn.Hurry()
	_ = in.client.Disconnect(&paho.Disconnect{}) // keeps the session; an error means that the connection is gone already
	<-in.client.Done()
	_ = in.conn.Close()
	return network.RemoteAddr().String(), err
}

// forgetEarly forgets what is known of requests that have not come: with a new session they will not come any more. What does
// is sent anew, by clients that had no answer.
func (f *Front) forgetEarly() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.early = early{}
}

func (in *ingest) connect(resume bool) *paho.Connect {
	config := &in.front.config
	age, receive, packet := in.probes.sessionExpiry(), uint16(65535), uint32(maxPacket)
	return &paho.Connect{
		ClientID: in.front.ingestID(), CleanStart: !resume, KeepAlive: uint16(config.KeepAlive / time.Second),
		Username: config.Username, UsernameFlag: config.Username != "", Password: config.Password, PasswordFlag: config.Password != nil,
		Properties: &paho.ConnectProperties{
			SessionExpiryInterval: &age, ReceiveMaximum: &receive, MaximumPacketSize: &packet, RequestProblemInfo: true,
		},
	}
}

// serve subscribes and stays until the connection or the context ends.
func (in *ingest) serve(ctx, dialing context.Context) error {
	f := in.front
	err := mqttconn.Subscribe(dialing, in.client,
		paho.SubscribeOptions{Topic: InvokeTopic, QoS: 1, NoLocal: true, RetainAsPublished: true, RetainHandling: 2},
		paho.SubscribeOptions{Topic: in.probes.topic(), QoS: 1, RetainHandling: 2})
	if err != nil {
		return err
	}
	f.setSession(true, "connected")
	f.world.Log.Info("broker session up", "client", f.ingestID())
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

// handle takes a message from paho: copies it into the queue, no more. When the queue is full it waits, and TCP pushes back.
func (in *ingest) handle(received paho.PublishReceived) (bool, error) {
	f, publish := in.front, received.Packet
	size := in.conn.TakeSize()
	f.heardBroker()
	done := func() {}
	if publish.QoS == 1 {
		number := in.acks.Arrived(publish.PacketID)
		done = func() { _ = in.acks.Done(number) } // an error means that the connection has ended, and that comes again
	}
	switch {
	case publish.Topic == in.probes.topic():
		if !in.probes.fresh(publish.Payload) {
			in.stale.Store(true)
			in.ended(errStale)
		}
		done()
		in.conn.Release(size)
	case in.stale.Load(): // not acknowledged: the session is about to end
		in.conn.Release(size)
	case publish.Topic != InvokeTopic: // nobody asked for it
		done()
		in.conn.Release(size)
	default:
		m := message{publish: publish, arrived: time.Now(), release: func() { in.conn.Release(size) }, done: done}
		select {
		case f.queue <- m:
		case <-in.handled.Done():
			in.conn.Release(size)
		}
	}
	return true, nil
}
