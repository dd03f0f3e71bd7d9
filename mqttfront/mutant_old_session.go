//go:build mutant_old_session

package mqttfront

import "time"

// resumable resumes every session.
func (p *prober) resumable() bool { return true }

// tooOld takes everything for news.
func (p *prober) tooOld(time.Duration) bool { return false }

// sessionExpiry is an hour, in seconds.
func (p *prober) sessionExpiry() uint32 { return 3600 }
