package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"
)

// Own is the session that a node has whether it leads or not. It shows whether the broker can be
// reached. All methods are safe for concurrent use.
type Own struct{ *session }

// NewOwn returns a node's own session, not connected yet. replies may be empty.
func NewOwn(config *Config, env *Environment, replies Replies) *Own {
	topic := fmt.Sprintf("holdfast/%s/%s/probe", config.Cluster, config.Node)
	s := newSession(config, env, config.OwnClientID(), topic)
	s.connected, s.replies, s.probes.judges = env.Metrics.connected, replies, true
	return &Own{s}
}

// Publish publishes a message at QoS 1 by the session's connection, and waits for its PUBACK. It
// fails while there is no connection, and if the broker has refused the subscription of the
// replies.
func (s *Own) Publish(ctx context.Context, message *mqttconn.Publish) error {
	return s.sender.publish(ctx, message)
}

// rejoinError ends a connection: the node is to go to the broker of the others.
type rejoinError struct{ place int }

// Error implements error.
func (rejoinError) Error() string { return "going to the broker of the other nodes" }

// Place returns to which of the configured addresses the last connection goes, from 0.
func (s *Own) Place() int {
	place, _ := s.status.placeAndMoved()
	return place
}

// errMoved says that the node's own session is at another broker than it was.
var errMoved = errors.New("the node's own session has gone to another broker")

// AwaitMove returns an error when the last connection goes to another place than this one, and nil
// when the context ends.
func (s *Own) AwaitMove(ctx context.Context, from int) error {
	for {
		place, moved := s.status.placeAndMoved()
		if place != from {
			return errMoved
		}
		select {
		case <-ctx.Done():
			return nil
		case <-moved:
		}
	}
}

// Rejoin ends the connection if it goes to another place than this one. The next one begins with
// that address.
func (s *Own) Rejoin(place int) {
	c := s.current.Load()
	if addresses := len(s.env.Login.Dialer.Addresses); c != nil && place != s.Place() &&
		place >= 0 && place < addresses {
		c.end(rejoinError{place})
	}
}

// nextBroker chooses the address of the next connection, after one that ended.
func (s *Own) nextBroker(reason error) {
	var rejoin rejoinError
	if errors.As(reason, &rejoin) {
		s.env.Login.Dialer.Prefer(rejoin.place)
		return
	}
	s.env.Login.Dialer.Next()
}

// Notes returns what an operator has to know of the broker while the session is up.
func (s *Own) Notes() []string {
	if !s.probes.nagle.looks() {
		return nil
	}
	return []string{nagleNote}
}

const nagleNote = "the broker holds small packets back (Nagle's algorithm): most MQTT clients wait 40 ms for each answer; Mosquitto needs the line `set_tcp_nodelay true`"

// UpSince reports whether the session has been up without interruption since a moment.
func (s *Own) UpSince(moment time.Time) bool { return s.status.upSince(moment) }

// Err returns nil if the session is up and has not been silent for longer than SilenceLimit
// (status.silence). Otherwise the error says what is wrong.
func (s *Own) Err() error {
	if up, text := s.status.state(); !up {
		return fmt.Errorf("broker session: %s", text)
	}
	if silence := s.status.silence(time.Now()); silence > SilenceLimit {
		return fmt.Errorf("broker session: no message from the broker for %v, not even a probe",
			silence.Round(time.Millisecond))
	}
	return nil
}

// stableUptime is how long a connection must have been up for the next delay to be the least one
// again.
const stableUptime = time.Second

// endedWithoutReason reports whether the broker closed the connection without a DISCONNECT, as some
// do at a session takeover.
func endedWithoutReason(err error) bool { return errors.Is(err, io.EOF) }

// Run keeps the session connected until the context ends.
func (s *Own) Run(ctx context.Context) {
	delay := s.env.Backoff()
	logged := "" // the last error that was logged: attempts that fail alike are logged once
	short := 0   // consecutive sessions that the broker ended without a reason within shortSession
	for {
		var probe *takeoverProbe
		if short >= maxShort {
			probe = startTakeoverProbe(ctx, s.env.Login,
				fmt.Sprintf("%s-%08x", s.clientID, uint32(s.env.Random())))
		}
		began := time.Now()
		broker, err := s.connect(ctx)
		if ctx.Err() != nil {
			probe.close()
			return
		}
		wasUp := s.setStatus(false, err.Error())
		if wasUp {
			s.env.Metrics.losses.Inc()
			if time.Since(began) > stableUptime {
				delay.Reset()
			}
		}
		if short++; !wasUp || !endedWithoutReason(err) || time.Since(began) > shortSession {
			// no sign of a takeover: the session never was up, the broker gave a reason, or the
			// session lasted long enough
			short = 0
		}
		takenOver := mqttconn.IsTakenOver(err) || short > maxShort &&
			probe.sawSessionTakeover(ctx, broker)
		probe.close()
		if takenOver {
			short = 0
			s.backOffAfterTakeover(ctx)
		} else if text := err.Error(); wasUp || text != logged { // not once for each attempt
			logged = text
			s.env.Log.Warn("no broker session", "was_up", wasUp, "error", err)
		}
		s.nextBroker(err)
		delay.Wait(ctx)
	}
}

// backOffAfterTakeover leaves the client id to another client for a while. Taking it back at once
// would make the two disconnect each other for ever.
func (s *Own) backOffAfterTakeover(ctx context.Context) {
	s.setStatus(false, "another client uses this node's client id "+s.clientID)
	s.env.Metrics.taken.Inc()
	s.env.Log.Error("another client has taken over this node's session; is there a second node of this name? Or does the broker close the connection because of something that this node sends?", "client", s.clientID)
	backoff.Pause(ctx, backoff.Jitter(s.config.SessionExpiry, s.env.Random))
}
