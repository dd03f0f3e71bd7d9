package integration

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
)

// The texts of the errors, as clients read them.
const (
	errSyntax      = "-ERR syntax error\r\n"
	errUnknown     = "-ERR unknown command\r\n"
	errArguments   = "-ERR wrong number of arguments\r\n"
	errEmptyKey    = "-ERR the key length is zero\r\n"
	errQuota       = "-ERR the quota has been exceeded\r\n"
	errMissing     = "-ERR missing timestamp\r\n"
	errMalformed   = "-ERR malformed timestamp\r\n"
	errDenied      = "-ERR not authorized\r\n"
	errQoS         = "-ERR request must be published with QoS 1\r\n"
	errCorrelation = "-ERR missing correlation data\r\n"
	errSkew        = "-ERR the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized\r\n"
	errTokenSkew   = "-ERR the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized\r\n"
	errTokenLower  = "-ERR the request fencing token is a lower version than the fencing token protecting the resource\r\n"
	errToken       = "-ERR invalid continuation token\r\n"
	errTokenNeeded = "-ERR a fencing token is required for this request\r\n"
)

// row is one request and what must come back.
type row struct {
	name    string
	payload string
	want    string
	// ts says which version (__ts) the reply must have: "none"; "new", greater than all before;
	// "stored", that of the last "new" row; or "", not checked.
	ts         string
	properties []string // user properties; a SET also gets "__ts" of now, unless it is here
	noTS       bool     // a SET gets no "__ts"
}

// sdk returns user properties that select the dialect of the client libraries: a change that is not
// applied is answered :-1 instead of -1, and a deletion is notified as DELETE instead of DEL.
func sdk(more ...string) []string { return append([]string{"__protVer", "1.0"}, more...) }

// ahead returns a timestamp that is ms milliseconds in the future.
func ahead(ms int64) string { return fmt.Sprintf("%d:0:tester", time.Now().UnixMilli()+ms) }

// rows returns the rows of SET, GET, DEL and VDEL, with the extension IFVER, and of KEYNOTIFY of
// single keys. They are sent in this order to one store.
func rows() []row {
	return []row{
		// SET, GET, DEL, VDEL (docs/protocol.md, Commands)
		{
			name: "GET of nothing", payload: "*2\r\n$3\r\nGET\r\n$7\r\nSETKEY2\r\n",
			want: "$-1\r\n",
			ts:   "none",
		},
		{
			name: "SET", payload: "*3\r\n$3\r\nSET\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n",
			want: "+OK\r\n", ts: "new",
		},
		{
			name: "GET", payload: "*2\r\n$3\r\nGET\r\n$7\r\nSETKEY2\r\n", want: "$6\r\nVALUE5\r\n",
			ts: "stored",
		},
		{
			name: "GET with a malformed __ts", payload: array("GET", "SETKEY2"),
			want: "$6\r\nVALUE5\r\n", ts: "stored", properties: []string{"__ts", "x"},
		},
		{
			name: "GET with __ts twice", payload: array("GET", "SETKEY2"), want: "$6\r\nVALUE5\r\n",
			properties: []string{"__ts", now(), "__ts", now()},
		},
		{
			name: "GET ignores __ft, even malformed", payload: array("GET", "SETKEY2"),
			want: "$6\r\nVALUE5\r\n", properties: []string{"__ft", "x"},
		},
		{
			name: "VDEL of another value, documented", payload: array("VDEL", "SETKEY2", "x"),
			want: "-1\r\n", ts: "stored",
		},
		{
			name: "VDEL of another value, sdk", payload: array("VDEL", "SETKEY2", "x"),
			want: ":-1\r\n", ts: "stored", properties: sdk(),
		},
		{
			name: "VDEL", payload: "*3\r\n$4\r\nVDEL\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n",
			want: ":1\r\n", ts: "stored",
		},
		{
			name: "VDEL of nothing", payload: array("VDEL", "SETKEY2", "VALUE5"), want: ":0\r\n",
			ts: "none",
		},
		{name: "SET again", payload: array("SET", "SETKEY2", "1234"), want: "+OK\r\n", ts: "new"},
		{
			name: "DEL", payload: "*2\r\n$3\r\nDEL\r\n$7\r\nSETKEY2\r\n", want: ":1\r\n",
			ts: "stored",
		},
		{name: "DEL of nothing", payload: array("DEL", "SETKEY2"), want: ":0\r\n", ts: "none"},
		{
			name: "empty value", payload: "*3\r\n$3\r\nSET\r\n$1\r\ne\r\n$0\r\n\r\n",
			want: "+OK\r\n",
			ts:   "new",
		},
		{
			name: "GET of an empty value", payload: array("GET", "e"), want: "$0\r\n\r\n",
			ts: "stored",
		},
		{
			name: "binary", payload: array("SET", "\x00\xff\r\n", "\r\n$-1\r\n\x00"),
			want: "+OK\r\n",
			ts:   "new",
		},
		{
			name: "GET of binary", payload: array("GET", "\x00\xff\r\n"),
			want: "$8\r\n\r\n$-1\r\n\x00\r\n", ts: "stored",
		},
		{name: "no wildcards", payload: array("GET", "*"), want: "$-1\r\n"},

		// The conditions of SET
		{name: "NX on nothing", payload: array("SET", "c", "a", "NX"), want: "+OK\r\n", ts: "new"},
		{
			name: "NX on a value", payload: array("SET", "c", "b", "NX"), want: "-1\r\n",
			ts: "stored",
		},
		{
			name: "NX on a value, sdk", payload: array("SET", "c", "b", "NX"), want: ":-1\r\n",
			ts: "stored", properties: sdk(),
		},
		{
			name: "NEX with the same value", payload: array("SET", "c", "a", "NEX"),
			want: "+OK\r\n",
			ts:   "new",
		},
		{
			name: "NEX with another value", payload: array("SET", "c", "b", "NEX"), want: "-1\r\n",
			ts: "stored",
		},
		{
			name: "NEX expected, which it is", payload: array("SET", "c", "b", "NEX", "a"),
			want: "+OK\r\n", ts: "new",
		},
		{
			name: "NEX expected, which it is not", payload: array("SET", "c", "z", "NEX", "a"),
			want: "-1\r\n", ts: "stored",
		},
		{
			name:    "NEX PX 100000 has no expected",
			payload: array("SET", "c", "b", "NEX", "PX", "100000"), want: "+OK\r\n", ts: "new",
		},
		{
			name:    "NEX PX PX 100000 expects PX",
			payload: array("SET", "c", "z", "NEX", "PX", "PX", "100000"), want: "-1\r\n",
			ts: "stored",
		},
		{
			name: "NEX NX expects NX", payload: array("SET", "c", "z", "NEX", "NX"), want: "-1\r\n",
			ts: "stored",
		},
		{
			name: "NEX PX expects PX", payload: array("SET", "c", "z", "NEX", "PX"), want: "-1\r\n",
			ts: "stored",
		},
		{
			name: "PX before NEX", payload: array("SET", "c", "b", "PX", "100000", "NEX"),
			want: "+OK\r\n", ts: "new",
		},
		{
			name:    "PX before NEX expected",
			payload: array("SET", "c", "y", "PX", "100000", "NEX", "b"), want: "+OK\r\n",
			ts: "new",
		},
		{
			name:    "PX before NEX PX 5 expects PX and breaks",
			payload: array("SET", "c", "y", "PX", "100000", "NEX", "PX", "5"), want: errSyntax,
			ts: "none",
		},
		{
			name: "PX before NX", payload: array("SET", "c", "q", "PX", "5", "NX"), want: "-1\r\n",
			ts: "stored",
		},
		{
			name: "NEX on nothing", payload: array("SET", "c2", "b", "NEX", "a"), want: "+OK\r\n",
			ts: "new",
		},
		{
			name: "NEX with an empty expected", payload: array("SET", "e", "x", "NEX", ""),
			want: "+OK\r\n", ts: "new",
		},
		{
			name: "a fraction is rounded up", payload: array("SET", "c3", "b", "PX", "100000.25"),
			want: "+OK\r\n", ts: "new",
		},
		{
			name: "the longest PX", payload: array("SET", "c3", "b", "PX", "9007199254740992"),
			want: "+OK\r\n", ts: "new",
		},

		// Version conditions (docs/protocol.md, Extensions). {stored} stands for the version of the
		// last "new" row.
		{name: "SET v", payload: array("SET", "v", "a"), want: "+OK\r\n", ts: "new"},
		{
			name:    "IFVER of another version",
			payload: "*5\r\n$3\r\nSET\r\n$1\r\nv\r\n$1\r\nb\r\n$5\r\nIFVER\r\n$14\r\n1:0:StateStore\r\n", want: "-1\r\n", ts: "stored",
		},
		{
			name:    "IFVER of another version, sdk",
			payload: array("SET", "v", "b", "IFVER", "1:0:StateStore"), want: ":-1\r\n",
			ts: "stored", properties: sdk(),
		},
		{
			name:    "DEL IFVER of another version",
			payload: "*4\r\n$3\r\nDEL\r\n$1\r\nv\r\n$5\r\nIFVER\r\n$14\r\n1:0:StateStore\r\n",
			want:    "-1\r\n", ts: "stored",
		},
		{
			name:    "DEL IFVER of another version, sdk",
			payload: array("DEL", "v", "IFVER", "1:0:StateStore"), want: ":-1\r\n", ts: "stored",
			properties: sdk(),
		},
		{
			name: "IFVER of another node", payload: array("SET", "v", "b", "IFVER", "{stored}x"),
			want: "-1\r\n", ts: "stored",
		},
		{
			name: "IFVER", payload: array("SET", "v", "b", "IFVER", "{stored}", "PX", "100000"),
			want: "+OK\r\n", ts: "new",
		},
		{
			name:    "PX before IFVER, with leading zeros",
			payload: array("SET", "v", "c", "PX", "100000", "IFVER", "00{stored}"), want: "+OK\r\n",
			ts: "new",
		},
		{
			name: "DEL IFVER", payload: array("DEL", "v", "IFVER", "{stored}"), want: ":1\r\n",
			ts: "stored",
		},
		{
			name: "IFVER of nothing", payload: array("SET", "v", "a", "IFVER", "{stored}"),
			want: "-1\r\n", ts: "none",
		},
		{
			name: "DEL IFVER of nothing", payload: array("DEL", "v", "IFVER", "{stored}"),
			want: "-1\r\n", ts: "none",
		},
		{
			name: "IFVER of no version", payload: array("SET", "v", "a", "IFVER", "1:0"),
			want: errSyntax, ts: "none",
		},
		{name: "IFVER without", payload: array("SET", "v", "a", "IFVER"), want: errSyntax},
		{
			name: "IFVER and NX", payload: array("SET", "v", "a", "IFVER", "1:0:StateStore", "NX"),
			want: errSyntax,
		},
		{
			name:    "NEX and IFVER",
			payload: array("SET", "v", "a", "NEX", "x", "IFVER", "1:0:StateStore"),
			want:    errSyntax,
		},
		{
			name: "NEX IFVER expects IFVER", payload: array("SET", "v", "a", "NEX", "IFVER"),
			want: "+OK\r\n", ts: "new",
		},
		{name: "IFVER twice", payload: array("SET", "v", "a", "IFVER", "1:0:StateStore", "IFVER",
			"1:0:StateStore"), want: errSyntax},
		{
			name: "DEL IFVER of no version", payload: array("DEL", "v", "IFVER", "1:0"),
			want: errSyntax,
		},
		{
			name: "VDEL IFVER", payload: array("VDEL", "v", "IFVER", "1:0:StateStore"),
			want: errArguments,
		},
		{name: "DEL IFVER without", payload: array("DEL", "v", "IFVER"), want: errArguments},

		// Invalid requests, and which error is checked first (docs/protocol.md, Errors)
		{name: "PX 0", payload: array("SET", "k", "v", "PX", "0"), want: errSyntax, ts: "none"},
		{
			name: "PX too long", payload: array("SET", "k", "v", "PX", "9007199254740993"),
			want: errSyntax,
		},
		{name: "PX -1", payload: array("SET", "k", "v", "PX", "-1"), want: errSyntax},
		{name: "PX x", payload: array("SET", "k", "v", "PX", "x"), want: errSyntax},
		{name: "PX 1.", payload: array("SET", "k", "v", "PX", "1."), want: errSyntax},
		{name: "PX without", payload: array("SET", "k", "v", "PX"), want: errSyntax},
		{name: "PX twice", payload: array("SET", "k", "v", "PX", "5", "PX", "5"), want: errSyntax},
		{name: "NX twice", payload: array("SET", "k", "v", "NX", "NX"), want: errSyntax},
		{name: "NX and NEX", payload: array("SET", "k", "v", "NX", "NEX"), want: errSyntax},
		{name: "an unknown option", payload: array("SET", "k", "v", "EX", "5"), want: errSyntax},
		{name: "a lower-case option", payload: array("SET", "k", "v", "nx"), want: errSyntax},
		{name: "too many options", payload: array("SET", "k", "v", "NEX", "v", "PX", "5", "x", "y",
			"z"), want: errSyntax},
		{
			name: "lower case", payload: "*3\r\n$3\r\nset\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n",
			want: errUnknown,
		},
		{name: "an unknown command", payload: array("EXPIRE", "0"), want: errUnknown},
		{name: "the empty command", payload: array(""), want: errUnknown},
		{name: "SET of one", payload: array("SET", "k"), want: errArguments},
		{name: "GET of two", payload: array("GET", "k", "l"), want: errArguments},
		{name: "GET alone", payload: array("GET"), want: errArguments},
		{name: "DEL of two", payload: array("DEL", "k", "l"), want: errArguments},
		{name: "VDEL of one", payload: array("VDEL", "k"), want: errArguments},
		{name: "VDEL of three", payload: array("VDEL", "k", "l", "m"), want: errArguments},
		{name: "KEYNOTIFY alone", payload: array("KEYNOTIFY"), want: errArguments},
		{
			name: "KEYNOTIFY of three", payload: array("KEYNOTIFY", "k", "STOP", "x"),
			want: errArguments,
		},
		{
			name: "KEYNOTIFY with an unknown option", payload: array("KEYNOTIFY", "k", "START"),
			want: errSyntax,
		},
		{
			name: "number of arguments before key length", payload: array("GET", "", "x"),
			want: errArguments,
		},
		{name: "empty key", payload: array("GET", ""), want: errEmptyKey},
		{
			name: "key length before options", payload: array("SET", "", "v", "EX"),
			want: errEmptyKey,
		},
		{
			name: "options before __ts", payload: array("SET", "k", "v", "EX"), want: errSyntax,
			noTS: true,
		},
		{
			name:    "a key that is too long",
			payload: array("SET", strings.Repeat("k", 64<<10+1), "v"),
			want:    errQuota, ts: "none",
		},
		{
			name: "the longest key", payload: array("SET", strings.Repeat("k", 64<<10), "v"),
			want: "+OK\r\n", ts: "new",
		},
		{
			name:    "a value that is too long",
			payload: array("SET", "k", strings.Repeat("v", 4<<20+1)),
			want:    errQuota,
		},
		{
			name: "the longest value", payload: array("SET", "k", strings.Repeat("v", 4<<20)),
			want: "+OK\r\n", ts: "new",
		},
		{
			name:    "VDEL of a value that is too long",
			payload: array("VDEL", "k", strings.Repeat("v", 4<<20+1)), want: errQuota,
		},
		{
			name: "sizes before __ts", payload: array("SET", strings.Repeat("k", 64<<10+1), "v"),
			want: errQuota, noTS: true,
		},
		{
			name: "a message over 16 MiB", payload: array("SET", "k", strings.Repeat("v", 16<<20)),
			want: errQuota,
		},
		{
			name:    "KEYNOTIFY with a topic that is too long",
			payload: array("KEYNOTIFY", strings.Repeat("k", 40_000)), want: errQuota,
		},
		{
			name: "missing __ts", payload: array("SET", "k", "v"), want: errMissing, noTS: true,
			ts: "none",
		},
		{
			name: "malformed __ts", payload: array("SET", "k", "v"), want: errMalformed,
			properties: []string{"__ts", "now"},
		},
		{
			name: "__ts twice", payload: array("SET", "k", "v"), want: errMalformed,
			properties: []string{"__ts", now(), "__ts", now()},
		},
		{
			name: "malformed __ft", payload: array("SET", "k", "v"), want: errMalformed,
			properties: []string{"__ts", now(), "__ft", "1:2"},
		},
		{
			name: "__ft twice", payload: array("DEL", "k"), want: errMalformed,
			properties: []string{"__ft", now(), "__ft", now()},
		},
		{
			name: "DEL needs no __ts", payload: array("DEL", "c3"), want: ":1\r\n",
			properties: []string{"__ts", "x"},
		},
		{
			name: "__ts far ahead", payload: array("SET", "k", "v"), want: errSkew,
			properties: []string{"__ts", ahead(75_000)}, ts: "none",
		},
		{
			name: "__ft far ahead", payload: array("SET", "k", "v"), want: errTokenSkew,
			properties: []string{"__ts", now(), "__ft", ahead(75_000)},
		},
		{
			name: "__ts before __ft", payload: array("SET", "k", "v"), want: errSkew,
			properties: []string{"__ts", ahead(75_000), "__ft", ahead(75_000)},
		},
		{
			name: "zero-padded __ts", payload: array("SET", "c3", "v"), want: "+OK\r\n",
			properties: []string{"__ts", "000001696374425000:00000:c"}, ts: "new",
		},

		// Fencing (docs/protocol.md, Versions, fencing, expiry). In the names, "without", "older"
		// and "the same" are about the fencing token.
		{
			name: "SET with a token", payload: array("SET", "f", "1"), want: "+OK\r\n",
			properties: []string{"__ts", now(), "__ft", "1000:1:StateStore"}, ts: "new",
		},
		{name: "SET without", payload: array("SET", "f", "2"), want: errTokenNeeded, ts: "none"},
		{name: "DEL without", payload: array("DEL", "f"), want: errTokenNeeded},
		{name: "VDEL without", payload: array("VDEL", "f", "1"), want: errTokenNeeded},
		{
			name: "SET with an older", payload: array("SET", "f", "2"), want: errTokenLower,
			properties: []string{"__ts", now(), "__ft", "1000:0:StateStore"},
		},
		{
			name: "fencing before the condition", payload: array("SET", "f", "2", "NX"),
			want: errTokenLower, properties: []string{"__ts", now(), "__ft", "999:9:z"},
		},
		{
			name:    "fencing before IFVER",
			payload: array("SET", "f", "2", "IFVER", "1:0:StateStore"),
			want:    errTokenLower, properties: []string{"__ts", now(), "__ft", "999:9:z"},
		},
		{
			name: "DEL IFVER without the token", payload: array("DEL", "f", "IFVER", "{stored}"),
			want: errTokenNeeded,
		},
		{
			name: "IFVER with the token", payload: array("SET", "f", "1", "IFVER", "{stored}"),
			want: "+OK\r\n", properties: []string{"__ts", now(), "__ft", "1000:1:StateStore"},
			ts: "new",
		},
		{
			name: "not applied raises no token", payload: array("SET", "f", "2", "NX"),
			want:       "-1\r\n",
			properties: []string{"__ts", now(), "__ft", "2000:0:StateStore"}, ts: "stored",
		},
		{
			name: "SET with the same", payload: array("SET", "f", "2"), want: "+OK\r\n",
			properties: []string{"__ts", now(), "__ft", "0001000:00001:StateStore"}, ts: "new",
		},
		{
			name: "SET with a newer", payload: array("SET", "f", "3"), want: "+OK\r\n",
			properties: []string{"__ts", now(), "__ft", "1000:2:A"}, ts: "new",
		},
		{
			name: "older by the node id", payload: array("SET", "f", "3"), want: errTokenLower,
			properties: []string{"__ts", now(), "__ft", "1000:1:ZZZ"},
		},
		{name: "GET needs none", payload: array("GET", "f"), want: "$1\r\n3\r\n", ts: "stored"},
		{
			name: "VDEL with another value", payload: array("VDEL", "f", "x"), want: "-1\r\n",
			properties: []string{"__ft", "5000:0:A"}, ts: "stored",
		},
		{
			name: "VDEL with one", payload: array("VDEL", "f", "3"), want: ":1\r\n",
			properties: []string{"__ft", "1000:2:A"}, ts: "stored",
		},
		{
			name: "the token is gone with the key", payload: array("SET", "f", "4"),
			want: "+OK\r\n",
			ts:   "new",
		},
		{
			name: "DEL with a token on a key without", payload: array("DEL", "f"), want: ":1\r\n",
			properties: []string{"__ft", "1:0:A"}, ts: "stored",
		},

		// KEYNOTIFY, while no key changes
		{
			name: "STOP of nothing", payload: array("KEYNOTIFY", "w", "STOP"), want: ":0\r\n",
			ts: "none",
		},
		{name: "KEYNOTIFY", payload: array("KEYNOTIFY", "w"), want: "+OK\r\n", ts: "none"},
		{name: "KEYNOTIFY again", payload: array("KEYNOTIFY", "w"), want: "+OK\r\n"},
		{name: "KEYNOTIFY GET", payload: array("KEYNOTIFY", "w", "GET"), want: "+OK\r\n"},
		{
			name: "KEYNOTIFY ignores __ts and __ft", payload: array("KEYNOTIFY", "w"),
			want:       "+OK\r\n",
			properties: []string{"__ts", "x", "__ft", "x"},
		},
		{name: "STOP", payload: array("KEYNOTIFY", "w", "STOP"), want: "+OK\r\n", ts: "none"},
		{name: "STOP again", payload: array("KEYNOTIFY", "w", "STOP"), want: ":0\r\n"},
	}
}

// syntaxErrors are payloads that are no array of bulk strings.
func syntaxErrors() []string {
	return []string{
		"", "\r\n", "GET k\r\n", "+OK\r\n", ":1\r\n", "$3\r\nGET\r\n", "*0\r\n", "*-1\r\n",
		"*1\r\n", "*\r\n", "*x\r\n", "*+1\r\n$1\r\na\r\n",
		"*01\r\n$3\r\nGET\r\n", "*2\r\n$03\r\nGET\r\n$1\r\nk\r\n", "*2\n$3\nGET\n$1\nk\n",
		"*2\r\n$3\r\nGET\r\n$1\r\nk", "*2\r\n$3\r\nGET\r\n$1\r\nk\r",
		"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nx", "*2\r\n$3\r\nGET\r\n*1\r\n$1\r\nk\r\n",
		"*2\r\n$3\r\nGET\r\n:1\r\n", "*2\r\n$3\r\nGET\r\n$-1\r\n",
		"*3\r\n$3\r\nGET\r\n$1\r\nk\r\n", "*2\r\n$4\r\nGET\r\n$1\r\nk\r\n",
		"*2\r\n$2\r\nGET\r\n$1\r\nk\r\n",
		"*1000000000\r\n$3\r\nGET\r\n", "*99999999999999999999\r\n",
		"*2\r\n$3\r\nGET\r\n$104857600\r\nk\r\n",
		"*2\r\n$3\r\nGET\r\n$99999999999999999999\r\nk\r\n",
		"*18446744073709551618\r\n$3\r\nGET\r\n$1\r\nk\r\n", "\x00\x01\x02\xff\xfe",
	}
}

// Each command is answered byte for byte as docs/protocol.md says, with the right version and the
// properties that all replies have.
func TestCommandsAreAnsweredByteForByte(t *testing.T) {
	onBoth(t, nil, func(t *testing.T, target *target) {
		p := connect(t, target, "tester", false)
		list := slices.Concat(rows(), extensionRows())
		for _, payload := range syntaxErrors() {
			list = append(list,
				row{
					name: fmt.Sprintf("syntax error %.30q", payload), payload: payload,
					want: errSyntax, ts: "none",
				})
		}
		// bytes of a packet around the payload, at most
		const properties = 1000
		// larger than the broker's packets: it never reaches the store
		list = slices.DeleteFunc(list,
			func(r row) bool { return len(r.payload)+properties > p.packet })
		t.Logf("%d cases", len(list))
		stored, last := "", ""
		for _, r := range list {
			properties := r.properties
			if strings.Contains(r.payload, "\r\nSET\r\n") && !r.noTS &&
				!hasKey(properties, "__ts") {
				properties = append([]string{"__ts", now()}, properties...)
			}
			m := p.call(request{payload: withVersion(r.payload, stored), properties: properties})
			if got := string(m.Payload); got != r.want {
				t.Errorf("%s: %.80q, want %.80q", r.name, got, r.want)
			}
			checkReply(t, r.name, m)
			version := timestamp(m)
			switch r.ts {
			case "none":
				if version != "" {
					t.Errorf("%s: __ts %q, want none", r.name, version)
				}
			case "new":
				if !newer(version, last) {
					t.Errorf("%s: __ts %q is not after %q", r.name, version, last)
				}
				stored, last = version, version
			case "stored":
				if version != stored {
					t.Errorf("%s: __ts %q, want %q", r.name, version, stored)
				}
			}
		}
	})
}

// withVersion replaces {stored} in a payload with a version, and adapts the length of the bulk
// string.
func withVersion(payload, version string) string {
	for _, pattern := range []string{"{stored}", "00{stored}", "{stored}x"} {
		text := strings.Replace(pattern, "{stored}", version, 1)
		payload = strings.ReplaceAll(payload, fmt.Sprintf("$%d\r\n%s\r\n", len(pattern), pattern),
			fmt.Sprintf("$%d\r\n%s\r\n", len(text), text))
	}
	return payload
}

func hasKey(properties []string, key string) bool {
	for i := 0; i < len(properties); i += 2 {
		if properties[i] == key {
			return true
		}
	}
	return false
}

// newer reports whether a is a valid version of the store and greater than b. An empty b is less
// than every version.
func newer(a, b string) bool {
	pattern := regexp.MustCompile(`^(0|[1-9][0-9]*):(0|[1-9][0-9]*):StateStore$`)
	if !pattern.MatchString(a) {
		return false
	}
	if b == "" {
		return true
	}
	var aw, ac, bw, bc int64
	_, _ = fmt.Sscanf(a, "%d:%d", &aw, &ac)
	_, _ = fmt.Sscanf(b, "%d:%d", &bw, &bc)
	return aw > bw || aw == bw && ac > bc
}

// checkReply checks the properties that all replies have.
func checkReply(t *testing.T, name string, m *paho.Publish) {
	t.Helper()
	for key, want := range map[string]string{"__stat": "200", "__protVer": "1.0"} {
		if value, count := property(m, key); value != want || count != 1 {
			t.Errorf("%s: %s is %q, %d times", name, key, value, count)
		}
	}
	_, count := property(m, "__ts")
	limit, limits := property(m, "holdfast-limit")
	if count > 1 || len(m.Properties.User) != 2+count+limits ||
		(limits == 1) != (string(m.Payload) == errQuota) || limits == 1 && limit == "" {
		t.Errorf("%s: user properties %v", name, m.Properties.User)
	}
	// Some brokers leave out a payload format of 0, which means the same.
	format := m.Properties.PayloadFormat
	if format == nil && os.Getenv("HOLDFAST_TEST_BROKER") != "" {
		format = new(byte)
	}
	if m.Properties.ContentType != "application/octet-stream" || format == nil || *format != 0 ||
		m.QoS != 1 || m.Retain {
		t.Errorf("%s: content type %q, payload format %v, QoS %d, retain %v", name,
			m.Properties.ContentType, m.Properties.PayloadFormat, m.QoS, m.Retain)
	}
}

// A request that lacks what the protocol demands is not executed. It is ignored, or answered with
// an error (docs/protocol.md, Requests). Properties that the store does not know change nothing.
func TestMalformedRequestsAreRefused(t *testing.T) {
	onBoth(t, nil, func(t *testing.T, target *target) {
		p := connect(t, target, "asker", false)
		set := func(key string) request {
			return request{payload: array("SET", key, "v"), properties: []string{"__ts", now()}}
		}
		absent := func(name, key string) {
			t.Helper()
			if m := p.call(request{payload: array("GET", key)}); string(m.Payload) != "$-1\r\n" {
				t.Errorf("%s: it was executed", name)
			}
		}
		r := set("no-topic")
		r.noTopic = true
		p.silent(r)
		absent("no response topic", "no-topic")

		r = set("retained")
		r.retain = true
		p.silent(r)
		absent("retained", "retained")
		p.publish(request{payload: "", retain: true, noID: true, noTopic: true}) // clears it

		r = set("qos0")
		r.qos0 = true
		if m := p.call(r); string(m.Payload) != errQoS {
			t.Errorf("QoS 0: %q", m.Payload)
		}
		absent("QoS 0", "qos0")

		r = set("no-correlation")
		r.noID = true
		m := p.call(r)
		if string(m.Payload) != errCorrelation || m.Properties.CorrelationData != nil {
			t.Errorf("no correlation data: %q, %q", m.Payload, m.Properties.CorrelationData)
		}
		checkReply(t, "no correlation data", m)
		absent("no correlation data", "no-correlation")

		for _, version := range []string{
			"2.0", "0.9", "1", "1.", ".0", "x", "1.x", "10.0", "1.0.0",
			" 1.0",
		} {
			t.Run(fmt.Sprintf("version %q", version), func(t *testing.T) {
				r = set("version")
				r.properties = append(r.properties, "__protVer", version)
				m = p.call(r)
				stat, _ := property(m, "__stat")
				supported, _ := property(m, "__supProtMajVer")
				requested, _ := property(m, "__requestProtVer")
				if len(m.Payload) != 0 || stat != "505" || supported != "1" ||
					requested != version {
					t.Errorf("version %q: %q, %v", version, m.Payload, m.Properties.User)
				}
			})
		}
		absent("unsupported version", "version")
		for _, properties := range [][]string{
			{"__protVer", "1.7"},
			{"__protVer", "2.0", "__protVer", "1.0"},
			{"__protVer", "1.0", "__protVer", ""},
		} {
			t.Run(strings.Join(properties, " "), func(t *testing.T) {
				r = set("supported")
				r.properties = append(r.properties, properties...)
				if m = p.call(r); string(m.Payload) != "+OK\r\n" {
					t.Errorf("%v: %q, %v", properties, m.Payload, m.Properties.User)
				}
			})
		}

		r = set("extras")
		r.properties = append(r.properties, "$partition", "x", "$high_priority", "",
			"aio-persistence", "true", "__invId", "1", "traceparent", "00-x")
		r.extra = func(m *paho.Publish) {
			m.Properties.ContentType = "text/plain"
			one := byte(1)
			m.Properties.PayloadFormat = &one
		}
		if m = p.call(r); string(m.Payload) != "+OK\r\n" {
			t.Errorf("properties that nobody knows: %q", m.Payload)
		}

		for _, correlation := range []string{
			"c", strings.Repeat("\x00\xff", 8),
			strings.Repeat("x", 1000),
		} {
			t.Run(fmt.Sprintf("correlation data of %d bytes", len(correlation)),
				func(t *testing.T) {
					if m = p.call(request{
						payload:     array("GET", "extras"),
						correlation: correlation,
					}); string(m.Payload) != "$1\r\nv\r\n" {
						t.Errorf("correlation data of %d bytes: %q", len(correlation), m.Payload)
					}
				})
		}
		if m.Properties.MessageExpiry != nil {
			t.Errorf("a request without expiry got a reply with %d s", *m.Properties.MessageExpiry)
		}
		m = p.call(request{payload: array("GET", "extras"), expiry: 100})
		if m.Properties.MessageExpiry == nil || *m.Properties.MessageExpiry < 95 ||
			*m.Properties.MessageExpiry > 100 {
			t.Errorf("expiry %v", m.Properties.MessageExpiry)
		}

		if p.most < 2 {
			return // the broker ends the connection of a client that publishes with QoS 2
		}
		r = set("qos2")
		r.qos = 2
		want := "+OK\r\n"
		if target.embedded {
			// the embedded broker shows the store with which QoS a client has published
			want = errQoS
		}
		if m = p.call(r); string(m.Payload) != want {
			t.Errorf("QoS 2: %q, want %q", m.Payload, want)
		}
	})
}

// A request with an invalid response topic is not answered or executed, and the embedded broker
// disconnects its publisher.
func TestInvalidResponseTopicIsNotAnswered(t *testing.T) {
	t.Parallel() // it mostly waits
	onBoth(t, nil, func(t *testing.T, target *target) {
		watcher := connect(t, target, "watcher", false)
		watcher.subscribe("clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/#")
		for i, topic := range []string{
			invokeTopic,
			"clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8",
			"clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/6D65/command/notify/6B",
			"$SYS/x", "a/+/b", "a/#", strings.Repeat("l/", 128) + "l",
		} {
			t.Run(fmt.Sprintf("%.60s", topic), func(t *testing.T) {
				p := connect(t, target, fmt.Sprintf("forger%d", i), false)
				key := fmt.Sprintf("forged%d", i)
				p.publish(request{
					payload:    array("SET", key, "v"),
					properties: []string{"__ts", now()}, topic: topic,
				})
				if target.embedded {
					select {
					case reason := <-p.ended:
						if reason != 0x98 {
							t.Errorf("%s: disconnected with reason 0x%02X", topic, reason)
						}
					case <-time.After(wait):
						t.Errorf("%s: its publisher was not disconnected", topic)
					}
				}
				if m := watcher.call(request{payload: array("GET", key)}); string(
					m.Payload) != "$-1\r\n" {
					t.Errorf("%s: it was executed", topic)
				}
			})
		}
		// A forged __srcId does not get another client disconnected: the embedded broker knows the
		// publisher.
		forger := connect(t, target, "forger", false)
		forger.publish(request{
			payload:    array("GET", "x"),
			properties: []string{"__srcId", "watcher"}, topic: invokeTopic,
		})
		if m := watcher.call(request{payload: array("GET", "x")}); string(m.Payload) != "$-1\r\n" {
			t.Errorf("%q", m.Payload)
		}
	})
}

// A copy of a request (the same message once more) takes no effect, and gets the reply of the first
// (docs/protocol.md, Exactly once).
func TestCopiesTakeEffectOnceAndAreAnsweredAlike(t *testing.T) {
	onBoth(t, nil, func(t *testing.T, target *target) {
		p := connect(t, target, "repeater", false)
		first := request{
			payload: array("SET", "k", "1"), properties: []string{"__ts", now()},
			correlation: "0123456789abcdef",
		}
		a := p.call(first)
		if m := p.call(request{
			payload:    array("SET", "k", "2"),
			properties: []string{"__ts", now()},
		}); string(m.Payload) != "+OK\r\n" {
			t.Fatalf("%q", m.Payload)
		}
		b := p.call(first)
		if string(b.Payload) != "+OK\r\n" || timestamp(a) != timestamp(b) || timestamp(a) == "" {
			t.Errorf("%q %s, then %q %s", a.Payload, timestamp(a), b.Payload, timestamp(b))
		}
		if m := p.call(request{payload: array("GET", "k")}); string(m.Payload) != "$1\r\n2\r\n" {
			t.Errorf("the copy took effect: %q", m.Payload)
		}
		nx := request{
			payload: array("SET", "n", "1", "NX"), properties: []string{"__ts", now()},
			correlation: "0123456789abcdeX",
		}
		if a, b := p.call(nx), p.call(nx); string(a.Payload) != "+OK\r\n" ||
			string(b.Payload) != "+OK\r\n" {
			t.Errorf("NX: %q, then %q", a.Payload, b.Payload)
		}
		for name, change := range map[string]func(*request){
			"another payload":          func(r *request) { r.payload = array("SET", "k", "3") },
			"another timestamp":        func(r *request) { r.properties = []string{"__ts", now()} },
			"another correlation data": func(r *request) { r.correlation = "fedcba9876543210" },
		} {
			t.Run(name, func(t *testing.T) {
				other := first
				change(&other)
				if m := p.call(other); timestamp(m) == timestamp(a) {
					t.Errorf("another request was taken for a copy")
				}
			})
		}
		short := request{
			payload: array("SET", "s", "1"), properties: []string{"__ts", now()},
			correlation: "short",
		}
		if a, b := p.call(short), p.call(short); timestamp(a) == timestamp(b) {
			t.Error("a request without identity was taken for a copy")
		}
	})
}
