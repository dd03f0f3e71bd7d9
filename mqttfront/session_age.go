//go:build !mutant_old_session

package mqttfront

import "time"

// resumable reports whether the session may be resumed: only when the node was in contact with the broker less than the
// session's age ago, by its monotonic clock or, after a restart, by what it wrote down.
func (p *prober) resumable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clean {
		return false
	}
	if p.reached {
		return time.Since(p.last) < p.front.config.SessionAge
	}
	wall, ok := p.front.world.Contact.Load()
	age := p.front.world.Wall() - wall
	return ok && age >= 0 && age < p.front.config.SessionAge.Milliseconds()
}

// tooOld reports whether what follows a probe of this age may have been forgotten by deduplication.
func (p *prober) tooOld(age time.Duration) bool { return age > p.front.config.SessionAge }

// sessionExpiry is how long the broker is to keep the session, in seconds.
func (p *prober) sessionExpiry() uint32 { return uint32(p.front.config.SessionAge / time.Second) }
