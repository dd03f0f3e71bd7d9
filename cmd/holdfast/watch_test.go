package main

import (
	"bytes"
	"testing"

	"holdfast/client"
)

// A line of text is one change, whatever the key and the value are, and sends nothing to the terminal but text.
func TestWatchPrintsOneLineForEachChange(t *testing.T) {
	for name, row := range map[string]struct {
		event client.Event
		want  string
	}{
		"plain":               {client.Event{Kind: client.EventSet, Key: "line 7/état", Value: []byte("a b")}, "SET line 7/état a b\n"},
		"a value with a line": {client.Event{Kind: client.EventSet, Key: "k", Value: []byte("x\nDELETED k\x1b[2J")}, "SET k \"x\\nDELETED k\\x1b[2J\"\n"},
		"a key with a line":   {client.Event{Kind: client.EventDeleted, Key: "x\nSET k v"}, "DELETED \"x\\nSET k v\"\n"},
		"a gap":               {client.Event{Kind: client.EventGap, Key: "x\n*"}, "GAP \"x\\n*\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := (&connection{output: "text"}).printEvent(&out, row.event); err != nil || out.String() != row.want {
				t.Errorf("%q, want %q (%v)", out.String(), row.want, err)
			}
		})
	}
}
