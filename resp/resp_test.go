package resp

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestReadRequestParsesArrays(t *testing.T) {
	for _, test := range []struct {
		payload string
		want    []string
	}{
		{"*2\r\n$3\r\nGET\r\n$7\r\nSETKEY2\r\n", []string{"GET", "SETKEY2"}},
		{"*1\r\n$0\r\n\r\n", []string{""}},
		{"*1\r\n$4\r\n\r\n\r\n\r\n", []string{"\r\n\r\n"}},
		{"*2\r\n$1\r\n\x00\r\n$2\r\n\xff\xfe\r\n", []string{"\x00", "\xff\xfe"}},
	} {
		t.Run(test.payload, func(t *testing.T) {
			request, err := ReadRequest([]byte(test.payload))
			if err != nil || fmt.Sprintf("%q", request.Arguments()) != fmt.Sprintf("%q",
				test.want) {
				t.Errorf("%q: %q, %v", test.payload, request.Arguments(), err)
			}
		})
	}
}

// Whatever breaks the grammar is a syntax error. Each row is one way to break it.
func TestReadRequestRefusesSyntaxErrors(t *testing.T) {
	for _, payload := range []string{
		"", "*", "*1", "*1\r", "*1\r\n", "GET k\r\n", "+OK\r\n", ":1\r\n", "$3\r\nGET\r\n",
		"*0\r\n", "*-1\r\n", "*+1\r\n$1\r\na\r\n", "*01\r\n$1\r\na\r\n", "*1\r\n$01\r\na\r\n",
		"*1\r\n$-1\r\n", "*1\r\n$00\r\n\r\n",
		"*1\n$1\na\n", "*1\r\n$1\r\na", "*1\r\n$1\r\na\r", "*1\r\n$1\r\na\n\r", "*1\r\n$1\na\r\n",
		"*1\r$1\r\na\r\n",
		"*1\r\n$2\r\na\r\n", "*1\r\n$0\r\na\r\n", "*2\r\n$1\r\na\r\n", "*1\r\n$1\r\na\r\nx",
		"*1\r\n$1\r\na\r\n\r\n",
		"*1\r\n*1\r\n$1\r\na\r\n", "*1\r\n:1\r\n", "*1\r\n+a\r\n", "*1 \r\n$1\r\na\r\n", "*a\r\n",
		"*1\r\n$a\r\n\r\n", "*\r\n", "*1\r\n$\r\n\r\n",
		"*1000000000\r\n$1\r\na\r\n", "*99999999999999999999\r\n", "*1\r\n$104857600\r\na\r\n",
		"*1\r\n$99999999999999999999\r\na\r\n",
		"*1\r\n$2147483648\r\na\r\n", "*1\r\n$4294967297\r\na\r\n", "*4294967297\r\n$1\r\na\r\n",
		"*1\r\n$18446744073709551617\r\na\r\n",
	} {
		t.Run(payload, func(t *testing.T) {
			if request, err := ReadRequest([]byte(payload)); !errors.Is(err, ErrSyntax) {
				t.Errorf("%q: %q, %v", payload, request.Arguments(), err)
			}
		})
	}
}

func TestReadRequestAllocatesNothing(t *testing.T) {
	for _, payload := range [][]byte{
		[]byte("*1000000000\r\n$1\r\na\r\n"),
		[]byte("*2\r\n$104857600\r\na\r\n$1\r\na\r\n"),
		AppendArray(nil, "SET", "key", "value", "NEX", "PX", "100"),
		bytes.Replace(bytes.Repeat([]byte("$0\r\n\r\n"), 1001), []byte("$0\r\n\r\n"),
			[]byte("*1000\r\n"), 1),
	} {
		t.Run(fmt.Sprintf("%.30q", payload), func(t *testing.T) {
			if n := testing.AllocsPerRun(100, func() { _, _ = ReadRequest(payload) }); n > 0 {
				t.Errorf("%.30q: %v allocations", payload, n)
			}
		})
	}
}

// Arguments beyond MaxArguments are counted but not kept. Their syntax is still checked.
func TestReadRequestOfManyArguments(t *testing.T) {
	payload := AppendArray(nil, bytes.Split(bytes.Repeat([]byte("a,"), 1000), []byte(","))...)
	request, err := ReadRequest(payload)
	if err != nil || request.Count != 1001 || len(request.Arguments()) != MaxArguments {
		t.Fatalf("%d, %d, %v", request.Count, len(request.Arguments()), err)
	}
	if _, err := ReadRequest(append(payload[:len(payload)-1], 'x')); !errors.Is(err, ErrSyntax) {
		t.Fatal("a broken last argument was not seen")
	}
}

func TestRequestsSurviveARoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		arguments := rapid.SliceOfN(rapid.SliceOf(rapid.Byte()), 1, MaxArguments).Draw(t,
			"arguments")
		request, err := ReadRequest(AppendArray(nil, arguments...))
		if err != nil || fmt.Sprintf("%q", request.Arguments()) != fmt.Sprintf("%q", arguments) {
			t.Fatalf("%q, %v", request.Arguments(), err)
		}
	})
}

func TestRepliesAreEncodedAndRead(t *testing.T) {
	for _, test := range []struct {
		got, want string
		reply     Reply
	}{
		{string(AppendOK(nil)), "+OK\r\n", Reply{Kind: ReplyOK}},
		{string(AppendInteger(nil, 0)), ":0\r\n", Reply{Kind: ReplyInteger}},
		{string(AppendInteger(nil, 1)), ":1\r\n", Reply{Kind: ReplyInteger, Integer: 1}},
		{string(AppendInteger(nil, -1)), ":-1\r\n", Reply{Kind: ReplyNotApplied, Integer: -1}},
		{string(AppendBareMinusOne(nil)), "-1\r\n", Reply{Kind: ReplyNotApplied, Integer: -1}},
		{string(AppendNull(nil)), "$-1\r\n", Reply{Kind: ReplyNull}},
		{
			string(AppendBulk(nil, "1234")), "$4\r\n1234\r\n",
			Reply{Kind: ReplyBulk, Bulk: []byte("1234")},
		},
		{string(AppendBulk(nil, "")), "$0\r\n\r\n", Reply{Kind: ReplyBulk, Bulk: []byte{}}},
		{
			string(AppendError(nil, "syntax error")), "-ERR syntax error\r\n",
			Reply{Kind: ReplyError, Error: "syntax error"},
		},
	} {
		t.Run(test.got, func(t *testing.T) {
			if test.got != test.want {
				t.Errorf("wrote %q, want %q", test.got, test.want)
			}
			reply, err := ReadReply([]byte(test.want))
			if err != nil || fmt.Sprint(reply) != fmt.Sprint(test.reply) {
				t.Errorf("%q: %v, %v", test.want, reply, err)
			}
		})
	}
	for _, payload := range []string{
		"", "+ok\r\n", "$4\r\n123\r\n", "$1\r\n1\r\n ", ":x\r\n",
		":-2\r\n", "-ERR", "-ERR x", "OK",
	} {
		t.Run(payload, func(t *testing.T) {
			if reply, err := ReadReply([]byte(payload)); !errors.Is(err, ErrSyntax) {
				t.Errorf("%q: %v, %v", payload, reply, err)
			}
		})
	}
}

func TestNotificationsAreParsed(t *testing.T) {
	set, err := ReadNotification(
		[]byte("*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n"))
	if err != nil || set.Deleted || string(set.Value) != "abc" {
		t.Errorf("%v, %v", set, err)
	}
	for _, payload := range []string{
		"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n",
		"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n",
	} {
		t.Run(payload, func(t *testing.T) {
			if deleted, err := ReadNotification([]byte(payload)); err != nil || !deleted.Deleted {
				t.Errorf("%q: %v, %v", payload, deleted, err)
			}
		})
	}
	for _, payload := range []string{
		"", "*1\r\n$6\r\nNOTIFY\r\n",
		"*2\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n", "*2\r\n$3\r\nGET\r\n$3\r\nDEL\r\n",
	} {
		t.Run(payload, func(t *testing.T) {
			if _, err := ReadNotification([]byte(payload)); !errors.Is(err, ErrSyntax) {
				t.Errorf("%q: %v", payload, err)
			}
		})
	}
}

func FuzzReadRequest(f *testing.F) {
	for _, seed := range []string{
		"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n",
		"*1000000000\r\n", "*1\r\n$-1\r\n", "*1\r\n$104857600\r\n", "+OK\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		request, err := ReadRequest(payload)
		if err != nil || request.Count > MaxArguments {
			return
		}
		if got := AppendArray(nil, request.Arguments()...); !bytes.Equal(got, payload) {
			t.Fatalf("%q was read as %q", payload, got)
		}
	})
}

func FuzzReadReply(f *testing.F) {
	for _, seed := range []string{
		"+OK\r\n", "$4\r\n1234\r\n", ":-1\r\n", "-ERR x\r\n",
		"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Add([]byte("*3\r\n+OK\r\n$1\r\nv\r\n:1\r\n"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		_, _ = ReadReply(payload)
		_, _ = ReadNotification(payload)
	})
}

func TestPagesOfKeysAreParsed(t *testing.T) {
	for name, test := range map[string]struct {
		payload string
		keys    int
		next    string
	}{
		"last page":          {"*1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n", 2, ""},
		"empty last page":    {"*1\r\n*0\r\n", 0, ""},
		"page with a token":  {"*2\r\n*1\r\n$1\r\na\r\n$3\r\n\x00\r\n\r\n", 1, "\x00\r\n"},
		"empty with a token": {"*2\r\n*0\r\n$1\r\nt\r\n", 0, "t"},
	} {
		t.Run(name, func(t *testing.T) {
			reply, err := ReadReply([]byte(test.payload))
			if err != nil || reply.Kind != ReplyPage || len(reply.Keys) != test.keys ||
				string(reply.Next) != test.next || (reply.Next != nil) != (test.next != "") {
				t.Fatalf("%+v, %v", reply, err)
			}
			if again := AppendPage(nil, reply.Keys, reply.Next); string(again) != test.payload {
				t.Errorf("written as %q", again)
			}
		})
	}
	for _, payload := range []string{
		"*0\r\n", "*1\r\n", "*2\r\n*0\r\n", "*2\r\n*0\r\n$0\r\n\r\n",
		"*3\r\n*0\r\n$1\r\nt\r\n$1\r\nt\r\n",
		"*1\r\n*1000000000\r\n$1\r\na\r\n", "*1\r\n*1\r\n$1\r\na\r\nx", "*1\r\n*1\r\n:1\r\n",
	} {
		t.Run(payload, func(t *testing.T) {
			if reply, err := ReadReply([]byte(payload)); !errors.Is(err, ErrSyntax) {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
}

func TestRepliesOfATransactionAreParsed(t *testing.T) {
	payload := "*5\r\n+OK\r\n$-1\r\n:1\r\n$0\r\n\r\n$2\r\n\r\n\r\n"
	reply, err := ReadReply([]byte(payload))
	want := []Reply{
		{Kind: ReplyOK},
		{Kind: ReplyNull},
		{Kind: ReplyInteger, Integer: 1},
		{Kind: ReplyBulk, Bulk: []byte{}},
		{Kind: ReplyBulk, Bulk: []byte("\r\n")},
	}
	if err != nil || reply.Kind != ReplyArray || !reflect.DeepEqual(reply.Replies, want) {
		t.Errorf("%+v, %v", reply, err)
	}
	for _, payload := range []string{
		"*2\r\n+OK\r\n", "*1\r\n+OK\r\n+OK\r\n", "*1\r\n:-1\r\n", "*1\r\n-ERR x\r\n",
		"*1\r\n+ok\r\n", "*1000000000\r\n:0\r\n", "*2\r\n:0\r\n*1\r\n:0\r\n",
	} {
		t.Run(payload, func(t *testing.T) {
			if reply, err := ReadReply([]byte(payload)); !errors.Is(err, ErrSyntax) {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
}

// All returns the arguments beyond those that are kept, too.
func TestAllReturnsEveryArgument(t *testing.T) {
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint(i))
	}
	request, err := ReadRequest(AppendArray(nil, want...))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, argument := range request.All() {
		if i != len(got) {
			t.Errorf("argument %d comes as %d", len(got), i)
		}
		got = append(got, string(argument))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
