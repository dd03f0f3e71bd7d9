package outbox

import (
	"slices"
	"testing"

	"holdfast/fsm"
)

// shrink halves a page of keys. A page of one key, or a value, becomes an error. A notification
// does not shrink.
func TestReplyThatIsTooLargeShrinks(t *testing.T) {
	m := fsm.New()
	start := fsm.Command{Kind: fsm.KindLeaderStart, Nonce: 1, Version: fsm.Version}
	var sets []fsm.Command
	for _, key := range []string{"a", "b", "c", "d"} {
		sets = append(sets, fsm.Command{Kind: fsm.KindSet, Key: []byte(key)})
	}
	for i, entry := range []fsm.Entry{
		{Commands: []fsm.Command{start}},
		{Term: 1, Number: 1, Commands: sets},
	} {
		if _, err := m.Apply(uint64(i+1), 1, fsm.AppendEntry(nil, &entry)); err != nil {
			t.Fatal(err)
		}
	}
	o := reply("press", "c")
	o.Result = m.Read(&fsm.Command{Kind: fsm.KindScan, Key: []byte("*")})
	var sizes []int
	for o.shrink() && o.Result.Code == fsm.CodeKeys {
		sizes = append(sizes, len(o.Result.Page.Keys))
		if o.Result.Page.Next == "" {
			t.Error("a page was shortened, and has no continuation token")
		}
	}
	if !slices.Equal(sizes, []int{2, 1}) || o.Result.Error != fsm.ErrorReplyTooLarge || o.shrink() {
		t.Errorf("sizes %v, then %+v", sizes, o.Result)
	}
	o.Result = fsm.Result{Code: fsm.CodeValue, Value: "v"}
	if !o.shrink() || o.Result.Error != fsm.ErrorReplyTooLarge {
		t.Errorf("a value became %+v", o.Result)
	}
	notification := &Output{Event: &fsm.Event{}, Receiver: &fsm.Receiver{}}
	if notification.shrink() {
		t.Error("a notification shrinks")
	}
}
