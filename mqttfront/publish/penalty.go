package publish

import (
	"sync"
	"sync/atomic"
	"time"

	"holdfast/mqttfront/wire"
)

const (
	// penaltyTime is how long a penalized client gets no replies.
	penaltyTime = time.Minute
	// maxPenalties bounds the penalties; beyond it no more begin.
	maxPenalties = 1024
)

// penalties holds the clients whose replies made the broker end a publishing connection. Such a client gets no replies for penaltyTime, because
// each such reply may end the connection for all of its clients. All methods are safe for concurrent use.
type penalties struct {
	trusted func() bool // reports whether the broker vouches for client ids

	ever  atomic.Bool // add was called
	mu    sync.Mutex
	until map[string]time.Time // by penalty key
}

// key returns the key under which the client of a request is penalized: its user name or, without one, its client id, if the broker vouches for
// them, else the response topic. A user may have any number of client ids. A client that forges the id of another client must not get that
// other client penalized.
func (p *penalties) key(r *wire.Request) string {
	if principal := &r.Command.Principal; p.trusted() && principal.Username != "" {
		return "user " + principal.Username
	} else if p.trusted() && principal.ClientID != "" {
		return "client " + principal.ClientID
	}
	return "topic " + r.ResponseTopic
}

// has reports whether the client of a request gets no replies now.
func (p *penalties) has(r *wire.Request, now time.Time) bool {
	if !p.ever.Load() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.until[p.key(r)])
}

// add begins the penalty of a request's client, if there is room.
func (p *penalties) add(r *wire.Request, now time.Time) {
	p.ever.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil {
		p.until = make(map[string]time.Time)
	}
	if len(p.until) >= maxPenalties {
		for other, until := range p.until {
			if !now.Before(until) {
				delete(p.until, other)
			}
		}
	}
	if len(p.until) < maxPenalties {
		p.until[p.key(r)] = now.Add(penaltyTime)
	}
}
