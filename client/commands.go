package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"holdfast/hlc"
	"holdfast/internal/backoff"
	"holdfast/resp"
)

// Version is the version of a value: a hybrid logical clock reading, greater than every earlier
// one. It serves as a fencing token, too.
type Version = hlc.Timestamp

// ParseVersion reads the text form of a version, such as 1696374425000:0:StateStore. An error says
// what is wrong with it.
func ParseVersion(text string) (Version, error) { return hlc.Parse(text) }

// Option changes how a command is executed. Set takes at most one of IfAbsent, IfAbsentOrSame,
// IfAbsentOrEqual and IfVersion, besides Expire and Fence. Del takes IfVersion and Fence, VDel
// takes Fence. OpSet, OpDel and OpVDel take the same as Set, Del and VDel. With any other option
// nothing is sent, and the error is ErrNotExecuted.
type Option func(*options)

type options struct {
	condition []string
	expected  []byte
	ttl       time.Duration
	expires   bool
	token     Version
	err       error // why the command cannot be sent: the first reason; it wraps ErrNotExecuted
}

// IfAbsent makes a Set take effect only when the key does not exist (NX).
func IfAbsent() Option { return func(o *options) { o.setCondition(nil, "NX") } }

// IfAbsentOrSame makes a Set take effect only when the key does not exist or already has the new
// value (NEX). This is how a lock is renewed.
func IfAbsentOrSame() Option { return func(o *options) { o.setCondition(nil, "NEX") } }

// IfAbsentOrEqual makes a Set take effect only when the key does not exist or has the expected
// value (NEX expected).
func IfAbsentOrEqual(expected []byte) Option {
	// a nil expected would mean the new value
	return func(o *options) { o.setCondition(append([]byte{}, expected...), "NEX") }
}

// IfVersion makes a Set or a Del take effect only when the key exists with exactly this version
// (IFVER). This is compare-and-set without the ABA problem: a value that was written again has
// another version. If the version differs, the error is a *NotAppliedError. It has the key's
// version, or zero if the key does not exist. With the zero version as an argument, the error is
// ErrNotExecuted.
func IfVersion(version Version) Option {
	return func(o *options) {
		o.setCondition(nil, "IFVER", version.String())
		if version.IsZero() {
			o.fail("IfVersion of the zero version, which no value has")
		}
	}
}

// Expire sets the time to live of the key (PX), which is rounded up to milliseconds. If it is not
// positive, the error is ErrNotExecuted.
func Expire(after time.Duration) Option {
	return func(o *options) { o.ttl, o.expires = after, true }
}

// Fence adds a fencing token to a command. A Set stores the token with the key. Until the key is
// deleted or expires, the store then refuses a write of the key with an older token
// (ErrFencingTokenLower) or without one (ErrFencingTokenRequired). With the zero version the error
// is ErrNotExecuted.
func Fence(token Version) Option {
	return func(o *options) {
		if o.token = token; token.IsZero() {
			o.fail("Fence with the zero version, which is no token")
		}
	}
}

// setCondition sets the condition. A command has at most one.
func (o *options) setCondition(expected []byte, words ...string) {
	if o.condition != nil {
		o.fail("two conditions, %s and %s", o.condition[0], words[0])
	}
	o.condition, o.expected = words, expected
}

// fail sets why the command cannot be sent. It keeps the first reason.
func (o *options) fail(format string, details ...any) {
	if o.err == nil {
		o.err = fmt.Errorf("%w: %s", ErrNotExecuted, fmt.Sprintf(format, details...))
	}
}

// limitTo calls fail if the options have a time to live, or a condition other than the given one.
// An empty condition allows none.
func (o *options) limitTo(command, condition string) {
	if o.expires {
		o.fail("%s does not take Expire", command)
	}
	if o.condition != nil && o.condition[0] != condition {
		o.fail("%s does not take the condition %s", command, o.condition[0])
	}
}

func collect(list []Option) (o options) {
	for _, option := range list {
		option(&o)
	}
	return o
}

// Set stores a value and returns its version. The error is a *NotAppliedError when the condition
// was not met.
func (c *Client) Set(ctx context.Context, key string, value []byte, list ...Option) (Version,
	error,
) {
	set := OpSet(key, value, list...)
	a, err := c.doOp(ctx, &set)
	switch {
	case err != nil:
	case a.reply.Kind == resp.ReplyOK:
		return a.version, nil
	case a.reply.Kind == resp.ReplyNotApplied:
		err = &NotAppliedError{Version: a.version}
	default:
		err = unexpected(a)
	}
	return Version{}, about("set", key, err)
}

// Get returns a value and its version. The error is ErrNotFound when the key does not exist.
func (c *Client) Get(ctx context.Context, key string) ([]byte, Version, error) {
	get := OpGet(key)
	a, err := c.doOp(ctx, &get)
	switch {
	case err != nil:
	case a.reply.Kind == resp.ReplyBulk:
		return a.reply.Bulk, a.version, nil
	case a.reply.Kind == resp.ReplyNull:
		err = ErrNotFound
	default:
		err = unexpected(a)
	}
	return nil, Version{}, about("get", key, ofRead(err))
}

// Keys returns all keys that match a pattern and that the client may read, in the order of their
// bytes (SCAN). In the pattern, * is any run of characters, ? one character, [abc] and [a-z] one of
// these, [!a] any other one. It asks for one page after the other. A key that is there from the
// first request to the last reply comes once. One that is created or deleted in between may be
// missing. The store leaves keys out that are not valid UTF-8. A page that the store refuses
// because of overload is asked for again. An error ends the sequence, with an empty key. The
// context bounds the whole sequence. If it has no deadline, each page may take Config.Timeout.
func (c *Client) Keys(ctx context.Context, pattern string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		arguments := [][]byte{[]byte("SCAN"), []byte(pattern)}
		for {
			a, err := c.page(ctx, arguments)
			if err == nil && a.reply.Kind != resp.ReplyPage {
				err = unexpected(a)
			}
			if err != nil {
				yield("", about("scan", pattern, ofRead(err)))
				return
			}
			for _, key := range a.reply.Keys {
				if !yield(string(key), nil) {
					return
				}
			}
			if a.reply.Next == nil {
				return
			}
			arguments = append(arguments[:2:2], a.reply.Next)
		}
	}
}

// page requests one page. The store executes a few SCANs at a time and answers the others with
// ErrOverloaded. So page sends the SCAN again until the context or Config.Timeout ends.
func (c *Client) page(ctx context.Context, arguments [][]byte) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout(ctx))
	defer cancel()
	return retryOverloaded(ctx,
		func() (answer, error) { return c.do(ctx, Version{}, arguments...) })
}

// retryOverloaded calls do again while its error is ErrOverloaded. If the context ends after such
// an error, retryOverloaded returns the last one.
func retryOverloaded(ctx context.Context, do func() (answer, error)) (answer, error) {
	var refused error
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		a, err := do()
		switch {
		case err == nil || isPermanent(err):
			return a, err
		case refused != nil && ctx.Err() != nil:
			// the store's refusal says more than the end of the context
			return answer{}, refused
		case !errors.Is(err, ErrOverloaded):
			return a, err
		}
		if refused = err; !backoff.Pause(ctx, wait) {
			return answer{}, refused
		}
	}
}

// Del deletes a key and returns the version of the value that was deleted. The error is ErrNotFound
// when there was no value. With IfVersion, the error is a *NotAppliedError when the value has
// another version, or there is no value.
func (c *Client) Del(ctx context.Context, key string, list ...Option) (Version, error) {
	version, err := c.remove(ctx, OpDel(key, list...))
	return version, about("del", key, err)
}

// VDel deletes a key if it has the value, and returns the version of the value. The error is a
// *NotAppliedError when the key has another value, ErrNotFound when it does not exist.
func (c *Client) VDel(ctx context.Context, key string, value []byte, list ...Option) (Version,
	error,
) {
	version, err := c.remove(ctx, OpVDel(key, value, list...))
	return version, about("vdel", key, err)
}

func (c *Client) remove(ctx context.Context, op Op) (Version, error) {
	a, err := c.doOp(ctx, &op)
	switch {
	case err != nil:
		return Version{}, err
	case a.reply.Kind == resp.ReplyNotApplied:
		return Version{}, &NotAppliedError{Version: a.version}
	case a.reply.Kind == resp.ReplyInteger && a.reply.Integer == 1:
		return a.version, nil
	case a.reply.Kind == resp.ReplyInteger && a.reply.Integer == 0:
		return Version{}, ErrNotFound
	default:
		return Version{}, unexpected(a)
	}
}

func unexpected(a answer) error {
	return fmt.Errorf("%w: the reply is not one to this command (kind %d)", ErrProtocol,
		a.reply.Kind)
}
