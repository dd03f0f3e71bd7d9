package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"
)

// errStale says that the broker's queue for this node may have requests that are older than Config.SessionExpiry.
var errStale = errors.New("the session's queue is too old: starting a clean one")

// prober sends probes to this node's own session through the broker. The broker keeps the order: it received everything that follows a probe in the
// session's queue after that probe. So a probe that returns shows how old the requests behind it can be, and that the broker is alive.
//
// Requests behind a probe that is older than Config.SessionExpiry may be older than the dedup table remembers. They are not executed. A node's own session
// then ends and starts clean. The leader's session goes on: its requests are executed again after a fresh probe, a younger one, has returned.
type prober struct {
	config  *Config
	env     *Environment
	barrier *Barrier
	drop    func(since time.Time) // drops requests that came after a moment
	topic   string
	// carriesRequests says that the session also delivers requests. Only then does the age of a probe say anything about them.
	carriesRequests bool
	wall            func() int64 // milliseconds since the Unix epoch
	proberID        uint64       // random; it is in each probe of this prober, and in no other
	start           time.Time
	returned        atomic.Bool // a probe has returned, so the broker's access rules allow probes
	// backlog says that the last probe took longer than backlogAge. Then other nodes have probably handled what the session delivers.
	backlog atomic.Bool
	nagle   nagle // used by the receiving goroutine only

	mu sync.Mutex
	// deliveredUpTo is a moment after which the broker received all messages that are still queued. It is zero until a probe returns or a session starts
	// clean; until then Environment.Contact has the moment.
	deliveredUpTo time.Time
	clean         bool      // the node's own session starts clean next time; without effect on the leader's session
	saved         time.Time // when Environment.Contact was saved last
	fresh         time.Time // when the last fresh probe arrived
}

// onConnack is called after each CONNACK. If this node did not ask to resume a session, the broker has nothing queued: the session has delivered
// everything up to now.
func (p *prober) onConnack(askedToResume bool) {
	if !askedToResume {
		p.mu.Lock()
		p.clean = false
		p.mu.Unlock()
		p.setDeliveredUpTo(time.Now())
	}
}

// backlogAge is the round trip of a probe above which the session has a backlog.
const backlogAge = 5 * time.Second

// contactSaveInterval is the shortest time between two saves to the ContactStore.
const contactSaveInterval = 5 * time.Second

// setDeliveredUpTo records that the session has delivered everything that the broker received before a moment. It saves the moment for a restart, at most once
// in contactSaveInterval, and not if the session is to start clean.
func (p *prober) setDeliveredUpTo(moment time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deliveredUpTo = moment
	now := time.Now()
	if p.clean || now.Sub(p.saved) < contactSaveInterval {
		return
	}
	p.saved = now
	if err := p.env.Contact.Save(p.env.Wall() - now.Sub(moment).Milliseconds()); err != nil {
		p.env.Log.Warn("the last contact with the broker could not be written down", "error", err)
	}
}

// setFresh records the arrival of a probe that is younger than Config.SessionExpiry.
func (p *prober) setFresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fresh = time.Now()
}

func (p *prober) lastFresh() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fresh
}

// run sends probes until the context ends. It calls acknowledged after each PUBACK without an error: a probe that the access rules deny does not count.
func (p *prober) run(ctx context.Context, client *paho.Client, acknowledged func()) {
	ticker := time.NewTicker(p.config.ProbeInterval)
	defer ticker.Stop()
	var asked <-chan struct{}
	if p.carriesRequests {
		asked = p.barrier.Asked()
	}
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
		case <-asked:
		case <-ticker.C:
		}
	}
}

// handle handles a message on the probe topic. isProbe is false if the payload is not a probe; then the other results are meaningless. sent is when the probe
// was sent. fresh says that the requests behind it may be executed.
func (p *prober) handle(payload []byte) (sent time.Time, fresh, isProbe bool) {
	var senderID uint64
	var at, wall int64
	if _, err := fmt.Sscanf(string(payload), "%d %d %d", &senderID, &at, &wall); err != nil {
		return sent, false, false // not a probe: some client may publish to this topic
	}
	now := time.Now()
	age := time.Duration(p.wall()-wall) * time.Millisecond
	if senderID == p.proberID {
		age = now.Sub(p.start) - time.Duration(at)*time.Microsecond
		p.env.Metrics.probe.Observe(age.Seconds())
		if p.nagle.trip(age) {
			p.env.Log.Warn("round trips through the broker gather at 38 to 48 ms: it seems to use Nagle's algorithm; Mosquitto needs the line `set_tcp_nodelay true`")
		}
	}
	sent = now.Add(-max(age, 0))
	p.returned.Store(true)
	if !p.carriesRequests {
		return sent, true, true
	}
	p.backlog.Store(age > backlogAge)
	if p.tooOld(age) {
		p.setStale()
		return sent, false, true
	}
	p.setDeliveredUpTo(sent)
	if senderID == p.proberID { // the age of a probe of another process depends on wall clocks: too imprecise for the barrier
		p.barrier.Advance(sent)
	}
	p.setFresh()
	return sent, true, true
}

// setStale is called when the session delivers requests that may be older than Config.SessionExpiry. It drops those that arrived since the last fresh probe. A
// node's own session starts clean next time, also after a restart.
func (p *prober) setStale() {
	p.drop(p.lastFresh())
	p.requireCleanStart()
}

// requireCleanStart lets a node's own session start clean next time, also after a restart.
func (p *prober) requireCleanStart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clean = true
	if err := p.env.Contact.Save(0); err != nil {
		p.env.Log.Warn("the saved contact with the broker could not be cleared: a restart may resume a stale session", "error", err)
	}
}

// resumable reports whether the session may be resumed: the broker must have received all messages that are still queued within the last
// Config.SessionExpiry. It also returns the moment after which the broker received them. The moment is deliveredUpTo; after a restart it is what was
// saved, by the wall clock. The moment advances only when a probe returns or a session starts clean. A connection that ends before that may have left the
// oldest messages queued.
func (p *prober) resumable() (since time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	since = p.deliveredUpTo
	if since.IsZero() {
		wall, known := p.env.Contact.Load()
		age := time.Duration(p.env.Wall()-wall) * time.Millisecond
		if !known || age < 0 {
			age = p.config.SessionExpiry
		}
		since = time.Now().Add(-age)
	}
	return since, !p.clean && time.Since(since) < p.config.SessionExpiry
}

// tooOld reports whether the dedup table may have forgotten requests that follow a probe of this age.
func (p *prober) tooOld(age time.Duration) bool { return age > p.config.SessionExpiry }

// sessionExpiry is how long the broker is to keep the session, in seconds.
func (p *prober) sessionExpiry() uint32 { return uint32(p.config.SessionExpiry / time.Second) }
