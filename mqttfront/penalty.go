package mqttfront

import (
	"errors"
	"time"

	"holdfast/internal/mqttconn"
)

const (
	// penaltyTime is how long a culprit gets no replies.
	penaltyTime = time.Minute
	// maxPenalties bounds the culprits that are remembered; beyond it the next ones are not.
	maxPenalties = 1024
)

// penalties remembers whose replies made the broker end a publishing connection: they get none for a while, because each costs all other
// clients of the connection a reconnect. The zero value is ready for use. It is not safe for concurrent use.
type penalties struct{ until map[string]time.Time }

// any reports whether there may be a penalty at all.
func (p *penalties) any() bool { return len(p.until) > 0 }

// has reports whether a culprit gets no replies now.
func (p *penalties) has(culprit string, now time.Time) bool { return now.Before(p.until[culprit]) }

// add begins a penalty, if there is room.
func (p *penalties) add(culprit string, now time.Time) {
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
		p.until[culprit] = now.Add(penaltyTime)
	}
}

// culprit returns the key under which a client is penalized: its client id if the broker vouches for it, else the response topic. A client that
// gives another's id must not get that one penalized.
func (f *Front) culprit(r *request) string {
	if id := r.Command.Principal.ClientID; id != "" && f.world.Driver.TrustedIdentity() {
		return "client " + id
	}
	return "topic " + r.ResponseTopic
}

// abandon counts an output as published that the broker does not take. For a reply it starts the penalty of its client.
func (f *Front) abandon(o *outgoing) {
	kind := "notification"
	if o.request != nil {
		kind = "reply"
		f.mu.Lock()
		f.penalties.add(f.culprit(o.request), time.Now())
		f.mu.Unlock()
		f.world.Log.Warn("the broker ends the connection on a reply: not sent, and its client gets none for a while",
			"client", o.request.Command.Principal.ClientID, "response_topic", o.request.ResponseTopic, "penalty", penaltyTime)
		f.kick(o.request)
	}
	f.world.Metrics.abandoned.WithLabelValues(kind).Inc()
	f.published(o)
}

// brokerEnded reports whether the broker ended a publishing connection because of a message on it. It assumes so if the node's own session is older
// than the connection and still up, and no other client took the connection over.
func (f *Front) brokerEnded(began time.Time, by error) bool {
	if errors.Is(by, mqttconn.ErrSilent) || errors.Is(by, mqttconn.ErrClosed) || isTakenOver(by) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.up && !f.upSince.After(began)
}
