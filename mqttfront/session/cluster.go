package session

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Cluster is the cluster's durable session, in one leadership. It brings the requests. The leader
// acknowledges a request to the broker after the reply; the broker delivers what is not
// acknowledged to the next leader. Each leadership creates a new Cluster with the same client id.
// All methods are safe for concurrent use; Run is called once.
type Cluster struct{ *session }

// NewCluster returns the cluster's session, not connected yet. confirm returns nil when the node
// led at some moment after the call.
func NewCluster(config *Config, env *Environment, handler Handler, log Log,
	confirm func(context.Context) error,
) *Cluster {
	s := newSession(config, env, config.ClusterClientID(), "holdfast/"+config.Cluster+"/probe")
	s.handler, s.log, s.confirm = handler, log, confirm
	s.status.blocked = func() bool { return handler.Blocked() || s.hasUnacknowledged() }
	return &Cluster{session: s}
}

// hasUnacknowledged reports whether something is unacknowledged on the connection. Then the
// broker's silence is not the broker's: a full window lets no probe through. The node's own session
// tells whether the broker is there.
func (s *session) hasUnacknowledged() bool {
	c := s.current.Load()
	return c != nil && c.acks.Waiting() > 0
}

// Up reports whether the session is connected, and the broker has acknowledged its subscriptions.
func (s *Cluster) Up() bool {
	up, _ := s.status.state()
	return up
}

// maxWithoutProbe is for how long a session may be up without a probe that returns. After that too
// little is known of the age of requests.
const maxWithoutProbe = 30 * time.Second

// Err returns what is wrong with the session if it has been down for longer than SilenceLimit, or
// if it is up and no probe returns.
func (s *Cluster) Err() error {
	now := time.Now()
	up := s.Up()
	if !up && s.Silence(now) > SilenceLimit {
		return errors.New("broker session: " + s.clientID + " is not connected")
	}
	if up && !s.handler.Blocked() &&
		s.probes.withoutReturn(now, s.status.subscribed()) > maxWithoutProbe {
		return fmt.Errorf("broker session: no probe returns, so the age of requests is not known: the broker's rules must let %s publish and receive %s", s.clientID, s.probes.topic)
	}
	return nil
}

// Delivered reports whether the session has delivered all that the broker received before a moment.
func (s *Cluster) Delivered(moment time.Time) bool { return s.probes.hasDelivered(moment) }

// Reconnect ends the connection, so that the broker delivers again what is not acknowledged.
func (s *Cluster) Reconnect(reason error) {
	if c := s.current.Load(); c != nil {
		c.end(reason)
	}
}

// Run keeps the session connected until the context ends. A node connects only after it is
// confirmed as the leader. It may take the session over from another node, which no longer leads
// then. A node that is not confirmed must not connect, else two nodes would take the session from
// each other again and again.
func (s *Cluster) Run(ctx context.Context) {
	delay := s.env.Backoff()
	for {
		began := time.Now()
		err := s.confirm(ctx)
		if err == nil {
			_, err = s.connect(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if s.setStatus(false, err.Error()) {
			s.env.Metrics.losses.Inc()
			if time.Since(began) > stableUptime {
				delay.Reset()
			}
		}
		s.env.Log.Warn("the cluster's session is not up", "client", s.clientID, "error", err)
		delay.Wait(ctx)
	}
}
