package session

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"
)

// prober sends probes to this node's own session through the broker. The broker keeps the order: it received everything
// that follows a probe in the session's queue after that probe. So a probe that returns shows how old the requests behind
// it can be, and that the broker is alive.
//
// Requests behind a probe that is older than Config.SessionExpiry may be older than the dedup table remembers. They are
// not executed. Requests are executed again when a younger probe has returned.
type prober struct {
	config   *Config
	env      *Environment
	topic    string
	wall     func() int64 // milliseconds since the Unix epoch
	proberID uint64       // random; it is in each probe of this prober, and in no other
	start    time.Time
	returned atomic.Bool // a probe has returned, so the broker's access rules allow probes
	nagle    nagle       // used by the receiving goroutine only

	mu        sync.Mutex
	delivered time.Time // the session has delivered all that the broker received before; zero until a probe has returned
}

// hasDelivered reports whether the session has delivered all that the broker received before a moment.
func (p *prober) hasDelivered(moment time.Time) bool {
	const rounding = time.Microsecond // a probe carries its time in whole microseconds
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.delivered.Add(rounding).Before(moment)
}

// setDelivered notes that a probe has returned that was sent at a moment.
func (p *prober) setDelivered(sent time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sent.After(p.delivered) {
		p.delivered = sent
	}
}

// run sends probes until the context ends. It calls acknowledged after each PUBACK without an error: a probe that the access rules deny does not count.
func (p *prober) run(ctx context.Context, client *paho.Client, acknowledged func()) {
	ticker := time.NewTicker(p.config.ProbeInterval)
	defer ticker.Stop()
	for {
		payload := fmt.Appendf(nil, "%d %d %d", p.proberID, time.Since(p.start).Microseconds(), p.wall())
		expiry := uint32(max(10*p.config.SessionExpiry/time.Second, 1)) // the probe must outlive SessionExpiry: its return shows that the queue is stale
		sending, cancel := context.WithTimeout(ctx, p.env.Login.KeepAlive)
		_, err := client.Publish(sending, &paho.Publish{
			Topic: p.topic, QoS: 1, Payload: payload, Properties: &paho.PublishProperties{MessageExpiry: &expiry},
		})
		cancel()
		if err == nil {
			acknowledged()
		} else if ctx.Err() == nil {
			p.env.Log.Debug("probe not sent", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// handle handles a message on the probe topic. isProbe is false if the payload is not a probe; then the other results are
// meaningless. sent is when the probe was sent, age how long ago that is.
func (p *prober) handle(payload []byte) (sent time.Time, age time.Duration, isProbe bool) {
	var senderID uint64
	var at, wall int64
	if _, err := fmt.Sscanf(string(payload), "%d %d %d", &senderID, &at, &wall); err != nil {
		return sent, 0, false // not a probe: some client may publish to this topic
	}
	now := time.Now()
	age = time.Duration(p.wall()-wall) * time.Millisecond
	if senderID == p.proberID {
		age = now.Sub(p.start) - time.Duration(at)*time.Microsecond
		p.env.Metrics.probe.Observe(age.Seconds())
		if p.nagle.trip(age) {
			p.env.Log.Warn("round trips through the broker gather at 38 to 48 ms: it seems to use Nagle's algorithm; Mosquitto needs the line `set_tcp_nodelay true`")
		}
	}
	sent = now.Add(-max(age, 0))
	p.returned.Store(true)
	if senderID == p.proberID { // the age of a probe of another process depends on wall clocks: too imprecise for hasDelivered
		p.setDelivered(sent)
	}
	return sent, age, true
}

// tooOld reports whether the dedup table may have forgotten requests that follow a probe of this age.
func (p *prober) tooOld(age time.Duration) bool { return age > p.config.SessionExpiry }

// sessionExpiry is how long the broker is to keep the session, in seconds.
func (p *prober) sessionExpiry() uint32 { return uint32(p.config.SessionExpiry / time.Second) }
