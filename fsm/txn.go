package fsm

import (
	"strconv"

	"holdfast/hlc"
	"holdfast/internal/glob"
)

// MaxOperations is how many operations a transaction may have. Result.Operation, a uint8, can hold
// the index of each.
const MaxOperations = 128

// OperationOverhead is the memory that an operation of a transaction needs beyond its bytes,
// approximately, in bytes.
const OperationOverhead = 512

// ownFields returns an operation of a transaction without the fields that it copies from the
// transaction (Command.inherit).
func (c *Command) ownFields() Command {
	own := *c
	own.Principal.ClientID, own.Principal.Username, own.Principal.Attributes = "", "", nil
	own.Dialect, own.Timestamp, own.Token, own.Unidentified = Documented, hlc.Timestamp{},
		hlc.Timestamp{}, false
	return own
}

// inherit gives the operations of a transaction the fields that they have in common with it.
func (c *Command) inherit() {
	for i := range c.Operations {
		operation := &c.Operations[i]
		operation.Principal, operation.Dialect, operation.Unidentified = c.Principal, c.Dialect,
			c.Unidentified
		operation.Timestamp, operation.Token = c.Timestamp, c.Token
	}
}

// operation reads an operation of a transaction.
func (r *reader) operation() (c Command) {
	if r.inOperation { // an operation has no operations of its own
		r.fail(ErrDamaged)
		return c
	}
	inner := r.enter()
	inner.inOperation = true
	readCommand(&inner, &c)
	if !c.Kind.isWrite() && c.Kind != KindGet && c.Kind != KindInvalid {
		inner.fail(ErrDamaged)
	}
	r.leave(&inner)
	return c
}

// isWrite reports whether a command of the kind changes its key.
func (k Kind) isWrite() bool { return k == KindSet || k == KindDel || k == KindVDel }

// transact runs a transaction: all of its operations, or none. Every check of every operation is
// made against the state before the transaction. The first operation that is refused decides the
// result or, if none is refused, the first whose condition is not met.
func (m *Machine) transact(position int, command *Command, storageLow bool, outcome *EntryOutcome) {
	result, operations := &outcome.Results[position], command.Operations
	if len(operations) == 0 || len(operations) > MaxOperations {
		result.fail(ErrorArguments)
		return
	}
	if m.collide(operations) {
		result.fail(ErrorSyntax)
		return
	}
	replies, found := make([]Result, len(operations)), make([]*record, len(operations))
	unmet := -1
	var total growth
	for i := range operations {
		found[i] = m.checkOperation(position, &operations[i], outcome, &replies[i])
		switch {
		case replies[i].Code == CodeError:
			*result = replies[i]
			result.Operation = uint8(i)
			return
		case replies[i].Code == CodeNotApplied && unmet < 0:
			unmet = i
		case replies[i].Code == CodeNone:
			total.add(&operations[i], found[i])
		}
	}
	limit := m.exceededQuota(&total, command.owner(), storageLow)
	switch values, size := replySize(replies); {
	case unmet >= 0:
		*result = replies[unmet]
		result.Operation = uint8(unmet)
		return
	case m.watchCost(operations) > maxWatchCost:
		result.failQuota(LimitTxnPatterns)
		return
	case limit != NoLimit:
		result.failQuota(limit)
		return
	case values > max(maxReadBytes, m.settings.Limits.ValueBytes):
		result.failQuota(LimitTxnReads)
		return
	case command.MaxReply > 0 && size > command.MaxReply:
		result.fail(ErrorReplyTooLarge)
		return
	}
	result.Code, result.Replies = CodeReplies, replies
	for i := range operations {
		if replies[i].Code != CodeNone {
			continue
		}
		m.change(position, &operations[i], found[i], outcome, &replies[i])
		if replies[i].Code == CodeOK {
			// versions grow, so the transaction's is that of its last write
			result.version, result.hasVersion = replies[i].version, true
		}
	}
}

// maxWatchCost bounds the cost of finding the watches of patterns for all keys that a transaction
// writes (patternIndex.cost): about the time that ten changes of the longest key take while all
// patterns there may be begin like it. One transaction of 128 such keys would take every member
// seconds, in which it answers nobody.
const maxWatchCost = 10 * maxPatternWeight * glob.MaxWatchedKey

// watchCost returns the cost of finding the watches of patterns for the keys that operations write.
func (m *Machine) watchCost(operations []Command) (cost int) {
	if m.watches.patterns.count == 0 { // the keys need not be copied
		return 0
	}
	for i := range operations {
		if operations[i].Kind != KindGet {
			cost += m.watches.patterns.cost(string(operations[i].Key))
		}
	}
	return cost
}

// checkOperation makes all checks of an operation but the quota, and answers a GET. If the
// operation is to change its key, the result has no code yet, and found is the record of the key,
// or nil if there is none.
func (m *Machine) checkOperation(position int, operation *Command, outcome *EntryOutcome,
	result *Result,
) (found *record) {
	result.Dialect = m.settings.dialect(operation.Dialect)
	if code := m.checkRequest(operation, &result.Rule); code != NoError {
		m.failCheck(operation, result, code)
		return nil
	}
	switch {
	case operation.Kind == KindGet:
		m.get(operation.Key, result)
	case operation.Kind.isWrite():
		return m.checkKey(position, operation, outcome, result)
	default: // KindInvalid always has an error
		result.fail(ErrorSyntax)
	}
	return nil
}

// collide reports whether two operations write the same key, or one reads what another writes.
// Operations for which isWellFormed is false do not count.
func (m *Machine) collide(operations []Command) bool {
	written := make(map[string]bool, len(operations))
	for i := range operations {
		if key := string(operations[i].Key); m.isWellFormed(&operations[i]) &&
			operations[i].Kind.isWrite() {
			if written[key] {
				return true
			}
			written[key] = true
		}
	}
	for i := range operations {
		if operations[i].Kind == KindGet && m.isWellFormed(&operations[i]) &&
			written[string(operations[i].Key)] {
			return true
		}
	}
	return false
}

// isWellFormed reports whether an operation has no Error, no CaseError under the settings in force,
// and is not Oversize.
func (m *Machine) isWellFormed(operation *Command) bool {
	return operation.Error == NoError &&
		(operation.CaseError == NoError || m.settings.CaseInsensitive) && !operation.Oversize
}

// maxReadBytes bounds the total size in bytes of the values that a transaction reads. If
// Limits.ValueBytes is larger, Limits.ValueBytes is the bound.
const maxReadBytes = 256 << 10

// replySize returns how many bytes the values in a transaction's reply have, and how many the
// payload of the reply has at most.
func replySize(replies []Result) (values, payload int64) {
	const (
		array   = int64(len("*128\r\n"))
		ok      = int64(len("+OK\r\n"))
		integer = int64(len(":0\r\n"))
		null    = int64(len("$-1\r\n"))
		bulk    = int64(len("$\r\n\r\n"))
	)
	payload = array
	for i := range replies {
		switch size := int64(len(replies[i].Value)); replies[i].Code {
		case CodeValue:
			values += size
			payload += bulk + int64(len(strconv.FormatInt(size, 10))) + size
		case CodeNull:
			payload += null
		case CodeMissing:
			payload += integer
		default: // of a write: +OK or :1
			payload += ok
		}
	}
	return values, payload
}
