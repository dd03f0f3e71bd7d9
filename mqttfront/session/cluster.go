package session

import (
	"context"
	"errors"
	"time"
)

// Cluster is the cluster's durable session, in one leadership. It brings the requests. The leader acknowledges a request
// to the broker after the reply; the broker delivers what is not acknowledged to the next leader. Each leadership creates
// a new Cluster with the same client id. All methods are safe for concurrent use; Run is called once.
type Cluster struct {
	*session
	confirm func(ctx context.Context) error
}

// NewCluster returns the cluster's session, not connected yet. wall is the cluster's clock, in milliseconds since the Unix
// epoch. confirm returns nil when the node led at some moment after the call.
func NewCluster(config *Config, env *Environment, handler Handler, wall func() int64, confirm func(context.Context) error) *Cluster {
	s := newSession(config, env, config.ClusterClientID(), "holdfast/"+config.Cluster+"/probe", wall)
	s.handler, s.status.blocked = handler, handler.Blocked
	return &Cluster{session: s, confirm: confirm}
}

// Up reports whether the session is connected, and the broker has acknowledged its subscriptions or kept them.
func (s *Cluster) Up() bool {
	up, _ := s.status.state()
	return up
}

// Err returns what is wrong with the session if it has been down for longer than SilenceLimit.
func (s *Cluster) Err() error {
	if s.status.downFor(time.Now()) > SilenceLimit {
		return errors.New("broker session: " + s.clientID + " is not connected")
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

// Run keeps the session connected until the context ends. A node connects only after it is confirmed as the leader. It may
// take the session over from another node, which no longer leads then. A node that is not confirmed must not connect, else
// two nodes would take the session from each other again and again.
func (s *Cluster) Run(ctx context.Context) {
	delay := s.config.BackoffMin
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
				delay = s.config.BackoffMin
			}
		}
		s.env.Log.Warn("the cluster's session is not up", "client", s.clientID, "error", err)
		s.env.Pause(ctx, delay)
		delay = min(2*delay, s.config.BackoffMax)
	}
}
