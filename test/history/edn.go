package history

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/resp"
)

// This file writes histories in Jepsen's form, EDN, for Jepsen's checkers: a map in each line with
// :process, :type, :f, :value, and :time in nanoseconds. A process has one operation at a time, and
// none after an unknown outcome: the next one is of another process.

// WriteKnossos writes the registers: :read, :write, :cas, :cas-or-create, :create, :delete and
// :delete-if on [key value]. Knossos reads it with a model of a register that can be absent.
func (h *History) WriteKnossos(w io.Writer) error {
	return h.writeEDN(w, func(o *Op) (f, value string, ok bool) {
		if family(o.Key) != "r" || o.Anonymous {
			return "", "", false
		}
		f, value = registerEDN(o)
		return f, fmt.Sprintf("[%q %s]", o.Key, value), f != ""
	})
}

// WriteElle writes the keys that are only read and set, with values that are set once, as
// transactions of one operation each: what Elle's rw-register takes.
func (h *History) WriteElle(w io.Writer) error {
	return h.writeEDN(w, func(o *Op) (f, value string, ok bool) {
		if name := family(o.Key); name != "p" && name != "protected" {
			return "", "", false
		}
		switch o.Verb {
		case Get:
			return ":txn", fmt.Sprintf("[[:r %q %s]]", o.Key, readEDN(o)), true
		case Set:
			return ":txn", fmt.Sprintf("[[:w %q %q]]", o.Key, o.Value), true
		default:
			return "", "", false
		}
	})
}

// WriteElleTransactions writes the transactions on the accounts of banks, and the commands on them
// as transactions of one operation: what Elle's rw-register takes. A condition is written as a read
// of the value that it expects.
func (h *History) WriteElleTransactions(w io.Writer) error {
	return h.writeEDN(w, func(o *Op) (f, value string, ok bool) {
		if !isBanking(o) {
			return "", "", false
		}
		var text []string
		for i, part := range o.Operations() {
			switch {
			case part.Verb == Get:
				if o.Applied() && i < len(o.Reply.Replies) {
					// checkSum reports a reply with too few elements
					part.Known, part.Reply = true, o.Reply.Replies[i]
				}
				text = append(text, fmt.Sprintf("[:r %q %s]", part.Key, readEDN(&part)))
			case part.Condition == NX:
				text = append(text,
					fmt.Sprintf("[:r %q nil] [:w %q %q]", part.Key, part.Key, part.Value))
			default:
				text = append(text, fmt.Sprintf("[:r %q %q] [:w %q %q]", part.Key, part.Expected,
					part.Key, part.Value))
			}
		}
		return ":txn", "[" + strings.Join(text, " ") + "]", true
	})
}

// readEDN returns the value that a GET returned, or nil.
func readEDN(o *Op) string {
	if o.Known && o.Reply.Kind == resp.ReplyBulk {
		return strconv.Quote(string(o.Reply.Bulk))
	}
	return "nil"
}

// registerEDN returns :f and :value of an operation. f is empty for an operation that the register
// model lacks.
func registerEDN(o *Op) (f, value string) {
	switch {
	case o.Verb == Get:
		return ":read", readEDN(o)
	case o.Verb == Set && o.Condition == Always:
		return ":write", strconv.Quote(o.Value)
	case o.Verb == Set && o.Condition == IfVer:
		// values are unique, so a value stands for its version
		return ":cas", "[" + strconv.Quote(o.Expected) + " " + strconv.Quote(o.Value) + "]"
	case o.Verb == Del && o.Condition == IfVer:
		return ":delete-if", strconv.Quote(o.Expected)
	case o.Verb == Set && o.Condition == NEX:
		return ":cas-or-create", "[" + strconv.Quote(cmp.Or(o.Expected, o.Value)) + " " +
			strconv.Quote(o.Value) + "]"
	case o.Verb == Set:
		return ":create", strconv.Quote(o.Value)
	case o.Verb == Del:
		return ":delete", "nil"
	case o.Verb == VDel:
		return ":delete-if", strconv.Quote(o.Value)
	default:
		return "", ""
	}
}

// event is an invocation or a completion of an operation.
type event struct {
	at      time.Duration
	process int
	kind    string // :invoke, :ok, :fail, :info
	op      *Op
}

func (h *History) writeEDN(w io.Writer, describe func(*Op) (f, value string, ok bool)) error {
	events := events(h.Ops, func(o *Op) bool { _, _, ok := describe(o); return ok })
	buffered := bufio.NewWriter(w)
	for i, e := range events {
		o := *e.op
		if e.kind == ":invoke" {
			o.Known = false // what was read is not known yet
		}
		f, value, _ := describe(&o)
		at := "nil"
		if e.at != math.MaxInt64 {
			at = strconv.FormatInt(int64(e.at), 10)
		}
		if _, err := fmt.Fprintf(buffered,
			"{:index %d, :process %d, :type %s, :f %s, :value %s, :time %s}\n", i, e.process,
			e.kind, f, value, at); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

// events returns the invocations and completions of operations, in the order of time.
func events(ops []*Op, wanted func(*Op) bool) (events []event) {
	type process struct {
		number int
		// when its last operation ended; the end of time if the outcome is unknown
		free time.Duration
	}
	processes := make(map[string][]*process) // by client
	count := 0
	for _, o := range ops {
		if !wanted(o) {
			continue
		}
		var own *process
		for _, p := range processes[o.Client] {
			if p.free <= o.Call {
				own = p
			}
		}
		if own == nil {
			own = &process{number: count}
			count++
			processes[o.Client] = append(processes[o.Client], own)
		}
		events = append(events, event{o.Call, own.number, ":invoke", o})
		if !o.Known {
			own.free = math.MaxInt64
			events = append(events, event{math.MaxInt64, own.number, ":info", o})
			continue
		}
		own.free = o.Replied
		kind := ":ok"
		if o.Verb == Get && o.Reply.Kind == resp.ReplyError || o.Verb != Get && !o.Applied() {
			kind = ":fail"
		}
		events = append(events, event{o.Replied, own.number, kind, o})
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	return events
}
