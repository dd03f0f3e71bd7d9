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

// AppendBareMinusOne appends "-1\r\n", which is not valid RESP. The protocol page documents it as
// the reply to a command whose condition was not met.
func AppendBareMinusOne(dst []byte) []byte { return append(dst, "-1\r\n"...) }

// AppendError appends "-ERR text\r\n".
func AppendError(dst []byte, text string) []byte {
	dst = append(dst, "-ERR "...)
	dst = append(dst, text...)
	return append(dst, '\r', '\n')
}

// AppendPage appends the reply to SCAN: an array of the keys of one page and, if next is not empty,
// the continuation token.
func AppendPage[T ~string | ~[]byte](dst []byte, keys []T, next T) []byte {
	if len(next) == 0 {
		return AppendArray(append(dst, "*1\r\n"...), keys...)
	}
	return AppendBulk(AppendArray(append(dst, "*2\r\n"...), keys...), next)
}

// ReplyKind is the kind of a reply of the store.
type ReplyKind uint8

// The kinds of replies.
const (
	ReplyOK         ReplyKind = iota + 1 // +OK
	ReplyNotApplied                      // :-1, or -1 on its own
	ReplyInteger                         // :0, :1
	ReplyBulk                            // $len value
	ReplyNull                            // $-1
	ReplyError                           // -ERR text
	ReplyPage                            // *1 or *2: the keys of a page
	ReplyArray                           // *N: the replies to the operations of a transaction
)

// Reply is what the store answered.
type Reply struct {
	Kind    ReplyKind
	Integer int64
	Bulk    []byte // a slice of the payload
	Error   string // the text after "-ERR "
	// Keys and Next belong to a ReplyPage: slices of the payload. Next is the continuation token,
	// nil on the last page.
	Keys [][]byte
	Next []byte
	// Replies belong to a ReplyArray: none of them is a ReplyPage, a ReplyArray or a ReplyError.
	Replies []Reply
}

// ReadReply reads the payload of a reply in either dialect: that of the documented protocol, or
// that of the client libraries. Anything else is ErrSyntax.
func ReadReply(payload []byte) (Reply, error) {
	switch string(payload) {
	case ":-1\r\n", "-1\r\n":
		return Reply{Kind: ReplyNotApplied, Integer: -1}, nil
	}
	if text, ok := bytes.CutPrefix(payload, []byte("-ERR ")); ok {
		if text, ok = bytes.CutSuffix(text, []byte("\r\n")); ok {
			return Reply{Kind: ReplyError, Error: string(text)}, nil
		}
		return Reply{}, ErrSyntax
	}
	if reply, rest, ok := readOperationReply(payload); ok && len(rest) == 0 {
		return reply, nil
	}
	if keys, next, ok := readPage(payload); ok {
		return Reply{Kind: ReplyPage, Keys: keys, Next: next}, nil
	}
	if replies, ok := readReplies(payload); ok {
		return Reply{Kind: ReplyArray, Replies: replies}, nil
	}
	return Reply{}, ErrSyntax
}

// readOperationReply reads a reply of a kind that an operation of a transaction may have: +OK, $-1,
// an integer or a bulk string. rest is what follows it.
func readOperationReply(payload []byte) (reply Reply, rest []byte, ok bool) {
	if rest, ok = bytes.CutPrefix(payload, []byte("+OK\r\n")); ok {
		return Reply{Kind: ReplyOK}, rest, true
	}
	if rest, ok = bytes.CutPrefix(payload, []byte("$-1\r\n")); ok {
		return Reply{Kind: ReplyNull}, rest, true
	}
	if integer, rest, ok := readLength(payload, ':'); ok {
		return Reply{Kind: ReplyInteger, Integer: int64(integer)}, rest, true
	}
	bulk, rest, ok := readBulk(payload)
	return Reply{Kind: ReplyBulk, Bulk: bulk}, rest, ok
}

// minReplySize is the size of the smallest reply to an operation, ":0\r\n".
const minReplySize = 4

func readReplies(payload []byte) (replies []Reply, ok bool) {
	count, rest, ok := readLength(payload, '*')
	if !ok || count == 0 || count > len(rest)/minReplySize {
		return nil, false
	}
	replies = make([]Reply, count)
	for i := range replies {
		if replies[i], rest, ok = readOperationReply(rest); !ok {
			return nil, false
		}
	}
	return replies, len(rest) == 0
}

func readPage(payload []byte) (keys [][]byte, next []byte, ok bool) {
	parts, rest, ok := readLength(payload, '*')
	if !ok || parts < 1 || parts > 2 {
		return nil, nil, false
	}
	count, rest, ok := readLength(rest, '*')
	if !ok || count > len(rest)/minBulkSize {
		return nil, nil, false
	}
	keys = make([][]byte, count)
	for i := range keys {
		if keys[i], rest, ok = readBulk(rest); !ok {
			return nil, nil, false
		}
	}
	if parts == 2 {
		if next, rest, ok = readBulk(rest); !ok || len(next) == 0 {
			return nil, nil, false
		}
	}
	return keys, next, len(rest) == 0
}

// Notification is a change of a watched key.
type Notification struct {
	Deleted bool   // the key was deleted or expired
	Value   []byte // the new value, a slice of the payload
}

// ReadNotification reads the payload of a notification in either dialect: NOTIFY SET VALUE value,
// NOTIFY DEL or NOTIFY DELETE.
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
