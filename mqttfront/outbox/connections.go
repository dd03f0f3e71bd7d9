package outbox

import (
	"context"
	"hash/fnv"
	"math"
	"sync"
	"time"

	"holdfast/internal/mqttconn"
)

// Connections are the publishing connections of one leadership. All methods are safe for concurrent
// use.
type Connections struct {
	env       *Environment
	penalties *penalties
	all       []*connection
	stop      context.CancelFunc
	work      sync.WaitGroup
	closed    func() // called at the end of Close
}

// connect connects all connections. It confirms the leadership before the first CONNECT and again
// after the last CONNACK. Nothing is published before the second confirmation. Otherwise a deposed
// leader that was paused just before its CONNECT would disconnect the leader and repeat old
// replies.
func (c *Connections) connect(ctx context.Context) (publishers []*mqttconn.Publisher, err error) {
	defer func() {
		if err != nil {
			for _, publisher := range publishers {
				publisher.Abort()
			}
		}
	}()
	if err := c.env.Confirm(ctx); err != nil {
		return nil, err
	}
	for _, connection := range c.all {
		publisher, err := c.env.Connect(ctx, connection.clientID)
		if err != nil {
			return publishers, err
		}
		publishers = append(publishers, publisher)
	}
	return publishers, c.env.Confirm(ctx)
}

// start makes the connections publish until the context ends or they are closed.
func (c *Connections) start(ctx context.Context, publishers []*mqttconn.Publisher) {
	ctx, c.stop = context.WithCancel(ctx)
	for i, connection := range c.all {
		// before a request is executed: MaxPacket bounds the reply of a transaction
		connection.maxPacket.Store(int64(publishers[i].MaxPacket()))
		c.work.Go(func() { connection.run(ctx, publishers[i]) })
	}
}

// Close stops publishing at once, and waits until the connections have ended.
func (c *Connections) Close() {
	c.stop()
	c.work.Wait()
	c.closed()
}

// MaxPacket returns the size in bytes of the largest packet that the broker accepts, by its latest
// CONNACKs; math.MaxInt64 without a limit.
func (c *Connections) MaxPacket() int64 {
	least := int64(math.MaxInt64)
	for _, connection := range c.all {
		least = min(least, connection.maxPacket.Load())
	}
	return least
}

// Send queues an output on the connection on which its client receives everything. It returns the
// outputs that are given up: the oldest notifications if too many wait, or the output itself while
// its client has a penalty. Handler.Published is not called for these.
func (c *Connections) Send(client string, o *Output) (dropped []*Output) {
	if o.Request != nil && c.penalties.has(o.Request, time.Now()) {
		c.env.Metrics.abandoned.WithLabelValues(o.kind()).Inc()
		return []*Output{o}
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(client)) // never fails
	dropped = c.all[hash.Sum32()%uint32(len(c.all))].queue.push(o)
	c.env.Metrics.notifications.WithLabelValues("given_up").Add(float64(len(dropped)))
	return dropped
}
