package session

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/internal/mqttconn"
)

// prober sends probes to this node's own session through the broker. The broker keeps the order: it
// received everything that follows a probe in the session's queue after that probe. So a probe that
// returns shows how old the requests behind it can be, and that the broker is alive. Probes of
// other processes, and of this one's earlier leaderships, do not count.
type prober struct {
	config *Config
	env    *Environment
	topic  string
	id     uint64 // random; it is in each probe of this prober, and in no other
	// judges says that the first probes of a connection follow each other at once, to see whether
	// the broker delays them.
	judges bool
	nagle  nagle // used by run, except for looks

	mu       sync.Mutex
	number   uint64  // of the last probe
	underWay []probe // that have not returned, by number
	// the session has delivered all that the broker received before; zero until a probe has
	// returned
	delivered  time.Time
	returnedAt time.Time // when a probe returned last
	horizon    time.Time // the newest horizon that was found; zero while none was
	disorder   bool      // probes came back out of order, or not at all
}

// probe is one probe that was sent.
type probe struct {
	number     uint64
	sent       time.Time
	connection *connection
	// horizon is when an earlier probe was sent that had returned on this connection, and whose
	// PUBACK was written before this one was sent; zero if there was none. When this one returns on
	// the same connection, the broker has read that PUBACK, and so has not seen acknowledged only
	// what it received later.
	horizon time.Time
}

// maxUnderWay bounds the probes that have not returned. Beyond it the oldest do not count any more.
const maxUnderWay = 1024

func newProber(config *Config, env *Environment, topic string) *prober {
	return &prober{config: config, env: env, topic: topic, id: env.Random()}
}

// hasDelivered reports whether the session has delivered all that the broker received before a
// moment.
func (p *prober) hasDelivered(moment time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.delivered.Before(moment)
}

// withoutReturn returns for how long no probe has returned, at most the time since a moment.
func (p *prober) withoutReturn(now, since time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.returnedAt.After(since) {
		since = p.returnedAt
	}
	return now.Sub(since)
}

// knownHorizon returns the newest horizon that was found, and the zero time while there is none.
func (p *prober) knownHorizon() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.horizon
}

// begin notes a probe that is about to be sent on a connection, and returns its payload.
func (p *prober) begin(c *connection) (number uint64, payload []byte) {
	horizon := c.acknowledgedUpTo()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	p.underWay = append(p.underWay, probe{p.number, time.Now(), c, horizon})
	if len(p.underWay) > maxUnderWay {
		p.underWay = slices.Delete(p.underWay, 0, 1)
	}
	return p.number, fmt.Appendf(nil, "%d %d", p.id, p.number)
}

// forget makes a probe count no more.
func (p *prober) forget(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, found := p.find(number); found {
		p.underWay = slices.Delete(p.underWay, at, at+1)
	}
}

// find returns the place of a probe in underWay. p.mu must be held.
func (p *prober) find(number uint64) (at int, found bool) {
	return slices.BinarySearchFunc(p.underWay, number,
		func(u probe, number uint64) int { return cmp.Compare(u.number, number) })
}

// run sends probes by a connection until the context ends. It calls acknowledged after each PUBACK
// without an error: a probe that the access rules deny does not count.
func (p *prober) run(ctx context.Context, c *connection, acknowledged func()) {
	ticker := time.NewTicker(p.config.ProbeInterval)
	defer ticker.Stop()
	p.nagle.begin()
	for {
		number, payload := p.begin(c)
		began := time.Now()
		sending, cancel := context.WithTimeout(ctx, p.env.Login.KeepAlive)
		reason, err := c.conn.Publish(sending,
			&mqttconn.Publish{Topic: p.topic, QoS: 1, Payload: payload})
		cancel()
		if err == nil && reason >= 0x80 {
			err = &mqttconn.ReasonCodeError{Reason: reason}
		}
		if err == nil {
			acknowledged()
			if p.judges && p.nagle.isJudging() {
				if p.nagle.trip(time.Since(began)) {
					p.env.Log.Warn(nagleNote)
				}
				continue // the next one follows at once
			}
		} else if p.forget(number); ctx.Err() == nil {
			p.env.Log.Debug("probe not sent", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// returned handles a message on the probe topic. ok is false if it is no probe of this prober, or
// one that has returned before. Then the other results are meaningless. sent is when the probe was
// sent. horizon is the new horizon, zero if the probe shows none.
func (p *prober) returned(payload []byte, on *connection) (sent, horizon time.Time, ok bool) {
	var id, number uint64
	if _, err := fmt.Sscanf(string(payload), "%d %d", &id, &number); err != nil || id != p.id {
		return sent, horizon, false // some client may publish to this topic
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at, found := p.find(number)
	if !found {
		return sent, horizon, false
	}
	u := p.underWay[at]
	if at > 0 && p.underWay[at-1].connection == on && !p.disorder {
		p.disorder = true
		p.env.Log.Error("the broker delivered a probe before an earlier one: it does not keep the order of a session, or drops messages")
	}
	p.underWay = slices.Delete(p.underWay, 0, at+1)
	now := time.Now()
	// of those before it none counts any more, so delivered never goes back
	p.returnedAt, p.delivered = now, u.sent
	if u.connection == on && u.horizon.After(p.horizon) {
		p.horizon, horizon = u.horizon, u.horizon
	}
	p.env.Metrics.probe.Observe(now.Sub(u.sent).Seconds())
	return u.sent, horizon, true
}

// sessionExpiry is how long the broker is to keep the session, in seconds.
func (p *prober) sessionExpiry() uint32 { return uint32(p.config.SessionExpiry / time.Second) }
