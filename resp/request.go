// Package resp reads and writes the payloads of the state store protocol: a small, strict subset of
// the Redis serialization protocol (RESP). Requests are arrays of bulk strings and nothing else;
// replies are simple strings, errors, integers, bulk strings, and the arrays that answer SCAN and
// TXN; notifications are arrays of bulk strings.
//
// Readers never panic, allocate nothing that grows with a claimed length, and return slices of the
// payload they were given.
package resp

import (
	"bytes"
	"errors"
	"iter"
	"strconv"
)

// ErrSyntax says that a payload is not what the protocol allows.
var ErrSyntax = errors.New("syntax error")

// MaxArguments is how many arguments Request.Arguments returns at most. The longest command but
// TXN, SET key value NEX expected PX ms, has seven. A request with more is still read to its end,
// because a syntax error anywhere in it takes precedence. Request.All returns all arguments.
const MaxArguments = 8

// minBulkSize is the size of the smallest bulk string, "$0\r\n\r\n".
const minBulkSize = 6

// Request is an array of bulk strings. The arguments are slices of the payload.
type Request struct {
	Count     int // how many arguments the payload holds, at least 1
	arguments [MaxArguments][]byte
	payload   []byte // the encoded arguments: what follows the array header
}

// Arguments returns the first arguments, at most MaxArguments of Count.
func (r *Request) Arguments() [][]byte { return r.arguments[:min(r.Count, MaxArguments)] }

// All returns all arguments, with their numbers from 0 on.
func (r *Request) All() iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		rest := r.payload
		for i := range r.Count {
			var argument []byte
			if argument, rest, _ = readBulk(rest); !yield(i, argument) {
				// ReadRequest has read it before
				return
			}
		}
	}
}

// ReadRequest reads a payload that is one array of at least one bulk string. Anything else is
// ErrSyntax: other types, inline commands, missing CR or LF, signs, leading zeros, lengths that
// overflow or pass the end, and bytes after the end.
func ReadRequest(payload []byte) (Request, error) {
	var request Request
	count, rest, ok := readLength(payload, '*')
	if !ok || count == 0 || count > len(rest)/minBulkSize {
		return Request{}, ErrSyntax
	}
	request.Count, request.payload = count, rest
	for i := range count {
		var argument []byte
		if argument, rest, ok = readBulk(rest); !ok {
			return Request{}, ErrSyntax
		}
		if i < MaxArguments {
			request.arguments[i] = argument
		}
	}
	if len(rest) != 0 {
		return Request{}, ErrSyntax
	}
	return request, nil
}

// readBulk reads "$len\r\n<len bytes>\r\n".
func readBulk(payload []byte) (bulk, rest []byte, ok bool) {
	length, rest, ok := readLength(payload, '$')
	if !ok || length > len(rest)-2 || rest[length] != '\r' || rest[length+1] != '\n' {
		return nil, nil, false
	}
	return rest[:length:length], rest[length+2:], true
}

// readLength reads a type byte and an unsigned decimal number up to CR LF. No payload is near 2^31
// bytes, so neither is a valid length.
func readLength(payload []byte, kind byte) (length int, rest []byte, ok bool) {
	const maxDigits = 10
	if len(payload) == 0 || payload[0] != kind {
		return 0, nil, false
	}
	line := payload[1:min(len(payload), maxDigits+3)]
	end := bytes.IndexByte(line, '\r')
	if end < 1 || end+1 >= len(line) || line[end+1] != '\n' {
		return 0, nil, false
	}
	digits := line[:end]
	if digits[0] == '0' && end > 1 {
		return 0, nil, false
	}
	var value int64
	for _, digit := range digits {
		if digit < '0' || digit > '9' {
			return 0, nil, false
		}
		value = value*10 + int64(digit-'0')
	}
	if value > 1<<31-1 {
		return 0, nil, false
	}
	return int(value), payload[1+end+2:], true
}

// AppendHeader appends the beginning of an array: its elements follow.
func AppendHeader(dst []byte, elements int) []byte {
	dst = append(dst, '*')
	dst = strconv.AppendInt(dst, int64(elements), 10)
	return append(dst, '\r', '\n')
}

// AppendArray appends an array of bulk strings: a request, or a notification.
func AppendArray[T ~string | ~[]byte](dst []byte, arguments ...T) []byte {
	dst = AppendHeader(dst, len(arguments))
	for _, argument := range arguments {
		dst = AppendBulk(dst, argument)
	}
	return dst
}
