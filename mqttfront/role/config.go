package role

import "time"

// Config is what the roles need to know. DefaultConfig gives each field a value. All numbers must be positive; mqttfront.Config validates them.
type Config struct {
	// IngestAtLeader selects one ingest session for the whole cluster, which the leader has, instead of one for each node. It is cheaper. Only the broker's
	// queue then keeps the requests that arrive while no node leads.
	IngestAtLeader bool

	Executing    int // a leader admits no request while so many are with the store or being answered
	HoldBytes    int // most bytes of the requests in the pending request buffer
	HoldMessages int // most requests in that buffer
	// RequestsPerClient bounds the requests of one client that the store or a reply has under way at a leader; more are refused.
	RequestsPerClient int
	// DedupMargin is for how long after a request has expired a copy of it gets the same answer.
	DedupMargin time.Duration
	// OverloadAge is how long a request may wait from its arrival at a leader until it is submitted to the store. After that it is refused.
	OverloadAge time.Duration
	// ProposalAge is how long a write with an identity may wait in the store to be proposed. After that the store proposes its refusal.
	ProposalAge time.Duration
}

// DefaultConfig returns a configuration in which each node's own session brings requests.
func DefaultConfig() Config {
	return Config{
		Executing: 16384, HoldBytes: 256 << 20, HoldMessages: 200_000, RequestsPerClient: 4096,
		DedupMargin: 2 * time.Minute, // as the protocol says
		OverloadAge: 5 * time.Second, ProposalAge: 5 * time.Second,
	}
}

// MaxWait bounds the time from the arrival of a write at a leader until it is proposed. A write that waited longer is not executed: its outcome
// may be forgotten.
func (c *Config) MaxWait() time.Duration { return c.OverloadAge + c.ProposalAge }
