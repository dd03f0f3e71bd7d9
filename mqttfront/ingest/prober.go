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

// errStale says that the broker's queue for this node is older than its session may be.
var errStale = errors.New("the session's queue is too old: starting a clean one")

// prober sends the node messages through the broker. What follows a probe in the session's queue was received by the broker
// after it, so a probe that was sent long ago says that the requests behind it are copies that deduplication may have
// forgotten: they are dropped, and the session starts clean. The round trip is also the sign that the broker is alive.
type prober struct {
	config  *Config
	env     *Environment
	barrier *Barrier
	drop    func(since time.Time) // drops requests that came after a moment
	topic   string
	// carriesRequests says that requests come by the same session: then an old probe says that they are old, and a fresh one that they are not.
	carriesRequests bool
	wall            func() int64 // milliseconds since the Unix epoch
	boot            uint64       // tells probes of this process from those of an earlier one
	start           time.Time
	returned        atomic.Bool // a probe has returned in this process: the broker lets them through
	backlog         atomic.Bool // what comes now is no news to other nodes

	mu      sync.Mutex
	reached bool      // the broker, at least once in this process
	last    time.Time // of the last contact
	since   time.Time // the broker received what it has for the session after this moment; zero where only Contact knows
	clean   bool      // the next session starts clean
	saved   time.Time
	fresh   time.Time // when the last fresh probe came
	nagle   nagle
}

// connected notes that a session has begun: resumed, or clean, as one that is too old has to.
func (p *prober) connected(resumed bool) {
	if !resumed {
		p.mu.Lock()
		p.clean = false
		p.mu.Unlock()
		p.passed(time.Now())
	}
}

// backlogAge is how old a probe has to be for what follows it to be no news to the other nodes.
const backlogAge = 5 * time.Second

// contact notes that the broker was just heard of.
func (p *prober) contact() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reached, p.last = true, time.Now()
}

// contactSaveInterval is how often it is written down how far the session has come.
const contactSaveInterval = 5 * time.Second

// passed notes that everything has come by the session that the broker received before a moment.
func (p *prober) passed(moment time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = moment
	now := time.Now()
	if p.clean || now.Sub(p.saved) < contactSaveInterval {
		return // no restart resumes a session that is too old
	}
	p.saved = now
	if err := p.env.Contact.Save(p.env.Wall() - now.Sub(moment).Milliseconds()); err != nil {
		p.env.Log.Warn("the last contact with the broker could not be written down", "error", err)
	}
}

// setFresh notes that a probe came that was sent not long ago.
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

// run sends probes until the context ends.
func (p *prober) run(ctx context.Context, client *paho.Client) {
	ticker := time.NewTicker(p.config.ProbeInterval)
	defer ticker.Stop()
	var asked <-chan struct{}
	if p.carriesRequests {
		asked = p.barrier.Asked()
	}
	for {
		payload := fmt.Appendf(nil, "%d %d %d", p.boot, time.Since(p.start).Microseconds(), p.wall())
		expiry := uint32(max(10*p.config.SessionAge/time.Second, 1))
		sending, cancel := context.WithTimeout(ctx, p.env.Login.KeepAlive)
		_, err := client.Publish(sending, &paho.Publish{
			Topic: p.topic, QoS: 1, Payload: payload, Properties: &paho.PublishProperties{MessageExpiry: &expiry},
		})
		cancel()
		if err != nil && ctx.Err() == nil {
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

// handle handles a probe that came back, and reports when it was sent and whether what follows it is young enough to be executed. What is
// no probe of a node's says nothing of that.
func (p *prober) handle(payload []byte) (sent time.Time, fresh, isProbe bool) {
	var boot uint64
	var at, wall int64
	if _, err := fmt.Sscanf(string(payload), "%d %d %d", &boot, &at, &wall); err != nil {
		return sent, false, false // who may publish here is the business of the broker's access control
	}
	now := time.Now()
	age := time.Duration(p.wall()-wall) * time.Millisecond
	if boot == p.boot {
		age = now.Sub(p.start) - time.Duration(at)*time.Microsecond
		p.env.Metrics.probe.Observe(age.Seconds())
		if p.nagle.trip(age) {
			p.env.Log.Warn("round trips through the broker gather at 40 to 44 ms: it seems to leave Nagle's algorithm on; Mosquitto needs the line `set_tcp_nodelay true`")
		}
	}
	sent = now.Add(-max(age, 0))
	p.returned.Store(true)
	if !p.carriesRequests {
		p.contact()
		return sent, true, true
	}
	p.backlog.Store(age > backlogAge)
	if p.tooOld(age) {
		p.setStale()
		return sent, false, true
	}
	p.contact()
	p.passed(sent)
	if boot == p.boot { // the age of another one is as right as the wall clock
		p.barrier.Pass(sent)
	}
	p.setFresh()
	return sent, true, true
}

// setStale notes that the session delivers requests that are older than Config.SessionAge. The next session starts clean, also after a restart of the
// node.
func (p *prober) setStale() {
	p.drop(p.lastFresh())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clean = true
	if err := p.env.Contact.Save(0); err != nil {
		p.env.Log.Warn("the last contact with the broker could not be written down", "error", err)
	}
}

// resumable reports whether the session may be resumed: only when the node was in contact with the broker less than the
// session's age ago, by its monotonic clock or, after a restart, by what it wrote down. The broker received what waits in the session after
// since.
func (p *prober) resumable() (since, contact time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	since = p.since
	if since.IsZero() {
		wall, known := p.env.Contact.Load()
		age := time.Duration(p.env.Wall()-wall) * time.Millisecond
		if !known || age < 0 {
			age = p.config.SessionAge
		}
		since = time.Now().Add(-age)
	}
	contact = since
	if p.reached && !p.returned.Load() { // no probe says more
		contact = p.last
	}
	return since, contact, p.mayResume(contact)
}

func (p *prober) mayResume(contact time.Time) bool {
	if p.clean {
		return false
	}
	return time.Since(contact) < p.config.SessionAge
}

// tooOld reports whether what follows a probe of this age may have been forgotten by deduplication.
func (p *prober) tooOld(age time.Duration) bool { return age > p.config.SessionAge }

// sessionExpiry is how long the broker is to keep the session, in seconds.
func (p *prober) sessionExpiry() uint32 { return uint32(p.config.SessionAge / time.Second) }
