package history

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"holdfast/resp"
)

// event is an invocation or a completion of an operation, as Jepsen writes it down.
type event struct {
	at      time.Duration
	process int
	kind    string // :invoke, :ok, :fail, :info
	op      *Op
}

// WriteEDN writes the reads, writes and compare-and-sets of registers as a history that Jepsen's Knossos and Elle read: maps with
// :process, :type, :f, :key, :value and :time in nanoseconds. A client whose operation has an unknown outcome goes on as another
// process. Nobody may add to the history meanwhile.
func (h *History) WriteEDN(w io.Writer) error {
	var events []event
	processes := make(map[string]int) // by client
	next := 0
	for _, o := range h.Ops {
		if _, _, ok := o.edn(); !ok {
			continue
		}
		process, known := processes[o.Client]
		if !known || o.overlaps(events, process) {
			process, next = next, next+1
			processes[o.Client] = process
		}
		events = append(events, event{o.Call, process, ":invoke", o})
		if !o.Known {
			events = append(events, event{math.MaxInt64, process, ":info", o})
			delete(processes, o.Client)
			continue
		}
		kind := ":ok"
		if o.Verb != Get && o.Reply.Kind != resp.ReplyOK {
			kind = ":fail"
		}
		events = append(events, event{o.Replied, process, kind, o})
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	buffered := bufio.NewWriter(w)
	for i, e := range events {
		f, value, _ := e.op.edn()
		if f == ":read" && e.kind == ":invoke" {
			value = "nil"
		}
		at := "nil"
		if e.at != math.MaxInt64 {
			at = strconv.FormatInt(int64(e.at), 10)
		}
		if _, err := fmt.Fprintf(buffered, "{:index %d, :process %d, :type %s, :f %s, :key %q, :value %s, :time %s}\n",
			i, e.process, e.kind, f, e.op.Key, value, at); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

// overlaps reports whether a process has not ended what it did before.
func (o *Op) overlaps(events []event, process int) bool {
	for i := len(events) - 1; i >= 0; i-- {
		if events[i].process == process {
			return events[i].at > o.Call
		}
	}
	return false
}

// edn returns an operation's function and value, and whether it is one of a register.
func (o *Op) edn() (f, value string, ok bool) {
	if family(o.Key) != "r" || o.Anonymous || o.Known && o.Reply.Kind == resp.ReplyError {
		return "", "", false
	}
	switch {
	case o.Verb == Get && o.Known && o.Reply.Kind == resp.ReplyBulk:
		return ":read", strconv.Quote(string(o.Reply.Bulk)), true
	case o.Verb == Get:
		return ":read", "nil", true
	case o.Verb == Set && o.Condition == Always:
		return ":write", strconv.Quote(o.Value), true
	case o.Verb == Set && o.Condition == NEX:
		expected := cmp.Or(o.Expected, o.Value)
		return ":cas-or-create", "[" + strconv.Quote(expected) + " " + strconv.Quote(o.Value) + "]", true
	case o.Verb == Set:
		return ":create", strconv.Quote(o.Value), true
	case o.Verb == Del:
		return ":delete", "nil", true
	case o.Verb == VDel:
		return ":delete-if", strconv.Quote(o.Value), true
	default:
		return "", "", false
	}
}
