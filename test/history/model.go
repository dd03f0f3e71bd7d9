package history

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast/hlc"
	"holdfast/resp"
)

// The model of one key, written from the protocol and not from the state machine.

// register is a key that does not expire.
type register struct {
	Present bool
	Value   string
	Token   hlc.Timestamp
}

const (
	errorTokenRequired = "a fencing token is required for this request"
	errorTokenLower    = "the request fencing token is a lower version than the fencing token protecting the resource"
	errorOverloaded    = "the service is overloaded; try again"
	errorQuota         = "the quota has been exceeded"
	errorNotAuthorized = "not authorized"
	errorTimestamp     = "the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
	errorToken         = "the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
)

// step says whether a reply is right for a state, and what the state is then. An unknown reply is right for every state.
func step(state register, o *Op, known bool, reply *resp.Reply) (bool, register) {
	if known && reply.Kind == resp.ReplyError {
		switch reply.Error {
		case errorTokenRequired:
			return state.Present && !state.Token.IsZero() && o.Token.IsZero(), state
		case errorTokenLower:
			return state.Present && o.Token.Before(state.Token), state
		default: // refused for another reason: nothing has happened
			return true, state
		}
	}
	if o.Verb == Get {
		if !known {
			return true, state
		}
		if !state.Present {
			return reply.Kind == resp.ReplyNull, state
		}
		return reply.Kind == resp.ReplyBulk && string(reply.Bulk) == state.Value, state
	}
	if state.Present && !state.Token.IsZero() && (o.Token.IsZero() || o.Token.Before(state.Token)) {
		return !known, state // it has to be an error
	}
	return stepWrite(state, o, known, reply)
}

// stepWrite is step for a write that its token lets pass.
func stepWrite(state register, o *Op, known bool, reply *resp.Reply) (bool, register) {
	is := func(kind resp.ReplyKind, integer int64) bool {
		return !known || reply.Kind == kind && reply.Integer == integer
	}
	switch o.Verb {
	case Set:
		expected := o.Expected
		if expected == "" {
			expected = o.Value
		}
		if state.Present && (o.Condition == NX || o.Condition == NEX && state.Value != expected) {
			return is(resp.ReplyNotApplied, -1), state
		}
		next := register{Present: true, Value: o.Value, Token: state.Token}
		if !state.Present {
			next.Token = hlc.Timestamp{}
		}
		if !o.Token.IsZero() {
			next.Token = o.Token
		}
		return is(resp.ReplyOK, 0), next
	case VDel:
		if state.Present && state.Value != o.Value {
			return is(resp.ReplyNotApplied, -1), state
		}
	}
	if !state.Present {
		return is(resp.ReplyInteger, 0), state
	}
	return is(resp.ReplyInteger, 1), register{}
}

// input is what a model's operation is given; its output is a *resp.Reply, nil for unknown.
type input struct{ op *Op }

func registerModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return register{} },
		Step: func(state, in, out any) (bool, any) {
			reply := out.(*resp.Reply)
			ok, next := step(state.(register), in.(input).op, reply != nil, reply)
			return ok, next
		},
		DescribeOperation: func(in, out any) string {
			o := in.(input).op
			if out.(*resp.Reply) == nil {
				return fmt.Sprintf("%s %s %s → ?", o.Verb, o.Value, o.Condition)
			}
			return fmt.Sprintf("%s %s %s → %q", o.Verb, o.Value, o.Condition, o.Payload)
		},
		DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
	}
}

// linearizable checks the operations on one key.
func linearizable(ops []*Op, limit time.Duration) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	clients := make(map[string]int)
	id := func(client string) int {
		if _, known := clients[client]; !known {
			clients[client] = len(clients)
		}
		return clients[client]
	}
	var operations []porcupine.Operation
	for _, o := range ops {
		if !o.Known {
			if o.Verb != Get {
				operations = append(operations, porcupine.Operation{
					ClientId: id(o.Client), Input: input{o}, Call: int64(o.Call), Output: (*resp.Reply)(nil), Return: math.MaxInt64,
				})
			}
			continue
		}
		operations = append(operations, porcupine.Operation{
			ClientId: id(o.Client), Input: input{o}, Call: int64(o.Call), Output: &o.Reply, Return: int64(o.Replied),
		})
		if o.Verb != Get {
			continue
		}
		for i := range o.Again { // each reply to a read is a read of its own
			operations = append(operations, porcupine.Operation{
				ClientId: id(o.Client), Input: input{o}, Call: int64(o.Call), Output: &o.Again[i].Reply, Return: int64(o.Again[i].At),
			})
		}
	}
	return porcupine.CheckOperationsVerbose(registerModel(), operations, limit)
}

// WritePicture writes porcupine's picture of the first key that no order explains, if there is one.
func (f *Findings) WritePicture(path string) error {
	if f.Picture == nil {
		return nil
	}
	return porcupine.VisualizePath(registerModel(), *f.Picture, path)
}
