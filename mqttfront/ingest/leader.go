package ingest

import (
	"context"
	"errors"
	"time"
)

// LeaderSession is the cluster's one ingest session, which the leader connects. The leader acknowledges a request to the broker after the reply. The
// broker delivers unacknowledged requests to the next leader. Each leadership creates a new LeaderSession with the same client id. All methods are safe
// for concurrent use; Run is called once.
type LeaderSession struct {
	*session
	confirm func(ctx context.Context) error
}

// NewLeaderSession returns a leader's session that is not connected yet. wall is the cluster's clock, in milliseconds since the Unix epoch. confirm
// returns nil when the node led at some moment after the call.
func NewLeaderSession(config *Config, env *Environment, handler Handler, barrier *Barrier, wall func() int64, confirm func(context.Context) error) *LeaderSession {
	s := newSession(config, env, handler, barrier, config.Cluster+"-ingest", "holdfast/"+config.Cluster+"/probe", wall)
	s.shared, s.carriesRequests, s.probes.carriesRequests = true, true, true
	return &LeaderSession{session: s, confirm: confirm}
}

// Up reports whether the session is connected, and the broker has acknowledged its subscriptions or kept them.
func (s *LeaderSession) Up() bool {
	up, _ := s.status.state()
	return up
}

// Err returns what is wrong with the session if it has been down for longer than SilenceLimit.
func (s *LeaderSession) Err() error {
	if s.status.downFor(time.Now()) > SilenceLimit {
		return errors.New("broker session: " + s.clientID + " is not connected")
	}
	return nil
}

// Run keeps the session connected until the context ends. A node connects only after it is confirmed as the leader. It may take the session over from
// another node, which no longer leads then. A node that is not confirmed must not connect, else two nodes would take the session from each other
// again and again.
func (s *LeaderSession) Run(ctx context.Context) {
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
		s.env.Log.Warn("the leader's ingest session is not up", "client", s.clientID, "error", err)
		s.env.Pause(ctx, delay)
		delay = min(2*delay, s.config.BackoffMax)
	}
}
