package client

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"holdfast/resp"
)

// MaxOps is how many operations a transaction may have.
const MaxOps = 128

// Op is an operation of a transaction. It may be used again. It keeps the values that it is made
// with, which must not be changed while it is in use.
type Op struct {
	arguments [][]byte
	token     Version // fencing token; zero for none
	err       error   // why the operation cannot be sent: the first reason; it wraps ErrNotExecuted
}

// OpSet is Set as an operation.
func OpSet(key string, value []byte, list ...Option) Op {
	o := collect(list)
	if o.expires && o.ttl <= 0 {
		o.fail("the time to live is %v: must be positive", o.ttl)
	}
	op := Op{arguments: [][]byte{[]byte("SET"), []byte(key), value}, token: o.token, err: o.err}
	if o.expires {
		// PX comes before NEX (set if absent, or if the value is the expected one), because the
		// expected value may follow NEX as the last argument
		ms := o.ttl / time.Millisecond
		if o.ttl%time.Millisecond > 0 {
			ms++
		}
		op.add("PX", strconv.FormatInt(int64(ms), 10))
	}
	op.add(o.condition...)
	if o.expected != nil {
		op.arguments = append(op.arguments, o.expected)
	}
	return op
}

// OpGet is Get as an operation.
func OpGet(key string) Op { return Op{arguments: [][]byte{[]byte("GET"), []byte(key)}} }

// OpDel is Del as an operation.
func OpDel(key string, list ...Option) Op {
	o := collect(list)
	o.limitTo("DEL", "IFVER")
	op := Op{arguments: [][]byte{[]byte("DEL"), []byte(key)}, token: o.token, err: o.err}
	op.add(o.condition...)
	return op
}

// OpVDel is VDel as an operation.
func OpVDel(key string, value []byte, list ...Option) Op {
	o := collect(list)
	o.limitTo("VDEL", "")
	return Op{arguments: [][]byte{[]byte("VDEL"), []byte(key), value}, token: o.token, err: o.err}
}

func (o *Op) add(words ...string) {
	for _, word := range words {
		o.arguments = append(o.arguments, []byte(word))
	}
}

// doOp sends an operation as a command of its own.
func (c *Client) doOp(ctx context.Context, o *Op) (answer, error) {
	if o.err != nil {
		return answer{}, o.err
	}
	return c.do(ctx, o.token, o.arguments...)
}

// OpResult is what an operation of a transaction did.
type OpResult struct {
	// Found says that a Get found a value, or that a Del or VDel deleted one. After a Set it is
	// true.
	Found bool
	Value []byte // of a Get; nil unless Found
}

// TxnResult is what a transaction did.
type TxnResult struct {
	// the greatest version that a Set of the transaction gave; zero if there was no Set
	Version Version
	Results []OpResult
}

// Txn executes 1 to MaxOps operations at one moment, or none of them (TXN). Two may not write the
// same key, and none may read what another writes: that is an ErrSyntax. A wrong number of
// operations is an ErrArgumentCount. Each condition is checked against the state before the
// transaction. The fencing token of one operation holds for all operations. Two operations must not
// have different tokens.
//
// If a condition is not met, the error is a *NotAppliedError, with the version of the first key
// whose condition is not met. A VDel has a condition, too: that a key that exists has the given
// value. A VDel, or a Del without IfVersion, of a missing key does nothing and does not stop the
// others.
func (c *Client) Txn(ctx context.Context, operations ...Op) (TxnResult, error) {
	arguments := [][]byte{[]byte("TXN")}
	var token Version
	for i := range operations {
		op := &operations[i]
		switch {
		case op.err != nil:
			return TxnResult{}, op.err
		case len(op.arguments) == 0:
			return TxnResult{}, fmt.Errorf("%w: operation %d of the transaction is the zero Op",
				ErrNotExecuted, i+1)
		case token.IsZero():
			token = op.token
		case !op.token.IsZero() && op.token != token:
			return TxnResult{}, fmt.Errorf("%w: a transaction with two fencing tokens, %v and %v",
				ErrNotExecuted, token, op.token)
		}
		arguments = append(arguments, resp.AppendArray(nil, op.arguments...))
	}
	a, err := c.do(ctx, token, arguments...)
	switch {
	case err != nil:
		return TxnResult{}, fmt.Errorf("txn: %w", err)
	case a.reply.Kind == resp.ReplyNotApplied:
		return TxnResult{}, fmt.Errorf("txn: %w", &NotAppliedError{Version: a.version})
	case a.reply.Kind != resp.ReplyArray || len(a.reply.Replies) != len(operations):
		return TxnResult{}, unexpected(a)
	}
	result := TxnResult{Version: a.version, Results: make([]OpResult, len(operations))}
	for i := range a.reply.Replies {
		switch reply := &a.reply.Replies[i]; reply.Kind {
		case resp.ReplyBulk:
			result.Results[i] = OpResult{Found: true, Value: reply.Bulk}
		case resp.ReplyInteger:
			result.Results[i].Found = reply.Integer == 1
		default:
			result.Results[i].Found = reply.Kind == resp.ReplyOK
		}
	}
	return result, nil
}
