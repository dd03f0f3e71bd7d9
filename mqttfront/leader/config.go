package leader

import "time"

// Config is what a leader needs to know. DefaultConfig gives each field a value. All numbers must
// be positive; mqttfront.Config validates them.
type Config struct {
	// a leader admits no request while so many are under way: with the store, or being answered
	Executing int
	// RequestBytes bounds the bytes of the requests that are under way; a single larger one is
	// admitted.
	RequestBytes int
	// RequestsPerClient bounds the requests of one client that are under way; more are refused.
	RequestsPerClient int
	// DedupMargin is for how long after a request has expired a copy of it gets the same answer.
	DedupMargin time.Duration
	// MaxAge is how long ago the broker may have received a write with an identity for it to be
	// executed. MaxUnexpiredAge is the same for one whose message expiry is not over. A reply that
	// the broker does not acknowledge is given up after MaxAge, too. mqttfront.New sets both.
	MaxAge, MaxUnexpiredAge time.Duration
	// OverloadAge is how long a request may wait from its arrival until it is submitted to the
	// store. After that it is refused.
	OverloadAge time.Duration
	// ProposalAge is how long a write with an identity may wait in the store to be proposed. After
	// that the store proposes its refusal.
	ProposalAge time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Executing: 16384, RequestBytes: 256 << 20, RequestsPerClient: 4096,
		DedupMargin: 2 * time.Minute, // as the protocol says
		MaxAge:      time.Minute, MaxUnexpiredAge: 12 * time.Minute,
		OverloadAge: 5 * time.Second, ProposalAge: 5 * time.Second,
	}
}

// MaxWait bounds the time from the arrival of a write until it is proposed. A write that waited
// longer is not executed: its outcome may be forgotten.
func (c *Config) MaxWait() time.Duration { return c.OverloadAge + c.ProposalAge }
