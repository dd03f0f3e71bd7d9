package mirror

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
)

// step is the interval at which waits check their condition again.
const step = 100 * time.Millisecond

// connection publishes the topics of the backlog on one connection to the broker.
type connection struct {
	publisher *mqttconn.Publisher
	keepAlive time.Duration // of the connection
	backlog   *backlog
	desired   *desired
	published func(result string) // called with the result of each topic
	onRefused func(topic)         // called when the broker refuses a topic
}

// run publishes, and runs compareAll, until the connection or the context ends. It returns why the
// connection ended, and whether that may be because of what was in flight.
func (c *connection) run(ctx context.Context, compareAll func(context.Context)) (suspect bool,
	err error,
) {
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	for _, work := range []func(context.Context){c.publishAll, compareAll} {
		working.Go(func() { work(ctx) })
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-c.publisher.Done():
			err = c.publisher.Err()
			// a PINGREQ waits behind what is in flight
			slow := c.backlog.transferTime() > c.keepAlive/2
			suspect = !mqttconn.IsTakenOver(err) && (slow || !errors.Is(err, mqttconn.ErrSilent))
		case <-ticker.C:
			var overdue bool
			if overdue, suspect = c.backlog.handleOverdue(time.Now()); overdue {
				err = errUnanswered
			}
		}
	}
	cancel()
	c.publisher.Abort() // nothing that is buffered is worth the wait
	working.Wait()
	return suspect, err
}

var errUnanswered = errors.New("the broker leaves topics unanswered")

// publishAll publishes the topics of the backlog until the context or the connection ends. It waits
// for an answer only where the backlog does.
func (c *connection) publishAll(ctx context.Context) {
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		next := c.backlog.take(time.Now())
		if next != nil {
			c.publisher.Expedite(next.alone)
			if !c.publish(ctx, next) {
				return
			}
			continue
		}
		c.publisher.Flush()
		select {
		case <-ctx.Done():
			return
		case <-c.publisher.Done():
			return
		case <-c.backlog.wake:
		case <-ticker.C: // what was refused may be due
		}
	}
}

// publish makes the retained message of a topic like the state, and reports whether the connection
// is still good.
func (c *connection) publish(ctx context.Context, next *entry) bool {
	t := next.topic
	w, ok := c.desired.lookup(t)
	if !ok { // the mirror is not configured any more; its retained messages stay
		c.skipped(next, resultSkipped)
		return true
	}
	message := &packets.Publish{
		Topic: t.String(), Retain: true, Payload: []byte(w.value),
		Properties: &packets.Properties{},
	}
	if w.version != "" {
		message.Properties.User = []packets.User{{Key: versionProperty, Value: w.version}}
	}
	c.backlog.setSize(next, len(w.value))
	err := c.publisher.Publish(ctx, message, func(reason byte, err error) {
		if err == nil { // on an error the topic stays in flight, because backlog.end may suspect it
			c.acknowledged(next, &w, reason)
		}
	})
	if errors.Is(err, mqttconn.ErrTooLarge) {
		// messageOf leaves out too large a value, so even a message without one is too large
		c.skipped(next, resultTooLarge)
		return true
	}
	return err == nil
}

// acknowledged handles the PUBACK of a topic, by its reason code.
func (c *connection) acknowledged(sent *entry, w *wanted, reason byte) {
	switch {
	case reason < 0x80:
		if w.result != resultTooLarge {
			c.desired.forgetTooLarge(sent.topic)
		}
		c.answered(sent, w.result)
	case reason == reasonPacketTooLarge && w.value != "" &&
		c.desired.rememberTooLarge(sent.topic, w.version):
		c.backlog.done(sent, true)
		c.backlog.push(sent.topic) // the next message clears it; its result is counted
	default:
		c.answered(sent, resultRefused)
		c.onRefused(sent.topic)
	}
}

// reasonPacketTooLarge is the reason code of a PUBACK for a message that is larger than the broker
// accepts, although it has announced no such limit.
const reasonPacketTooLarge = 0x95

func (c *connection) answered(sent *entry, result string) {
	c.published(result)
	c.backlog.done(sent, result != resultRefused)
}

// skipped counts a topic for which nothing was sent, and ends the attempt to publish it.
func (c *connection) skipped(taken *entry, result string) {
	c.published(result)
	c.backlog.skip(taken)
}
