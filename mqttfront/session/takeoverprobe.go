package session

import (
	"context"
	"time"

	"holdfast/internal/mqttconn"
)

// A node's own session that ends soon after it began was perhaps taken over by another client with
// this node's client id. Or the broker restarted, or something between node and broker closes
// connections. When short sessions repeat, a second connection with a random client id tells the
// cases apart: a session takeover does not end it, and the other causes do.
const (
	shortSession = 5 * time.Second // a session that lasts longer is not short
	// after this many short sessions in a row, the next one is probed
	maxShort = 2
	// probeGrace is how long after the session's end the second connection may end and still count
	// as ended together with it.
	probeGrace = 500 * time.Millisecond
)

// takeoverProbe is the second connection. A nil probe never reports a takeover.
type takeoverProbe struct {
	publisher *mqttconn.Publisher
	broker    string // address
	// closes the connection when the session does not count as short any more
	closeTimer *time.Timer
}

// startTakeoverProbe connects a probe under a client id. It returns nil if that fails: then a
// takeover is not noticed.
func startTakeoverProbe(ctx context.Context, login *mqttconn.Login,
	clientID string,
) *takeoverProbe {
	ctx, cancel := context.WithTimeout(ctx, shortSession/5) // the session waits for it
	defer cancel()
	publisher, err := login.Publisher(ctx, clientID)
	if err != nil {
		return nil
	}
	return &takeoverProbe{
		publisher, publisher.RemoteAddr().String(),
		time.AfterFunc(shortSession+probeGrace, publisher.Close),
	}
}

// sawSessionTakeover reports whether a session with a broker ended alone, so that the probe
// outlived it. It returns false if the probe is connected to another broker.
func (p *takeoverProbe) sawSessionTakeover(ctx context.Context, broker string) bool {
	if p == nil || p.broker != broker {
		return false
	}
	timer := time.NewTimer(probeGrace)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-p.publisher.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (p *takeoverProbe) close() {
	if p != nil {
		p.closeTimer.Stop()
		p.publisher.Close()
	}
}
