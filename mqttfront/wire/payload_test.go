package wire

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"holdfast/fsm"
	"holdfast/hlc"
	"holdfast/resp"
)

// ParsePayload finds the error of a payload for both settings. CaseError is the error if verbs and
// options are case sensitive, and Error if they are not. If both are the same, only Error is set.
// The integration tests cover the rest of the grammar.
func TestParsePayloadErrorsByCaseSetting(t *testing.T) {
	for _, test := range []struct {
		arguments        []string
		kind             fsm.Kind
		caseError, error fsm.ErrorCode
	}{
		{[]string{"GET", "k"}, fsm.KindGet, fsm.NoError, fsm.NoError},
		{[]string{"get", "k"}, fsm.KindGet, fsm.ErrorUnknownCommand, fsm.NoError},
		{[]string{"get"}, fsm.KindInvalid, fsm.ErrorUnknownCommand, fsm.ErrorArguments},
		{[]string{"GET"}, 0, fsm.NoError, fsm.ErrorArguments},
		{[]string{"expire", "k"}, 0, fsm.NoError, fsm.ErrorUnknownCommand},
		{
			[]string{"SET", "k", "v", "IFVER", "1:2:StateStore"},
			fsm.KindSet, fsm.NoError,
			fsm.NoError,
		},
		{
			[]string{"SET", "k", "v", "PX", "5", "IFVER", "1:2:StateStore"},
			fsm.KindSet, fsm.NoError,
			fsm.NoError,
		},
		{
			[]string{"SET", "k", "v", "IFVER", "1:2:StateStore", "PX", "5"},
			fsm.KindSet, fsm.NoError,
			fsm.NoError,
		},
		{
			[]string{"SET", "k", "v", "ifver", "1:2:StateStore"},
			fsm.KindSet, fsm.ErrorSyntax,
			fsm.NoError,
		},
		{[]string{"SET", "k", "v", "IFVER", "1:2"}, 0, fsm.NoError, fsm.ErrorSyntax},
		{[]string{"SET", "k", "v", "IFVER"}, 0, fsm.NoError, fsm.ErrorSyntax},
		{
			[]string{"SET", "k", "v", "NX", "IFVER", "1:2:StateStore"},
			0, fsm.NoError,
			fsm.ErrorSyntax,
		},
		{
			[]string{"SET", "k", "v", "IFVER", "1:2:StateStore", "NX"},
			0, fsm.NoError,
			fsm.ErrorSyntax,
		},
		{
			[]string{"SET", "k", "v", "IFVER", "1:2:StateStore", "IFVER", "1:2:StateStore"},
			0,
			fsm.NoError, fsm.ErrorSyntax,
		},
		{[]string{"DEL", "k", "IFVER", "1:2:StateStore"}, fsm.KindDel, fsm.NoError, fsm.NoError},
		{[]string{"DEL", "k", "IFVER", "x"}, 0, fsm.NoError, fsm.ErrorSyntax},
		{[]string{"DEL", "k", "IFVER"}, 0, fsm.NoError, fsm.ErrorArguments},
		{[]string{"DEL", "k", "l", "m"}, 0, fsm.NoError, fsm.ErrorArguments},
		{[]string{"VDEL", "k", "v", "IFVER", "1:2:StateStore"}, 0, fsm.NoError, fsm.ErrorArguments},
		{[]string{"SCAN", "k*"}, fsm.KindScan, fsm.NoError, fsm.NoError},
		{[]string{"scan", "k*"}, fsm.KindScan, fsm.ErrorUnknownCommand, fsm.NoError},
		{[]string{"SCAN", "k*", "token"}, fsm.KindScan, fsm.NoError, fsm.NoError},
		// the state machine refuses it
		{[]string{"SCAN", "k*", ""}, fsm.KindScan, fsm.NoError, fsm.NoError},
		{[]string{"scan", "k*", ""}, fsm.KindScan, fsm.ErrorUnknownCommand, fsm.NoError},
		{[]string{"SCAN"}, 0, fsm.NoError, fsm.ErrorArguments},
		{[]string{"SCAN", "a", "b", "c"}, 0, fsm.NoError, fsm.ErrorArguments},
		{[]string{"SCAN", ""}, 0, fsm.NoError, fsm.ErrorSyntax},
		{[]string{"SCAN", "a["}, 0, fsm.NoError, fsm.ErrorSyntax},
		{[]string{"scan", "a["}, fsm.KindInvalid, fsm.ErrorUnknownCommand, fsm.ErrorSyntax},
		{[]string{"SET", "k", "v", "nx"}, fsm.KindSet, fsm.ErrorSyntax, fsm.NoError},
		{[]string{"SET", "k", "v", "NEX", "px", "5"}, fsm.KindSet, fsm.ErrorSyntax, fsm.NoError},
		{[]string{"SET", "k", "v", "NEX", "px"}, fsm.KindSet, fsm.NoError, fsm.NoError},
		{[]string{"set", "", "v"}, fsm.KindInvalid, fsm.ErrorUnknownCommand, fsm.ErrorEmptyKey},
		{[]string{"KEYNOTIFY", "k", "stop"}, fsm.KindKeyNotifyStop, fsm.ErrorSyntax, fsm.NoError},
		{[]string{"KEYNOTIFY", "k*", "GLOB"}, fsm.KindKeyNotify, fsm.NoError, fsm.NoError},
		{
			[]string{"KEYNOTIFY", "k*", "GLOB", "STOP"},
			fsm.KindKeyNotifyStop, fsm.NoError,
			fsm.NoError,
		},
		{
			[]string{"KEYNOTIFY", "k*", "GLOB", "stop"},
			fsm.KindKeyNotifyStop, fsm.ErrorSyntax,
			fsm.NoError,
		},
		{[]string{"KEYNOTIFY", "k*", "glob"}, fsm.KindKeyNotify, fsm.ErrorSyntax, fsm.NoError},
		{
			[]string{"KEYNOTIFY", "k*", "glob", "STOP"},
			fsm.KindKeyNotifyStop, fsm.ErrorArguments,
			fsm.NoError,
		},
		{[]string{"KEYNOTIFY", "k*", "GLOB", "GET"}, 0, fsm.NoError, fsm.ErrorSyntax},
		{[]string{"KEYNOTIFY", "k*", "GLOB", "STOP", "x"}, 0, fsm.NoError, fsm.ErrorArguments},
		{[]string{"KEYNOTIFY", "", "GLOB"}, 0, fsm.NoError, fsm.ErrorSyntax},
		{[]string{"KEYNOTIFY", "a[", "GLOB", "STOP"}, 0, fsm.NoError, fsm.ErrorSyntax},
		// a long s is no S
		{[]string{"\u017fET", "k", "v"}, 0, fsm.NoError, fsm.ErrorUnknownCommand},
		{[]string{"\u212aEYNOTIFY", "k"}, 0, fsm.NoError, fsm.ErrorUnknownCommand},
	} {
		t.Run(strings.Join(test.arguments, " "), func(t *testing.T) {
			var command fsm.Command
			ParsePayload(resp.AppendArray(nil, test.arguments...), &command)
			if command.Kind != test.kind || command.CaseError != test.caseError ||
				command.Error != test.error {
				t.Errorf("%q: kind %d, errors %d and %d", test.arguments, command.Kind,
					command.CaseError, command.Error)
			}
		})
	}
}

// An empty or too long continuation token becomes an invalid token. It does not count as absent.
func TestTokenOutOfBoundsStaysAToken(t *testing.T) {
	for _, token := range []string{"", strings.Repeat("x", fsm.MaxContinuationToken+1)} {
		t.Run(fmt.Sprintf("%d bytes", len(token)), func(t *testing.T) {
			var command fsm.Command
			if ParsePayload(resp.AppendArray(nil, "SCAN", "*", token),
				&command); string(command.Value) != "\x00" {
				t.Errorf("%d bytes: the token is %.10q", len(token), command.Value)
			}
		})
	}
}

// If the strict (case sensitive) grammar accepts a payload, the lenient one parses it to the same
// command. The front end relies on this.
func TestLenientReadsWhatStrictAccepts(t *testing.T) {
	word := rapid.SampledFrom([]string{
		"SET", "GET", "k", "NX", "nx", "NEX", "nex", "PX", "px", "5",
		"0", "", "STOP", "stop", "KEYNOTIFY", "GLOB", "glob", "SCAN", "a[", "*", "DEL", "IFVER",
		"ifver", "1:2:StateStore", "TXN", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
		"*2\r\n$3\r\nget\r\n$1\r\nk\r\n",
	})
	rapid.Check(t, func(t *rapid.T) {
		arguments := rapid.SliceOfN(word, 1, 8).Draw(t, "arguments")
		request, err := resp.ReadRequest(resp.AppendArray(nil, arguments...))
		if err != nil {
			t.Fatal(err)
		}
		var strict, lenient fsm.Command
		if (grammar{}).parse(&request, &strict) != fsm.NoError {
			return
		}
		if code := (grammar{foldCase: true}).parse(&request, &lenient); code != fsm.NoError ||
			fmt.Sprint(strict) != fmt.Sprint(lenient) {
			t.Fatalf("%q: %+v, then %+v, error %d", arguments, strict, lenient, code)
		}
	})
}

func TestExpiryIsParsedToMilliseconds(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "0001": 1, "0.5": 1, "1.0": 1, "1.000001": 2, "9007199254740992": 1 << 53,
		"9007199254740991.5": 1 << 53,
		"0":                  0, "0.0": 0, "": 0, ".5": 0, "1.": 0, "-1": 0, "+1": 0, "1e3": 0,
		"9007199254740992.5": 0, "9007199254740993": 0,
		"99999999999999999999": 0, " 1": 0, "1.5.5": 0,
	} {
		t.Run(text, func(t *testing.T) {
			got, ok := milliseconds([]byte(text))
			if ok != (want > 0) || (ok && got != want) {
				t.Errorf("%q: %d, %v; want %d", text, got, ok, want)
			}
		})
	}
}

// A pattern that is too long is left out, and not compiled: a message of 16 MiB must not hold up a
// node.
func TestLongPatternIsLeftOut(t *testing.T) {
	pattern := strings.Repeat("k", MaxPayload-100)
	for kind, arguments := range map[fsm.Kind][]string{
		fsm.KindScan:      {"SCAN", pattern},
		fsm.KindKeyNotify: {"KEYNOTIFY", pattern, "GLOB"},
	} {
		t.Run(arguments[0], func(t *testing.T) {
			var command fsm.Command
			began := time.Now()
			ParsePayload(resp.AppendArray(nil, arguments...), &command)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			if command.Kind != kind || !command.Oversize || command.Key != nil ||
				command.Pattern != (kind == fsm.KindKeyNotify) {
				t.Errorf("%+v", command)
			}
		})
	}
}

// The operations of a transaction are commands of their own, each with its error. Only four
// commands are operations.
func TestOperationsOfATransactionAreParsed(t *testing.T) {
	array := func(arguments ...string) string { return string(resp.AppendArray(nil, arguments...)) }
	for name, test := range map[string]struct {
		operation string
		want      fsm.Command
	}{
		"SET": {
			array("SET", "k", "v", "NEX", "e", "PX", "5"),
			fsm.Command{
				Kind: fsm.KindSet, Key: []byte("k"), Value: []byte("v"),
				Condition: fsm.IfAbsentOrEqual, Expected: []byte("e"), TTL: 5,
			},
		},
		"DEL": {
			array("DEL", "k", "IFVER", "1:2:n"),
			fsm.Command{
				Kind: fsm.KindDel, Key: []byte("k"), Condition: fsm.IfVersion,
				ExpectedVersion: hlc.Timestamp{Wall: 1, Counter: 2, NodeID: "n"},
			},
		},
		"VDEL": {
			array("VDEL", "k", "v"),
			fsm.Command{Kind: fsm.KindVDel, Key: []byte("k"), Value: []byte("v")},
		},
		"GET": {array("GET", "k"), fsm.Command{Kind: fsm.KindGet, Key: []byte("k")}},
		"get": {
			array("get", "k"),
			fsm.Command{Kind: fsm.KindGet, Key: []byte("k"), CaseError: fsm.ErrorUnknownCommand},
		},
		"SCAN": {
			array("SCAN", "*"),
			fsm.Command{Kind: fsm.KindInvalid, Error: fsm.ErrorUnknownCommand},
		},
		"KEYNOTIFY": {
			array("KEYNOTIFY", "k"),
			fsm.Command{Kind: fsm.KindInvalid, Error: fsm.ErrorUnknownCommand},
		},
		"TXN": {
			array("TXN", array("GET", "k")),
			fsm.Command{Kind: fsm.KindInvalid, Error: fsm.ErrorUnknownCommand},
		},
		"get of two": {
			array("get", "k", "l"),
			fsm.Command{
				Kind: fsm.KindInvalid, CaseError: fsm.ErrorUnknownCommand,
				Error: fsm.ErrorArguments,
			},
		},
		"a bad option": {
			array("SET", "k", "v", "IFVER", "1:2:n", "NX"),
			fsm.Command{Kind: fsm.KindInvalid, Error: fsm.ErrorSyntax},
		},
		"not an array": {"GET k", fsm.Command{Kind: fsm.KindInvalid, Error: fsm.ErrorSyntax}},
		"something after": {
			array("GET", "k") + "x",
			fsm.Command{Kind: fsm.KindInvalid, Error: fsm.ErrorSyntax},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var command fsm.Command
			ParsePayload(resp.AppendArray(nil, "TXN", array("GET", "other"), test.operation),
				&command)
			if command.Kind != fsm.KindTxn || len(command.Operations) != 2 ||
				!reflect.DeepEqual(command.Operations[1], test.want) {
				t.Errorf("%+v", command.Operations)
			}
		})
	}
	for _, count := range []int{0, 1, fsm.MaxOperations, fsm.MaxOperations + 1} {
		t.Run(fmt.Sprintf("%d operations", count), func(t *testing.T) {
			var command fsm.Command
			ParsePayload(resp.AppendArray(nil,
				append([]string{"txn"}, slices.Repeat([]string{array("GET", "k")}, count)...)...),
				&command)
			if valid := count > 0 &&
				count <= fsm.MaxOperations; valid != (command.Kind == fsm.KindTxn) ||
				valid != (command.Error == fsm.NoError) ||
				command.CaseError != fsm.ErrorUnknownCommand {
				t.Errorf("%d operations: kind %d, errors %d and %d", count, command.Kind,
					command.CaseError, command.Error)
			}
		})
	}
}

// A transaction has one timestamp and one fencing token. If one of them is missing or malformed,
// each operation gets the error that it would get as a single command.
func TestTransactionHasOneTimestampAndToken(t *testing.T) {
	var command fsm.Command
	ParsePayload(resp.AppendArray(nil, "TXN",
		string(resp.AppendArray(nil, "SET", "s", "v")), string(resp.AppendArray(nil, "DEL", "d")),
		string(resp.AppendArray(nil, "GET", "g"))), &command)
	for name, test := range map[string]struct {
		properties properties
		late       []fsm.ErrorCode
	}{
		"both": {properties{
			timestamp: "1:0:n", timestamps: 1, token: "2:0:m",
			tokens: 1,
		}, []fsm.ErrorCode{0, 0, 0}},
		"no timestamp": {
			properties{token: "2:0:m", tokens: 1},
			[]fsm.ErrorCode{fsm.ErrorMissingTimestamp, 0, 0},
		},
		"a malformed token": {properties{
			timestamp: "1:0:n", timestamps: 1, token: "2",
			tokens: 1,
		}, []fsm.ErrorCode{
			fsm.ErrorMalformedTimestamp, fsm.ErrorMalformedTimestamp,
			0,
		}},
		"the timestamp twice": {
			properties{timestamp: "1:0:n", timestamps: 2},
			[]fsm.ErrorCode{fsm.ErrorMalformedTimestamp, 0, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			timed := command
			timed.Operations = slices.Clone(command.Operations)
			addTimes(&timed, &test.properties)
			for i, want := range test.late {
				if got := timed.Operations[i].LateError; got != want {
					t.Errorf("operation %d: error %d, want %d", i+1, got, want)
				}
			}
			if name == "both" && (timed.Timestamp.Wall != 1 || timed.Token.Wall != 2) {
				t.Errorf("%+v", timed)
			}
		})
	}
}

func FuzzParsePayload(f *testing.F) {
	for _, arguments := range [][]string{
		{"SET", "k", "v", "NEX", "PX", "PX", "5"},
		{"get", "k"},
		{"KEYNOTIFY", "k", "STOP"},
		{"KEYNOTIFY", "k*", "GLOB"},
		{"keynotify", "k*", "glob", "stop"},
		{"SCAN", "a*[b-d]", "token"},
		{"SET", "k", "v", "IFVER", "1:2:StateStore", "PX", "5"},
		{"SET", "k", "v", "IFVER", "1:2:S", "NX"},
		{"set", "k", "v", "ifver", "1:2:S", "nx"},
		{
			"TXN", "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n",
			"*2\r\n$3\r\nGET\r\n$1\r\nl\r\n", "*1\r\n",
		},
	} {
		f.Add(resp.AppendArray(nil, arguments...))
	}
	f.Add([]byte("*1000000000\r\n"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var command fsm.Command
		ParsePayload(payload, &command)
		if command.Kind == 0 && command.Error == fsm.NoError {
			t.Fatal("neither a command nor an error")
		}
		if command.Error != fsm.NoError &&
			(command.Condition == fsm.IfVersion || command.ExpectedVersion.NodeID != "" ||
				command.Pattern) {
			t.Fatal("an error with an option that older members cannot read")
		}
		if _, err := fsm.DecodeEntry(fsm.AppendEntry(nil,
			&fsm.Entry{Commands: []fsm.Command{
				{Kind: fsm.KindDel},
				command,
			}})); command.Kind != 0 && err != nil {
			t.Fatalf("it cannot go into the log: %v", err)
		}
	})
}
