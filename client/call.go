package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"holdfast/hlc"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/resp"
)

// call is a request that waits for its answer.
type call struct {
	publish     *mqttconn.Publish
	correlation string
	done        chan answer // has room for one
	isKeyNotify bool        // the command is KEYNOTIFY, with or without STOP
	// when it was made; a moment also counts the time in which the machine was suspended
	began  moment
	expiry time.Duration // the message expiry
	taken  atomic.Bool   // the broker acknowledged a copy, and has a subscriber for it

	// The fields below are guarded by Client.mu.
	sent bool // a copy may have reached the store
	// when the broker first said on this connection that nobody receives requests; zero if it did
	// not
	unreceived moment
}

type answer struct {
	reply   resp.Reply
	version hlc.Timestamp
	limit   string   // see ServerError.Limit
	session *session // the session in which the reply arrived
	err     error
}

func (c *call) finish(a answer) {
	select {
	case c.done <- a:
	default: // answered already: a reply may come twice
	}
}

type refusedError struct{ reason byte }

func (e *refusedError) Error() string {
	return fmt.Sprintf("%v with reason 0x%02X", ErrRefused, e.reason)
}

func (e *refusedError) Is(target error) bool { return target == ErrRefused }

// do sends a command and waits for its answer.
func (c *Client) do(ctx context.Context, token hlc.Timestamp, arguments ...[]byte) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout(ctx))
	defer cancel()
	waiting, err := c.begin(ctx, token, arguments)
	if err != nil {
		return answer{}, err
	}
	select {
	case a := <-waiting.done:
		c.forget(waiting)
		if a.err == nil && a.reply.Kind == resp.ReplyError {
			a.err = &ServerError{Text: a.reply.Error, Limit: a.limit}
		}
		return a, a.err
	case <-ctx.Done():
		return answer{}, c.unanswered(waiting, ctx.Err())
	}
}

// unanswered gives a call up for a reason, and returns its error.
func (c *Client) unanswered(waiting *call, reason error) error {
	sent := c.forget(waiting)
	c.mu.Lock()
	taken, nobody, answered := waiting.taken.Load(), !waiting.unreceived.at.IsZero(), c.answered
	c.mu.Unlock()
	switch {
	case !sent && nobody:
		return fmt.Errorf("%w: %w: nobody receives requests: %w", ErrNotExecuted, ErrNoStore,
			reason)
	case !sent:
		return fmt.Errorf("%w: %w", ErrNotExecuted, reason)
	case !taken:
		return fmt.Errorf("%w: the broker has not acknowledged the request: %w", ErrOutcomeUnknown,
			reason)
	case !answered:
		return fmt.Errorf("%w: %w: %w", ErrOutcomeUnknown, ErrNoStore, reason)
	default:
		return fmt.Errorf("%w: the broker has the request, and no node has answered: %w",
			ErrOutcomeUnknown, reason)
	}
}

func (c *Client) timeout(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return c.config.Timeout
}

// begin waits for a connection and enqueues the request. If it returns an error, nothing was sent.
func (c *Client) begin(ctx context.Context, token hlc.Timestamp, arguments [][]byte) (*call,
	error,
) {
	correlation := make([]byte, 16)
	_, _ = rand.Read(correlation) // never fails
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotExecuted, err)
		}
		c.mu.Lock()
		session, changed, failure, closed := c.session, c.changed, c.failure, c.closed
		if closed {
			c.mu.Unlock()
			return nil, fmt.Errorf("%w: %w", ErrNotExecuted, ErrClosed)
		}
		if session != nil {
			waiting := c.newCallLocked(ctx, correlation, token, arguments)
			c.pending[waiting.correlation] = waiting
			c.order = append(c.order, waiting)
			session.enqueue(waiting)
			c.mu.Unlock()
			return waiting, nil
		}
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNotExecuted, errors.Join(ctx.Err(), failure))
		}
	}
}

// newCallLocked makes the request. c.mu must be held.
func (c *Client) newCallLocked(ctx context.Context, correlation []byte, token hlc.Timestamp,
	arguments [][]byte,
) *call {
	expiry := uint32(min(max((min(c.timeout(ctx), math.MaxUint32*time.Second)+
		time.Second-1)/time.Second, 1), math.MaxUint32))
	format := byte(0)
	properties := &mqttconn.Properties{
		ResponseTopic: c.responseTopic, CorrelationData: correlation, MessageExpiry: &expiry,
		ContentType: "application/octet-stream", PayloadFormat: &format,
		User: mqttconn.UserProperties{
			{Key: "__ts", Value: c.timestampLocked().String()},
			{Key: "__srcId", Value: c.config.ClientID},
			{Key: "__protVer", Value: "1.0"},
		},
	}
	if !token.IsZero() {
		properties.User.Add("__ft", token.String())
	}
	return &call{
		publish: &mqttconn.Publish{
			Topic: c.config.InvokeTopic, QoS: 1,
			Payload: resp.AppendArray(nil, arguments...), Properties: properties,
		},
		correlation: string(correlation), done: make(chan answer, 1),
		isKeyNotify: string(arguments[0]) == "KEYNOTIFY", began: now(),
		expiry: time.Duration(expiry) * time.Second,
	}
}

// replaceCorrelationLocked gives a KEYNOTIFY new correlation data, so that the store treats it as a
// new request. The store ended the watch when the old connection ended. A copy of the old request
// would be deduplicated, and would not restore the watch. c.mu must be held.
func (c *Client) replaceCorrelationLocked(waiting *call) {
	correlation := make([]byte, 16)
	_, _ = rand.Read(correlation) // never fails
	delete(c.pending, waiting.correlation)
	publish, properties := *waiting.publish, *waiting.publish.Properties
	properties.CorrelationData = correlation
	publish.Properties = &properties
	waiting.publish, waiting.correlation, waiting.began = &publish, string(correlation), now()
	c.pending[waiting.correlation] = waiting
}

// forget stops waiting for an answer and reports whether the request may have been sent.
func (c *Client) forget(waiting *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(waiting)
	if c.session != nil && !waiting.sent {
		c.session.withdraw(waiting)
	}
	return waiting.sent
}

// removeLocked takes a request out of those that are sent and answered. c.mu must be held.
func (c *Client) removeLocked(waiting *call) {
	delete(c.pending, waiting.correlation)
	if at := slices.Index(c.order, waiting); at >= 0 {
		c.order = slices.Delete(c.order, at, at+1)
	}
}

// handleReply matches a reply with its request.
func (c *Client) handleReply(p *mqttconn.Publish) {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting, ok := c.pending[string(p.Properties.CorrelationData)]
	if !ok {
		return // late, or twice
	}
	c.turnaround += (time.Since(waiting.began.at) - c.turnaround) / 64
	c.answered = true
	a := c.readLocked(p)
	a.session = c.session
	waiting.finish(a)
}

// readLocked parses a reply and merges its version into the client's clock. c.mu must be held.
func (c *Client) readLocked(p *mqttconn.Publish) (a answer) {
	if status := p.Properties.User.Get("__stat"); status == "505" {
		return answer{err: fmt.Errorf("%w: %w (it supports %s)", ErrNotExecuted, ErrProtocolVersion,
			p.Properties.User.Get("__supProtMajVer"))}
	}
	if text := p.Properties.User.Get("__ts"); text != "" {
		version, err := hlc.Parse(text)
		if err != nil {
			return answer{err: fmt.Errorf("%w: version %q: %w", ErrProtocol, text, err)}
		}
		a.version = version
		c.mergeLocked(version)
	}
	a.limit = p.Properties.User.Get(topics.LimitProperty)
	if a.reply, a.err = resp.ReadReply(p.Payload); a.err != nil {
		a.err = fmt.Errorf("%w: %.40q", ErrProtocol, p.Payload)
	}
	return a
}
