package outbox

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

// penalties holds the clients whose replies made the broker end a publishing connection. Such a
// client gets no replies for penaltyTime, because each such reply may end the connection for all of
// its clients. All methods are safe for concurrent use.
type penalties struct {
	trusted func() bool // reports whether the broker vouches for client ids

	ever  atomic.Bool // add was called
	mu    sync.Mutex
	until map[string]time.Time // by penalty key
	// clients are the clients of each user that have a penalty, and until when.
	clients map[string]map[string]time.Time
}

// key returns the key under which the client of a request is penalized: its client id if the broker
// vouches for it, else the response topic. A client that forges the id of another client must not
// get that other client penalized.
func (p *penalties) key(r *wire.Request) string {
	if id := r.Command.Principal.ClientID; id != "" && p.trusted() {
		return "client " + id
	}
	return "topic " + r.ResponseTopic
}

// userKey returns the key of a request's user, or an empty string if the broker vouches for none.
func (p *penalties) userKey(r *wire.Request) string {
	if r.Command.Principal.Username == "" || !p.trusted() {
		return ""
	}
	return "user " + r.Command.Principal.Username
}

// clientsOfUser is how many clients of a user must have a penalty for the user to have one: a user
// may have any number of client ids, and many machines may share a user.
const clientsOfUser = 3

// has reports whether the client of a request gets no replies now.
func (p *penalties) has(r *wire.Request, now time.Time) bool {
	if !p.ever.Load() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.until[p.key(r)]) || now.Before(p.until[p.userKey(r)])
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
		p.addUserLocked(r, now)
	}
}

// addUserLocked begins the penalty of a request's user if enough of its clients have one.
func (p *penalties) addUserLocked(r *wire.Request, now time.Time) {
	user := p.userKey(r)
	if user == "" {
		return
	}
	if p.clients == nil || len(p.clients) >= maxPenalties {
		p.clients = make(map[string]map[string]time.Time)
	}
	clients := p.clients[user]
	if clients == nil {
		clients = make(map[string]time.Time)
		p.clients[user] = clients
	}
	for client, until := range clients {
		if !now.Before(until) {
			delete(clients, client)
		}
	}
	if clients[p.key(r)] = now.Add(penaltyTime); len(clients) >= clientsOfUser {
		p.until[user] = now.Add(penaltyTime)
		delete(p.clients, user)
	}
}
