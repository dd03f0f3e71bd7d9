package sim

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
	present bool
	value   string
	token   hlc.Timestamp
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
func step(state register, o *op, known bool, reply *resp.Reply) (bool, register) {
	if known && reply.Kind == resp.ReplyError {
		switch reply.Error {
		case errorTokenRequired:
			return state.present && !state.token.IsZero() && o.token.IsZero(), state
		case errorTokenLower:
			return state.present && o.token.Before(state.token), state
		default: // refused for another reason: nothing has happened
			return true, state
		}
	}
	if o.verb == opGet {
		if !known {
			return true, state
		}
		if !state.present {
			return reply.Kind == resp.ReplyNull, state
		}
		return reply.Kind == resp.ReplyBulk && string(reply.Bulk) == state.value, state
	}
	if state.present && !state.token.IsZero() && (o.token.IsZero() || o.token.Before(state.token)) {
		return !known, state // it has to be an error
	}
	return stepWrite(state, o, known, reply)
}

// stepWrite is step for a write that its token lets pass.
func stepWrite(state register, o *op, known bool, reply *resp.Reply) (bool, register) {
	is := func(kind resp.ReplyKind, integer int64) bool {
		return !known || reply.Kind == kind && reply.Integer == integer
	}
	switch o.verb {
	case opSet:
		expected := o.expected
		if expected == "" {
			expected = o.value
		}
		if state.present && (o.condition == nx || o.condition == nex && state.value != expected) {
			return is(resp.ReplyNotApplied, -1), state
		}
		next := register{present: true, value: o.value, token: state.token}
		if !state.present {
			next.token = hlc.Timestamp{}
		}
		if !o.token.IsZero() {
			next.token = o.token
		}
		return is(resp.ReplyOK, 0), next
	case opVDel:
		if state.present && state.value != o.value {
			return is(resp.ReplyNotApplied, -1), state
		}
	}
	if !state.present {
		return is(resp.ReplyInteger, 0), state
	}
	return is(resp.ReplyInteger, 1), register{}
}

// input is what a model's operation is given; its output is a *resp.Reply, nil for unknown.
type input struct{ op *op }

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
				return fmt.Sprintf("%s %s %s → ?", o.verb, o.value, o.condition)
			}
			return fmt.Sprintf("%s %s %s → %q", o.verb, o.value, o.condition, o.payload)
		},
		DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
	}
}

// linearizable checks the operations on one key.
func linearizable(ops []*op, limit time.Duration) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	clients := make(map[string]int)
	id := func(client string) int {
		if _, known := clients[client]; !known {
			clients[client] = len(clients)
		}
		return clients[client]
	}
	var operations []porcupine.Operation
	for _, o := range ops {
		if !o.known {
			if o.verb != opGet {
				operations = append(operations, porcupine.Operation{
					ClientId: id(o.client), Input: input{o}, Call: int64(o.call), Output: (*resp.Reply)(nil), Return: math.MaxInt64,
				})
			}
			continue
		}
		operations = append(operations, porcupine.Operation{
			ClientId: id(o.client), Input: input{o}, Call: int64(o.call), Output: &o.reply, Return: int64(o.replied),
		})
		if o.verb != opGet {
			continue
		}
		for i := range o.again { // each reply to a read is a read of its own
			operations = append(operations, porcupine.Operation{
				ClientId: id(o.client), Input: input{o}, Call: int64(o.call), Output: &o.again[i].reply, Return: int64(o.again[i].at),
			})
		}
	}
	return porcupine.CheckOperationsVerbose(registerModel(), operations, limit)
}
