package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast/hlc"
	"holdfast/resp"
)

// This file has the model of one key. It is written from the protocol, and not from the product's
// state machine.

// register is the state of a key that does not expire.
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

// step reports whether a reply is right for a state, and returns the state after the operation. An
// unknown reply is right for every state.
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
		return !known, state // only an error would be right, and errors are handled above
	}
	return stepWrite(state, o, known, reply)
}

// stepWrite is step for a write that the key's fencing token does not forbid.
func stepWrite(state register, o *Op, known bool, reply *resp.Reply) (bool, register) {
	is := func(kind resp.ReplyKind, integer int64) bool {
		return !known || reply.Kind == kind && reply.Integer == integer
	}
	if o.Condition == IfVer && !(state.Present && state.Value == o.Expected) {
		return is(resp.ReplyNotApplied, -1), state
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

// input is the input of an operation in porcupine's sense. The output is a *resp.Reply, nil if the
// outcome is unknown.
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

// linearizable checks the operations on one key or bank. Of the operations of unknown outcome, its
// first search includes only those that set a value that was read. That search is quick. If it
// finds an order, the operations that it left out can follow at the end of that order.
func linearizable(model porcupine.Model, ops []*Op, limit time.Duration) (porcupine.CheckResult,
	porcupine.LinearizationInfo,
) {
	seen := make(map[string]bool)
	for _, o := range ops {
		for _, value := range read(&o.Reply) {
			seen[value] = true
		}
		for i := range o.Again {
			for _, value := range read(&o.Again[i].Reply) {
				seen[value] = true
			}
		}
	}
	wasSeen := func(set *Op) bool { return seen[set.Value] }
	operations := toPorcupine(ops,
		func(o *Op) bool { return o.Known || slices.ContainsFunc(o.sets(), wasSeen) })
	if porcupine.CheckOperationsTimeout(model, operations, limit) == porcupine.Ok {
		return porcupine.Ok, porcupine.LinearizationInfo{}
	}
	return porcupine.CheckOperationsVerbose(model, toPorcupine(ops, func(*Op) bool { return true }),
		limit)
}

// toPorcupine converts the wanted operations for porcupine. It leaves out reads of unknown outcome,
// which restrict no order.
func toPorcupine(ops []*Op, wanted func(*Op) bool) (operations []porcupine.Operation) {
	clients := make(map[string]int)
	id := func(client string) int {
		if _, known := clients[client]; !known {
			clients[client] = len(clients)
		}
		return clients[client]
	}
	var reads []porcupine.Operation
	for _, o := range ops {
		operation := porcupine.Operation{
			ClientId: id(o.Client), Input: input{o}, Call: int64(o.Call),
			Output: (*resp.Reply)(nil), Return: math.MaxInt64,
		}
		if o.Known {
			operation.Output, operation.Return = &o.Reply, int64(o.Replied)
		}
		switch {
		case !wanted(o) || !o.Known && o.Verb == Get:
		case o.Verb == Get:
			reads = append(reads, operation)
			for i := range o.Again { // each reply to a read is a read of its own
				operation.Output, operation.Return = &o.Again[i].Reply, int64(o.Again[i].At)
				reads = append(reads, operation)
			}
		default:
			operations = append(operations, operation)
		}
	}
	return append(operations, needed(ops, reads)...)
}

// needed returns the reads without those whose interval contains the interval of another read with
// the same reply: the two can be ordered side by side. If only one SET writes a value, the interval
// of its reads begins no earlier than the call of that SET. Copies that a broker delivers minutes
// later make many unneeded reads, and the search for an order would try all of them.
func needed(ops []*Op, reads []porcupine.Operation) (left []porcupine.Operation) {
	// by value: when a SET of it began, and whether there are several
	set, ambiguous := make(map[string]int64), make(map[string]bool)
	for _, o := range ops {
		for _, one := range o.sets() {
			_, again := set[one.Value]
			ambiguous[one.Value] = ambiguous[one.Value] || again
			set[one.Value] = int64(o.Call)
		}
	}
	byReply := make(map[string][]porcupine.Operation)
	for _, r := range reads {
		reply := r.Output.(*resp.Reply)
		value := string(reply.Bulk)
		if began, known := set[value]; known && !ambiguous[value] && reply.Kind == resp.ReplyBulk &&
			began < r.Return {
			r.Call = max(r.Call, began)
		}
		key := fmt.Sprint(r.Input.(input).op.Key, reply.Kind, reply.Integer, reply.Error, value)
		byReply[key] = append(byReply[key], r)
	}
	for _, same := range byReply {
		slices.SortFunc(same, func(a,
			b porcupine.Operation,
		) int {
			return cmp.Compare(a.Return, b.Return)
		})
		latest := int64(math.MinInt64) // latest call of the needed reads that returned before
		for _, r := range same {
			if r.Call > latest {
				left = append(left, r)
				latest = r.Call
			}
		}
	}
	return left
}

// WritePicture writes porcupine's picture, in HTML, of the first key or bank that no order
// explains. Without one it writes no file.
func (f *Findings) WritePicture(path string) error {
	if f.picture == nil {
		return nil
	}
	return porcupine.VisualizePath(f.picture.model, f.picture.info, path)
}
