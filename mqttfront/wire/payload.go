package wire

import (
	"bytes"
	"strconv"

	"holdfast/fsm"
	"holdfast/hlc"
	"holdfast/internal/glob"
	"holdfast/resp"
)

// ParsePayload reads a command from the payload of a request. command.Kind, CaseError and Error
// must be zero. A replicated setting says whether verbs and options are case sensitive, so
// ParsePayload parses for both values and the state machine decides:
//   - The same error for both: Kind is 0, and Error is set.
//   - An error only if case sensitive: the command is set, and CaseError is that error.
//   - Two different errors: Kind is KindInvalid, CaseError is the error if case sensitive, and
//     Error is the other one.
func ParsePayload(payload []byte, command *fsm.Command) { parsePayload(payload, command, false) }

// parsePayload is ParsePayload, also for an operation of a TXN (operation). The strict grammar is
// case sensitive, the lenient one is not. A payload that the strict grammar accepts has the same
// meaning in both. So the lenient grammar is tried only if the strict one fails.
func parsePayload(payload []byte, command *fsm.Command, operation bool) {
	request, err := resp.ReadRequest(payload)
	if err != nil {
		command.Error = fsm.ErrorSyntax
		return
	}
	strict, lenient := grammar{operation: operation}, grammar{operation: operation, foldCase: true}
	first := strict.parse(&request, command)
	if first == fsm.NoError {
		return
	}
	// undoes what the options before the error have set
	command.Condition, command.ExpectedVersion, command.Pattern = fsm.Always, hlc.Timestamp{}, false
	folded := *command
	switch second := lenient.parse(&request, &folded); second {
	case first:
		command.Kind, command.Error = 0, first
	case fsm.NoError:
		folded.CaseError = first
		*command = folded
	default:
		command.Kind, command.CaseError, command.Error = fsm.KindInvalid, first, second
	}
}

// grammar reads the arguments of a request or, with operation, of an operation of a transaction.
// foldCase makes it case insensitive.
type grammar struct{ operation, foldCase bool }

func (g grammar) is(argument []byte, word string) bool {
	if !g.foldCase {
		return string(argument) == word
	}
	if len(argument) != len(word) {
		return false
	}
	for i, b := range argument {
		// only ASCII letters are folded: bytes.EqualFold would also take a long s (U+017F) for an S
		if 'a' <= b && b <= 'z' {
			b -= 'a' - 'A'
		}
		if b != word[i] {
			return false
		}
	}
	return true
}

// verb returns the kind of a request, and the minimum and maximum number of its arguments, the verb
// included. kind is 0 for an unknown verb.
func (g grammar) verb(request *resp.Request) (kind fsm.Kind, least, most int) {
	arguments := request.Arguments()
	word := arguments[0]
	switch {
	case g.is(word, "GET"):
		return fsm.KindGet, 2, 2
	case g.is(word, "SET"):
		return fsm.KindSet, 3, request.Count
	case g.is(word, "DEL"):
		if request.Count == 4 && g.is(arguments[2], "IFVER") {
			return fsm.KindDel, 2, 4
		}
		return fsm.KindDel, 2, 2
	case g.is(word, "VDEL"):
		return fsm.KindVDel, 3, 3
	case g.operation: // an operation of a TXN has none of the verbs below
	case g.is(word, "KEYNOTIFY"):
		if request.Count == 4 && g.is(arguments[2], "GLOB") {
			return fsm.KindKeyNotify, 2, 4
		}
		return fsm.KindKeyNotify, 2, 3
	case g.is(word, "SCAN"):
		return fsm.KindScan, 2, 3
	case g.is(word, "TXN"):
		return fsm.KindTxn, 2, 1 + fsm.MaxOperations
	}
	return 0, 0, 0
}

// parse reads a request into command. It checks, in this order: the verb, the number of arguments,
// whether the key is empty, the options.
func (g grammar) parse(request *resp.Request, command *fsm.Command) fsm.ErrorCode {
	kind, least, most := g.verb(request)
	if kind == 0 {
		return fsm.ErrorUnknownCommand
	}
	if request.Count < least || request.Count > most {
		return fsm.ErrorArguments
	}
	arguments := request.Arguments()
	switch {
	case kind == fsm.KindScan:
		return parseScan(arguments[1:], command)
	case kind == fsm.KindTxn:
		parseOperations(request, command)
		return fsm.NoError
	case kind == fsm.KindKeyNotify && request.Count > 2 && g.is(arguments[2], "GLOB"):
		return g.parsePatternWatch(arguments, command)
	case len(arguments[1]) == 0:
		return fsm.ErrorEmptyKey
	}
	command.Kind, command.Key = kind, arguments[1]
	command.Condition, command.ExpectedVersion = fsm.Always, hlc.Timestamp{}
	switch kind {
	case fsm.KindSet:
		command.Value = arguments[2]
		if request.Count > resp.MaxArguments || !g.parseSetOptions(arguments[3:], command) {
			return fsm.ErrorSyntax
		}
	case fsm.KindVDel:
		command.Value = arguments[2]
	case fsm.KindDel:
		if request.Count > 2 && !g.parseIfVersion(arguments[2:], command) {
			return fsm.ErrorSyntax
		}
	case fsm.KindKeyNotify:
		switch {
		case request.Count == 2 || g.is(arguments[2], "GET"):
		case g.is(arguments[2], "STOP"):
			command.Kind = fsm.KindKeyNotifyStop
		default:
			return fsm.ErrorSyntax
		}
	}
	return fsm.NoError
}

// parseOperations reads the operations of a TXN. An operation with an error stays in the
// transaction as a KindInvalid: the state machine decides which error comes first.
func parseOperations(request *resp.Request, command *fsm.Command) {
	command.Kind, command.Operations = fsm.KindTxn, make([]fsm.Command, request.Count-1)
	for i, argument := range request.All() {
		if i == 0 {
			continue // the verb
		}
		operation := &command.Operations[i-1]
		if parsePayload(argument, operation, true); operation.Error != fsm.NoError {
			*operation = fsm.Command{
				Kind: fsm.KindInvalid, CaseError: operation.CaseError,
				Error: operation.Error,
			}
		}
	}
}

// parseScan reads a pattern and, if there is one, a continuation token. The state machine checks
// the token. If parseScan did, an invalid token would become a KindInvalid, which may get into the
// log with an error code that older builds cannot read.
func parseScan(arguments [][]byte, command *fsm.Command) fsm.ErrorCode {
	command.Kind, command.Value = fsm.KindScan, nil
	if !parsePattern(arguments[0], command) {
		return fsm.ErrorSyntax
	}
	if len(arguments) == 2 {
		if command.Value = arguments[1]; len(command.Value) == 0 ||
			len(command.Value) > fsm.MaxContinuationToken {
			// stands for any invalid token: the encoding of a command would lose an empty one, and
			// a long one would make it large
			command.Value = []byte{0}
		}
	}
	return fsm.NoError
}

// parsePatternWatch reads KEYNOTIFY pattern GLOB [STOP].
func (g grammar) parsePatternWatch(arguments [][]byte, command *fsm.Command) fsm.ErrorCode {
	command.Kind = fsm.KindKeyNotify
	if len(arguments) > 3 {
		if !g.is(arguments[3], "STOP") {
			return fsm.ErrorSyntax
		}
		command.Kind = fsm.KindKeyNotifyStop
	}
	if command.Pattern = parsePattern(arguments[1], command); !command.Pattern {
		return fsm.ErrorSyntax
	}
	return fsm.NoError
}

// parsePattern sets the key of a command to a pattern, and reports whether the pattern is valid. If
// the pattern is too long, it sets Oversize instead of the key, and returns true.
func parsePattern(pattern []byte, command *fsm.Command) bool {
	command.Key, command.Oversize = pattern, false
	if len(pattern) > glob.MaxSize {
		command.Key, command.Oversize = nil, true
		return true
	}
	_, err := glob.Compile(string(pattern))
	return err == nil
}

// parseIfVersion reads IFVER version, at the beginning of the options.
func (g grammar) parseIfVersion(options [][]byte, command *fsm.Command) bool {
	if len(options) < 2 || !g.is(options[0], "IFVER") || command.Condition != fsm.Always {
		return false
	}
	version, err := hlc.Parse(string(options[1]))
	command.Condition, command.ExpectedVersion = fsm.IfVersion, version
	return err == nil
}

// parseSetOptions reads [NX | NEX [expected] | IFVER version] [PX ms] in any order, each at most
// once.
func (g grammar) parseSetOptions(options [][]byte, command *fsm.Command) bool {
	command.Expected, command.TTL = nil, 0
	for len(options) > 0 {
		switch {
		case g.is(options[0], "PX") && command.TTL == 0 && len(options) > 1:
			ttl, ok := milliseconds(options[1])
			if !ok {
				return false
			}
			command.TTL, options = ttl, options[2:]
		case g.parseIfVersion(options, command):
			options = options[2:]
		case g.is(options[0], "NX") && command.Condition == fsm.Always:
			command.Condition, options = fsm.IfAbsent, options[1:]
		case g.is(options[0], "NEX") && command.Condition == fsm.Always:
			command.Condition, options = fsm.IfAbsentOrEqual, options[1:]
			if len(options) == 0 || (command.TTL == 0 && g.isExpiry(options)) {
				// without an expected value, the new value is the expected one: a client renews its
				// lock like that
				command.Expected = command.Value
				continue
			}
			command.Expected, options = options[0], options[1:]
		default:
			return false
		}
	}
	return true
}

// isExpiry reports whether the options are exactly one valid PX ms.
func (g grammar) isExpiry(options [][]byte) bool {
	if len(options) != 2 || !g.is(options[0], "PX") {
		return false
	}
	_, ok := milliseconds(options[1])
	return ok
}

// maxMilliseconds is the longest time to live, 2^53 ms.
const maxMilliseconds = 1 << 53

// maxNumber is the longest number that is read, in bytes.
const maxNumber = 64

// milliseconds reads a decimal number from 1 to 2^53. It may have a fraction, which one client
// library sends, and which is rounded up.
func milliseconds(text []byte) (int64, bool) {
	whole, fraction, hasPoint := bytes.Cut(text, []byte{'.'})
	if len(text) > maxNumber || !digits(whole) || (hasPoint && !digits(fraction)) {
		return 0, false
	}
	ms, err := strconv.ParseInt(string(whole), 10, 64)
	if err != nil {
		return 0, false
	}
	if ms <= maxMilliseconds && len(bytes.Trim(fraction, "0")) > 0 {
		ms++
	}
	return ms, ms >= 1 && ms <= maxMilliseconds
}

func digits(text []byte) bool {
	return len(text) > 0 && len(bytes.Trim(text, "0123456789")) == 0
}
