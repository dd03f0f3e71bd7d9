package main

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/client/holdfasttest"
)

// Text output has one line for each change, without control characters, whatever bytes the key and
// the value have.
func TestWatchPrintsOneLineForEachChange(t *testing.T) {
	for name, row := range map[string]struct {
		event client.Event
		want  string
	}{
		"plain": {client.Event{
			Kind: client.EventSet, Key: "line 7/état",
			Value: []byte("a b"),
		}, "SET line 7/état a b\n"},
		"a value with a line": {client.Event{
			Kind: client.EventSet, Key: "k",
			Value: []byte("x\nDELETED k\x1b[2J"),
		}, "SET k \"x\\nDELETED k\\x1b[2J\"\n"},
		"a key with a line": {
			client.Event{Kind: client.EventDeleted, Key: "x\nSET k v"},
			"DELETED \"x\\nSET k v\"\n",
		},
		"a gap": {
			client.Event{Kind: client.EventGap, Key: "x\n*"},
			"GAP \"x\\n*\"\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := (&connection{output: "text"}).printEvent(&out, row.event); err != nil ||
				out.String() != row.want {
				t.Errorf("%q, want %q (%v)", out.String(), row.want, err)
			}
		})
	}
}

// A key or a value that is not valid UTF-8 is in base64 in JSON.
func TestWatchPrintsAnyKeyAsJSON(t *testing.T) {
	for name, row := range map[string]struct {
		event client.Event
		want  string
	}{
		"text": {
			client.Event{Kind: client.EventSet, Key: "k", Value: []byte("v")},
			`{"event":"set","key":"k","value":"v"}` + "\n",
		},
		"bytes": {
			client.Event{Kind: client.EventSet, Key: "k\xff", Value: []byte("\xfe")},
			`{"event":"set","keyBase64":"a/8=","valueBase64":"/g=="}` + "\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := (&connection{output: "json"}).printEvent(&out, row.event); err != nil ||
				out.String() != row.want {
				t.Errorf("%q, want %q (%v)", out.String(), row.want, err)
			}
		})
	}
}

// A command ends when its context ends, also if nobody reads its output.
func TestBlockedOutputDoesNotKeepACommand(t *testing.T) {
	store := holdfasttest.Start(t)
	if _, err := store.Client(t).Set(t.Context(), "k", []byte("before")); err != nil {
		t.Fatal(err)
	}
	for name, arguments := range map[string][]string{
		"watch": {"watch", "k"}, "scan": {"scan", "*"},
		"get": {"get", "k"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			reader, writer := io.Pipe()
			root := newRoot()
			root.SetArgs(append(arguments, "--broker", store.URL()))
			root.SetOut(writer)
			root.SetErr(io.Discard)
			ended := make(chan error, 1)
			go func() { ended <- root.ExecuteContext(ctx) }()
			begun := make(chan struct{})
			go func() {
				_, _ = reader.Read(make([]byte, 1)) // the rest is never read
				close(begun)
			}()
			for changed := false; !changed; {
				select {
				case <-begun:
					changed = true
				case <-time.After(20 * time.Millisecond): // until the watch is there
					if _, err := store.Client(t).Set(t.Context(), "k",
						[]byte("changed")); err != nil {
						t.Fatal(err)
					}
				}
			}
			cancel()
			<-ended
			_ = reader.Close() // ends the write that is left
		})
	}
}
