package mqttfront

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"holdfast/internal/mqttconn"
)

// outbox holds the outgoing connections of one leadership. Their client ids are fixed for the whole cluster: when a new leader
// connects under them, the broker closes the old leader's, so a leader that was paused cannot slip an old notification behind
// a new one.
type outbox struct {
	front  *Front
	queues []*publishQueue
	stop   context.CancelFunc
	work   sync.WaitGroup
}

func newOutbox(front *Front) *outbox {
	o := &outbox{front: front, stop: func() {}}
	for i := range front.config.Publishers {
		o.queues = append(o.queues, newPublishQueue(front, front.publisherID(i)))
	}
	return o
}

// publisherID returns the client id of a publishing connection. It is the same on every node, so that a new leader takes the connection over
// from the old one.
func (f *Front) publisherID(number int) string {
	return fmt.Sprintf("%s-out-%d", f.config.Cluster, number)
}

// takeOver connects all publish queues, and starts them. Leadership is confirmed before the first CONNECT and again after the last CONNACK, and
// nothing is published before. Otherwise a deposed leader that was paused just before its CONNECT would disconnect the leader and repeat old replies.
func (o *outbox) takeOver(ctx context.Context) error {
	for delay := o.front.config.BackoffMin; ; delay = min(2*delay, o.front.config.BackoffMax) {
		publishers, err := o.connectAll(ctx)
		if err == nil {
			ctx, stop := context.WithCancel(ctx)
			o.stop = stop
			for i, queue := range o.queues {
				o.work.Go(func() { queue.run(ctx, publishers[i]) })
			}
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		o.front.world.Log.Warn("the publishing connections are not up", "error", err)
		o.front.pause(ctx, delay)
	}
}

func (o *outbox) connectAll(ctx context.Context) (publishers []*mqttconn.Publisher, err error) {
	defer func() {
		if err != nil {
			for _, publisher := range publishers {
				publisher.Abort()
			}
		}
	}()
	if err := o.front.store.Confirm(ctx); err != nil {
		return nil, err
	}
	for _, queue := range o.queues {
		publisher, err := o.front.connectPublisher(ctx, queue.clientID)
		if err != nil {
			return publishers, err
		}
		publishers = append(publishers, publisher)
	}
	return publishers, o.front.confirmTaken(ctx)
}

// confirmTaken confirms the leadership after publishing connections were taken over. A deposed leader that was paused before has disconnected the
// leader, and must not publish.
func (f *Front) confirmTaken(ctx context.Context) error { return f.store.Confirm(ctx) }

// close stops publishing at once, and waits for the end of it.
func (o *outbox) close() {
	o.stop()
	o.work.Wait()
}

// reconnect connects again. Leadership is confirmed before and after that.
func (q *publishQueue) reconnect(ctx context.Context) (*mqttconn.Publisher, error) {
	if err := q.front.store.Confirm(ctx); err != nil {
		return nil, err
	}
	publisher, err := q.front.connectPublisher(ctx, q.clientID)
	if err != nil {
		return nil, err
	}
	if err := q.front.confirmTaken(ctx); err != nil {
		publisher.Abort()
		return nil, err
	}
	return publisher, nil
}

// isTakenOver reports whether a connection ended because somebody else connected under its client id.
func isTakenOver(err error) bool {
	var refusal *mqttconn.Refusal
	return errors.As(err, &refusal) && refusal.Reason == mqttconn.ReasonSessionTakenOver
}
