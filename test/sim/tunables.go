package sim

import (
	"math/rand/v2"
	"time"

	"holdfast/cluster"
	"holdfast/fsm"
	"holdfast/mqttfront"
)

// tunables are what a seed draws: properties of the world, and settings of the product. The
// settings are so small that two minutes show what takes hours with the defaults.
type tunables struct {
	nodes       int
	latency     time.Duration // mean one-way latency between hosts
	diskLatency time.Duration

	timing  cluster.Timing
	cluster func(*cluster.Config)
	front   mqttfront.Config
	offer   fsm.Settings
	broker  brokerOptions

	expiry    int           // message expiry of requests, in seconds
	clockWild bool          // the clocks of a majority may be wrong
	pace      time.Duration // usual time between two operations of one client
	lockTTL   time.Duration
	// complete says that all limits are wide enough for the notifications: none has to be given up.
	complete bool
}

// pick returns one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// between returns a duration from a range.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

func drawTunables(r *rand.Rand, nodes int) *tunables {
	t := &tunables{
		nodes: nodes, latency: pick(r, 200*time.Microsecond, time.Millisecond, 5*time.Millisecond),
		diskLatency: pick(r, 0, 500*time.Microsecond, 3*time.Millisecond),
		timing:      cluster.LAN(), front: mqttfront.DefaultConfig(), offer: fsm.DefaultSettings(),
		expiry: 4 + r.IntN(9), clockWild: r.IntN(8) == 0,
		pace:    between(r, 60*time.Millisecond, 250*time.Millisecond),
		lockTTL: between(r, 500*time.Millisecond, 3*time.Second), complete: true,
	}
	if r.IntN(2) == 0 {
		// with a lease that is long enough for a leader to be deposed without knowing it
		t.timing.Heartbeat, t.timing.Election, t.timing.LeaderLease = time.Second, time.Second,
			950*time.Millisecond
	}
	t.timing.DiskDeadline = between(r, 2*time.Second, 6*time.Second)
	snapshotBytes, trailing := pick(r, int64(8<<10), 64<<10, 1<<20), pick(r, uint64(1), 16, 256)
	batch, inFlight, cache := pick(r, 1, 8, 1024), 1+r.IntN(4), pick(r, 1, 16<<10, 1<<20)
	t.cluster = func(c *cluster.Config) {
		c.SnapshotBytes, c.TrailingEntries, c.Proposals.BatchCommands, c.Proposals.InFlight, c.CacheBytes = snapshotBytes, trailing, batch, inFlight, cache
	}
	t.broker = brokerOptions{
		tellsNoSubscriber: r.IntN(2) == 0, sendsNoDisconnect: r.IntN(2) == 0,
		receiveMaximum: pick(r, uint16(1), 20, 65535), inFlight: pick(r, 10, 20, 65535),
	}
	t.drawFront(r)
	t.drawLimits(r)
	return t
}

// fewExecuting is a small Config.Executing: how many requests a leader executes at once.
const fewExecuting = 4

func (t *tunables) drawFront(r *rand.Rand) {
	f := &t.front
	f.SessionExpiry = time.Duration(2+r.IntN(6)) * time.Second
	if r.IntN(6) == 0 {
		// long enough for requests to expire, and to be forgotten, while a node is stopped
		f.SessionExpiry, t.expiry = 18*time.Second, 4
	}
	f.DedupMargin = f.SessionExpiry // clients send copies for that long
	f.DefaultExpiry, f.MaxExpiry = 10*time.Second, 20*time.Second
	f.ProbeInterval = pick(r, 200*time.Millisecond, 500*time.Millisecond, time.Second)
	f.KeepAlive = time.Duration(2+r.IntN(4)) * time.Second
	f.ConnectTimeout = 3 * time.Second
	f.PublishingConnections, f.Window = 1+r.IntN(3), pick(r, 1, 16, 4096)
	f.OverloadAge = pick(r, 100*time.Millisecond, 5*time.Second)
	f.ProposalAge = pick(r, 500*time.Millisecond, 5*time.Second)
	switch r.IntN(6) {
	case 0:
		f.Executing = fewExecuting
	case 1, 2:
		f.RequestBytes = 32 << 10
	case 3:
		f.QueueNotifications, t.complete = 8, false
	}
	f.RequestsPerClient = pick(r, 4, 4096, 4096)
}

// outcomeLifetime returns how long the outcome of a request of the usual expiry is remembered.
func (t *tunables) outcomeLifetime() time.Duration {
	f := &t.front
	return time.Duration(t.expiry)*time.Second + f.DedupMargin + f.SessionExpiry + f.OverloadAge +
		f.ProposalAge
}

// drawBatching draws how the leader batches commands.
func (t *tunables) drawBatching(r *rand.Rand) {
	further, age, rest := pick(r, 1, 4, 32), t.front.ProposalAge, t.cluster
	t.cluster = func(c *cluster.Config) {
		rest(c)
		c.Proposals.MinPipelined, c.Proposals.ProposalAge = further, age
	}
}

func (t *tunables) drawLimits(r *rand.Rand) {
	s := &t.offer
	s.NotificationExpiry = pick(r, int64(120_000), 120_000, 120_000, 2_000)
	if s.NotificationExpiry < 60_000 {
		t.complete = false
	}
	s.WatchTTL = pick(r, int64(0), 0, 0, 8_000)
	switch r.IntN(6) {
	case 0:
		s.Limits.DedupEntries = pick(r, int64(200), 400, 1200, 2400)
	case 1:
		s.Limits.UnpublishedNotifications, t.complete = 6, false
	case 2:
		s.Limits.Watches = 6
	}
	s.Dialect = pick(r, fsm.DialectRuleAuto, fsm.DialectRuleSDK)
	s.Mirrors = pick(r, nil, []fsm.Mirror{{Keys: "*", Topic: mirrorTopics + "all/"}}, []fsm.Mirror{
		{Keys: "brief/*", Topic: mirrorTopics + "brief/"},
		{Keys: "[lp]*", Topic: mirrorTopics + "some/"},
		{Keys: "*[0-4]", Topic: mirrorTopics + "some/"},
	})
}
