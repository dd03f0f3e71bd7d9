package fsm

import (
	"runtime"
	"strings"
	"testing"
	"unsafe"
	"weak"
)

// An event that was removed from the list of unpublished events is freed, although later events
// remain in the list.
func TestRemovedEventsAreFreed(t *testing.T) {
	var u unpublished
	var removed []weak.Pointer[byte]
	for index := range uint64(100) {
		value := strings.Repeat("x", 1<<20)
		removed = append(removed, weak.Make(unsafe.StringData(value)))
		u.add(Event{Index: index, Key: "k", Value: value})
	}
	u.add(Event{Index: 100, Key: "k", Value: "small"})
	u.release(99)
	runtime.GC()
	for index, value := range removed {
		if value.Value() != nil {
			t.Fatalf("event %d is still in memory", index)
		}
	}
	if len(u.events) != 1 || u.bytes != u.events[0].size() {
		t.Errorf("%d events of %d bytes are left", len(u.events), u.bytes)
	}
}

// The event of a deletion does not keep the deleted value in memory.
func TestDeletionKeepsOnlyTheKey(t *testing.T) {
	l := newLeader(t)
	l.apply(watching("c", "k"), l.set("k", strings.Repeat("x", 1<<20)))
	found, _ := l.m.values.find([]byte("k"))
	value := weak.Make(unsafe.StringData(found.value()))
	found = nil
	l.log = nil // it has the value, too
	deletion := l.apply(del("k"))
	runtime.GC()
	if value.Value() != nil || len(deletion.Events) != 1 || deletion.Events[0].Key != "k" {
		t.Errorf("the value is in memory: %t; events: %d", value.Value() != nil,
			len(deletion.Events))
	}
}
