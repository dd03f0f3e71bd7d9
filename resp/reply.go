package resp

import (
	"bytes"
	"strconv"
)

// AppendBulk appends a bulk string.
func AppendBulk[T ~string | ~[]byte](dst []byte, bulk T) []byte {
	dst = append(dst, '$')
	dst = strconv.AppendInt(dst, int64(len(bulk)), 10)
	dst = append(dst, '\r', '\n')
	dst = append(dst, bulk...)
	return append(dst, '\r', '\n')
}

// AppendNull appends the null bulk string, the reply to GET of a key that does not exist.
func AppendNull(dst []byte) []byte { return append(dst, "$-1\r\n"...) }

// AppendOK appends the simple string OK.
func AppendOK(dst []byte) []byte { return append(dst, "+OK\r\n"...) }

// AppendInteger appends an integer.
func AppendInteger(dst []byte, value int64) []byte {
	dst = append(dst, ':')
	dst = strconv.AppendInt(dst, value, 10)
	return append(dst, '\r', '\n')
}

// AppendBareMinusOne appends "-1\r\n", which no RESP type is: the protocol page documents it as the reply to a command whose
// condition was not met.
func AppendBareMinusOne(dst []byte) []byte { return append(dst, "-1\r\n"...) }

// AppendError appends "-ERR text\r\n".
func AppendError(dst []byte, text string) []byte {
	dst = append(dst, "-ERR "...)
	dst = append(dst, text...)
	return append(dst, '\r', '\n')
}

// ReplyKind tells the replies of the store apart.
type ReplyKind uint8

// The kinds of replies.
const (
	ReplyOK         ReplyKind = iota + 1 // +OK
	ReplyNotApplied                      // :-1, or -1 on its own
	ReplyInteger                         // :0, :1
	ReplyBulk                            // $len value
	ReplyNull                            // $-1
	ReplyError                           // -ERR text
)

// Reply is what the store answered.
type Reply struct {
	Kind    ReplyKind
	Integer int64
	Bulk    []byte // a slice of the payload
	Error   string // the text after "-ERR "
}

// ReadReply reads the payload of a reply in either dialect. What is no reply of the store is ErrSyntax.
func ReadReply(payload []byte) (Reply, error) {
	switch string(payload) {
	case "+OK\r\n":
		return Reply{Kind: ReplyOK}, nil
	case ":-1\r\n", "-1\r\n":
		return Reply{Kind: ReplyNotApplied, Integer: -1}, nil
	case "$-1\r\n":
		return Reply{Kind: ReplyNull}, nil
	}
	if text, ok := bytes.CutPrefix(payload, []byte("-ERR ")); ok {
		if text, ok = bytes.CutSuffix(text, []byte("\r\n")); ok {
			return Reply{Kind: ReplyError, Error: string(text)}, nil
		}
		return Reply{}, ErrSyntax
	}
	if integer, rest, ok := readLength(payload, ':'); ok && len(rest) == 0 {
		return Reply{Kind: ReplyInteger, Integer: int64(integer)}, nil
	}
	if bulk, rest, ok := readBulk(payload); ok && len(rest) == 0 {
		return Reply{Kind: ReplyBulk, Bulk: bulk}, nil
	}
	return Reply{}, ErrSyntax
}

// Notification is a change of a watched key.
type Notification struct {
	Deleted bool   // the key was deleted or expired
	Value   []byte // the new value, a slice of the payload
}

// ReadNotification reads the payload of a notification in either dialect: NOTIFY SET VALUE value, NOTIFY DEL or NOTIFY DELETE.
func ReadNotification(payload []byte) (Notification, error) {
	request, err := ReadRequest(payload)
	if err != nil {
		return Notification{}, err
	}
	arguments := request.Arguments()
	switch {
	case string(arguments[0]) != "NOTIFY":
	case request.Count == 2 && (string(arguments[1]) == "DEL" || string(arguments[1]) == "DELETE"):
		return Notification{Deleted: true}, nil
	case request.Count == 4 && string(arguments[1]) == "SET" && string(arguments[2]) == "VALUE":
		return Notification{Value: arguments[3]}, nil
	}
	return Notification{}, ErrSyntax
}
