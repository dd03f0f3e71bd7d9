package integration

import (
	"slices"
	"strings"
)

// extensionRows returns the rows of SCAN, and of what only Holdfast has: watches of patterns and
// transactions.
func extensionRows() []row {
	return []row{
		// SCAN (docs/protocol.md, Listing keys). The literal bytes are those that the protocol's
		// Rust library sends and parses.
		{
			name: "SCAN of nothing", payload: "*2\r\n$4\r\nSCAN\r\n$6\r\nscan/*\r\n",
			want: "*1\r\n*0\r\n", ts: "none",
		},
		{name: "SET scan/b", payload: array("SET", "scan/b", "1"), want: "+OK\r\n"},
		{name: "SET scan/a", payload: array("SET", "scan/a", "1"), want: "+OK\r\n"},
		{name: "SET scan/é", payload: array("SET", "scan/é", "1"), want: "+OK\r\n"},
		{
			name: "SET scan/ and a byte that is no UTF-8", payload: array("SET", "scan/\xff", "1"),
			want: "+OK\r\n",
		},
		{name: "SET scan/b/[*]", payload: array("SET", "scan/b/[*]", "1"), want: "+OK\r\n"},
		{
			name: "SCAN", payload: "*2\r\n$4\r\nSCAN\r\n$6\r\nscan/*\r\n",
			want: "*1\r\n*4\r\n$6\r\nscan/a\r\n$6\r\nscan/b\r\n$10\r\nscan/b/[*]\r\n$7\r\nscan/é\r\n", ts: "none",
		},
		{
			name: "SCAN, sdk", payload: array("SCAN", "scan/?"),
			want: "*1\r\n*3\r\n$6\r\nscan/a\r\n$6\r\nscan/b\r\n$7\r\nscan/é\r\n", ts: "none",
			properties: sdk(),
		},
		{
			name: "SCAN of a class", payload: array("SCAN", "scan/[!b]"),
			want: "*1\r\n*2\r\n$6\r\nscan/a\r\n$7\r\nscan/é\r\n",
		},
		{
			name: "SCAN of a range", payload: array("SCAN", "scan/[a-b]"),
			want: "*1\r\n*2\r\n$6\r\nscan/a\r\n$6\r\nscan/b\r\n",
		},
		{
			name: "SCAN of a list", payload: array("SCAN", "scan/[ab]"),
			want: "*1\r\n*2\r\n$6\r\nscan/a\r\n$6\r\nscan/b\r\n",
		},
		{
			name: "SCAN of a question mark itself", payload: array("SCAN", "scan/[?]"),
			want: "*1\r\n*0\r\n",
		},
		{
			name: "SCAN with a star that stands for nothing", payload: array("SCAN", "scan/a*"),
			want: "*1\r\n*1\r\n$6\r\nscan/a\r\n",
		},
		{
			name: "SCAN of the characters themselves", payload: array("SCAN", "*[[][*]]"),
			want: "*1\r\n*1\r\n$10\r\nscan/b/[*]\r\n",
		},
		{
			name: "SCAN of a literal", payload: array("SCAN", "scan/a"),
			want: "*1\r\n*1\r\n$6\r\nscan/a\r\n",
		},
		{
			name: "SCAN of what is no UTF-8", payload: array("SCAN", "scan/\xff"),
			want: "*1\r\n*0\r\n",
		},
		{
			name: "SCAN ignores __ts and __ft", payload: array("SCAN", "scan/a"),
			want: "*1\r\n*1\r\n$6\r\nscan/a\r\n", ts: "none",
			properties: []string{"__ts", "x", "__ft", "x"},
		},
		{name: "SCAN alone", payload: array("SCAN"), want: errArguments},
		{name: "SCAN of three", payload: array("SCAN", "*", "x", "y"), want: errArguments},
		{name: "SCAN of an empty pattern", payload: array("SCAN", ""), want: errSyntax},
		{name: "SCAN of an unclosed class", payload: array("SCAN", "a["), want: errSyntax},
		{name: "SCAN of an empty class", payload: array("SCAN", "a[]"), want: errSyntax},
		{
			name: "SCAN with an empty token", payload: array("SCAN", "*", ""), want: errToken,
			ts: "none",
		},
		{
			name: "SCAN with a token of another store", payload: array("SCAN", "*", "0"),
			want: errToken,
		},
		{
			name: "the longest pattern", payload: array("SCAN", strings.Repeat("k", 1024)),
			want: "*1\r\n*0\r\n",
		},
		{
			name: "a pattern that is too long", payload: array("SCAN", strings.Repeat("k", 1025)),
			want: errQuota,
		},
		{name: "scan in lower case", payload: array("scan", "*"), want: errUnknown},

		// KEYNOTIFY GLOB (a watch of a pattern), while no key changes
		{
			name: "GLOB, sdk", payload: array("KEYNOTIFY", "ws*", "GLOB"), want: "+OK\r\n",
			properties: sdk(),
		},
		{
			name: "GLOB STOP, sdk", payload: array("KEYNOTIFY", "ws*", "GLOB", "STOP"),
			want: "+OK\r\n", properties: sdk(),
		},
		{
			name: "GLOB STOP of nothing", payload: array("KEYNOTIFY", "w*", "GLOB", "STOP"),
			want: ":0\r\n", ts: "none",
		},
		{
			name: "GLOB", payload: "*3\r\n$9\r\nKEYNOTIFY\r\n$2\r\nw*\r\n$4\r\nGLOB\r\n",
			want: "+OK\r\n", ts: "none",
		},
		{name: "GLOB again", payload: array("KEYNOTIFY", "w*", "GLOB"), want: "+OK\r\n"},
		{
			name: "GLOB ignores __ts and __ft", payload: array("KEYNOTIFY", "w*", "GLOB"),
			want: "+OK\r\n", properties: []string{"__ts", "x", "__ft", "x"},
		},
		{
			name: "STOP of the key of that name", payload: array("KEYNOTIFY", "w*", "STOP"),
			want: ":0\r\n",
		},
		{name: "GLOB STOP", payload: "*4\r\n$9\r\nKEYNOTIFY\r\n$2\r\nw*\r\n$4\r\nGLOB\r\n$4\r\nSTOP\r\n", want: "+OK\r\n", ts: "none"},
		{
			name: "GLOB STOP again", payload: array("KEYNOTIFY", "w*", "GLOB", "STOP"),
			want: ":0\r\n",
		},
		{
			name:    "GLOB with an option that it has not",
			payload: array("KEYNOTIFY", "w*", "GLOB", "GET"), want: errSyntax,
		},
		{
			name: "GLOB of five", payload: array("KEYNOTIFY", "w*", "GLOB", "STOP", "x"),
			want: errArguments,
		},
		{
			name: "GLOB of an empty pattern", payload: array("KEYNOTIFY", "", "GLOB"),
			want: errSyntax,
		},
		{
			name: "GLOB of an unclosed class", payload: array("KEYNOTIFY", "a[", "GLOB"),
			want: errSyntax,
		},
		{
			name: "GLOB STOP of an empty class", payload: array("KEYNOTIFY", "a[]", "GLOB", "STOP"),
			want: errSyntax,
		},
		{
			name:    "GLOB of the longest pattern",
			payload: array("KEYNOTIFY", strings.Repeat("k", 1024), "GLOB"), want: "+OK\r\n",
		},
		{
			name:    "GLOB of a pattern that is too long",
			payload: array("KEYNOTIFY", strings.Repeat("k", 1025), "GLOB"), want: errQuota,
		},
		{name: "glob in lower case", payload: array("KEYNOTIFY", "w*", "glob"), want: errSyntax},

		// TXN: several commands as one
		{name: "TXN", payload: "*3\r\n$3\r\nTXN\r\n$31\r\n*3\r\n$3\r\nSET\r\n$5\r\ntxn/a\r\n$1\r\n1\r\n\r\n$24\r\n*2\r\n$3\r\nGET\r\n$5\r\ntxn/b\r\n\r\n", want: "*2\r\n+OK\r\n$-1\r\n", ts: "new"},
		{
			name: "what it has set", payload: array("GET", "txn/a"), want: "$1\r\n1\r\n",
			ts: "stored",
		},
		{
			name: "TXN of one", payload: array("TXN", array("GET", "txn/a")),
			want: "*1\r\n$1\r\n1\r\n", ts: "none",
		},
		{
			name: "TXN of all four",
			payload: array("TXN", array("SET", "txn/b", "2", "NX", "PX", "100000"),
				array("VDEL", "txn/a", "1"), array("DEL", "txn/c"), array("GET", "txn/d")),
			want: "*4\r\n+OK\r\n:1\r\n:0\r\n$-1\r\n", ts: "new",
		},
		{
			name:    "TXN whose condition is not met",
			payload: array("TXN", array("SET", "txn/a", "3"), array("SET", "txn/b", "3", "NX")),
			want:    "-1\r\n", ts: "stored",
		},
		{
			name:    "TXN whose condition is not met, sdk",
			payload: array("TXN", array("VDEL", "txn/b", "x"), array("SET", "txn/a", "3")),
			want:    ":-1\r\n", ts: "stored", properties: sdk(),
		},
		{
			name: "TXN whose condition is not met by nothing",
			payload: array("TXN", array("SET", "txn/a", "3", "IFVER", "1:0:StateStore"),
				array("DEL", "txn/b")), want: "-1\r\n", ts: "none",
		},
		{
			name:    "TXN that is refused rather than not applied",
			payload: array("TXN", array("SET", "txn/b", "3", "NX"), array("GET", "")),
			want:    errEmptyKey, ts: "none",
		},
		{
			name:    "TXN with a key twice",
			payload: array("TXN", array("SET", "txn/a", "3"), array("DEL", "txn/a")),
			want:    errSyntax, ts: "none",
		},
		{
			name:    "TXN that reads what it writes",
			payload: array("TXN", array("GET", "txn/a"), array("SET", "txn/a", "3")),
			want:    errSyntax,
		},
		{
			name:    "TXN that reads a key twice",
			payload: array("TXN", array("GET", "txn/b"), array("GET", "txn/b")),
			want:    "*2\r\n$1\r\n2\r\n$1\r\n2\r\n", ts: "none",
		},
		{
			name:    "TXN without __ts",
			payload: array("TXN", array("DEL", "txn/b"), array("SET", "txn/a", "3")),
			want:    errMissing, noTS: true,
		},
		{
			name:    "TXN that sets nothing needs no __ts",
			payload: array("TXN", array("DEL", "txn/c")),
			want:    "*1\r\n:0\r\n", ts: "none",
		},
		{
			name: "TXN with a token",
			payload: array("TXN", array("SET", "txn/b", "3"), array("SET", "txn/f", "3"),
				array("DEL", "txn/c")), want: "*3\r\n+OK\r\n+OK\r\n:0\r\n", ts: "new",
			properties: []string{"__ft", "1000:1:A"},
		},
		{
			name:    "TXN without the token",
			payload: array("TXN", array("SET", "txn/a", "4"), array("DEL", "txn/f")),
			want:    errTokenNeeded, ts: "none",
		},
		{
			name:    "TXN with a malformed token",
			payload: array("TXN", array("GET", "txn/a"), array("DEL", "txn/f")), want: errMalformed,
			properties: []string{"__ft", "x"},
		},
		{
			name: "TXN of GETs ignores it", payload: array("TXN", array("GET", "txn/f")),
			want: "*1\r\n$1\r\n3\r\n", properties: []string{"__ft", "x", "__ts", "x"},
		},
		{
			name: "TXN with __ts far ahead", payload: array("TXN", array("SET", "txn/a", "4")),
			want: errSkew, properties: []string{"__ts", ahead(75_000)},
		},
		{name: "TXN alone", payload: array("TXN"), want: errArguments},
		{name: "TXN of what is no command", payload: array("TXN", "GET k"), want: errSyntax},
		{
			name: "TXN of an unknown command", payload: array("TXN", array("EXPIRE", "k")),
			want: errUnknown,
		},
		{
			name: "TXN of a TXN", payload: array("TXN", array("TXN", array("GET", "k"))),
			want: errUnknown,
		},
		{name: "TXN of a SCAN", payload: array("TXN", array("SCAN", "*")), want: errUnknown},
		{
			name: "TXN of a KEYNOTIFY", payload: array("TXN", array("KEYNOTIFY", "k")),
			want: errUnknown,
		},
		{
			name: "TXN of a lower-case command", payload: array("TXN", array("get", "k")),
			want: errUnknown,
		},
		{name: "txn in lower case", payload: array("txn", array("GET", "k")), want: errUnknown},
		{
			name: "the longest TXN",
			payload: array(append([]string{"TXN"},
				slices.Repeat([]string{array("GET", "txn/a")}, 128)...)...), want: "*128\r\n" +
				strings.Repeat("$-1\r\n", 128),
		},
		{
			name: "a TXN that is too long",
			payload: array(append([]string{"TXN"},
				slices.Repeat([]string{array("GET", "txn/a")}, 129)...)...), want: errArguments,
		},
		{
			name: "TXN with a value that is too long",
			payload: array("TXN", array("GET", "k"),
				array("SET", "k", strings.Repeat("v", 4<<20+1))), want: errQuota,
		},
		// k has the longest value, which an earlier row has set, and txn/f one byte more
		{
			name:    "TXN that reads too much",
			payload: array("TXN", array("GET", "k"), array("GET", "txn/f")), want: errQuota,
		},
	}
}
