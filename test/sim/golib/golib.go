// Package golib edits Go's runtime and standard library, for the simulation's binary alone, so that
// a seed decides the order in which the goroutines of a synctest bubble run. Package schedule has
// the functions to control that order; runtime.go.txt implements it.
//
// With it, inside the bubble of virtual time:
//
//   - everything that the runtime draws comes from the schedule's seed: select, map iteration,
//     hashes, math/rand, the order of timers at one instant;
//   - one P runs, goroutines are not preempted, nothing waits for real time, and pools are empty;
//   - selects lock their channels, and contexts cancel their children, in the order in which they
//     were made, not in that of their addresses;
//   - garbage is collected every virtual minute, while all goroutines are idle;
//   - the schedule decides which goroutine is next: Go's order, any, or that of the highest
//     priority (PCT: Burckhardt et al., ASPLOS 2010). Goroutines yield, sleep or lose their
//     priority at synchronisation points, with probabilities that are drawn for each run: blocking
//     channel operations and selects, Lock and RLock, loads, stores and swaps of typed atomics;
//   - a node's goroutines and their timers are a group, which stops as a whole, as at SIGSTOP, for
//     50 µs to 3 s, between any two of its points; one goroutine can sleep as long.
//
// What writes a log line passes no point and draws nothing. A test keeps range over maps with
// addresses in their keys out of the module (test/architecture/maps_test.go).
//
// The edits fit one version of Go. If another version has other text where an edit applies, the
// build fails and names the edit.
package golib

import (
	_ "embed"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"holdfast/test/overlay"
)

//go:embed runtime.go.txt
var runtimeFile string

// Tag is the build tag of a binary that is built with the overlay: without the tag the functions of
// package schedule do nothing.
const Tag = "replay"

// Add adds the edits of the standard library of the installed Go to an overlay.
func Add(o *overlay.Overlay) error {
	output, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("find GOROOT: %w", err)
	}
	root := strings.TrimSpace(string(output)) + "/src"
	o.Add(root, "runtime/simulation.go", runtimeFile)
	return o.Edit(root, edits()...)
}

func edits() []overlay.Edit { return slices.Concat(random(), order(), points(), groups()) }

// replace is an edit of a file below GOROOT/src.
func replace(file, old, by string) overlay.Edit {
	return overlay.Edit{
		File: file, Old: old,
		New: by,
	}
}

// after inserts code behind a text.
func after(file, text, code string) overlay.Edit { return replace(file, text, text+code) }

// before inserts code in front of a text.
func before(file, text, code string) overlay.Edit { return replace(file, text, code+text) }

// random makes the runtime draw from the run's seed inside of a bubble, and makes the process's own
// seed the same each time.
func random() []overlay.Edit {
	return []overlay.Edit{
		after("runtime/rand.go", "func rand() uint64 {\n", "if simStarted { return simRand() }\n"),
		before("runtime/rand.go", "if len(startupRand) >= 16 &&\n",
			"if simStarted = true; simStarted { seed[0] = 1 } else "),
		replace("runtime/select.go", "j := cheaprandn(uint32(norder + 1))",
			"j := uint32((uint64(simRand32()) * uint64(norder+1)) >> 32)"),
		replace("runtime/sema.go", "s.ticket = cheaprand() | 1", "s.ticket = simRand32() | 1"),
		replace("runtime/time.go", "t.rand = cheaprand()", "t.rand = simRand32()"),
		after("crypto/rand/rand.go", "//\n//go:linkname fatal\nfunc fatal(string)\n",
			"\n//go:linkname simRandom runtime.rand\nfunc simRandom() uint64\n"),
		after("crypto/rand/rand.go", "func Read(b []byte) (n int, err error) {\n",
			"if simulated := true; simulated { for i := range b { b[i] = byte(simRandom()) }; return len(b), nil }\n"),
		replace("runtime/mprof.go", "var MemProfileRate int = 512 * 1024",
			"var MemProfileRate int = 0"),
	}
}

// order lets simPick decide which goroutine runs next. Real time and memory addresses no longer
// influence that.
func order() []overlay.Edit {
	return []overlay.Edit{
		// No preemption, and no P is taken from a system call.
		after("runtime/proc.go", "func retake(now int64) uint32 {\n",
			"if simulation.on { return 0 }\n"),
		replace("runtime/proc.go", "if pp.schedtick%61 == 0 && !sched.runq.empty() {",
			"if !simulation.on && pp.schedtick%61 == 0 && !sched.runq.empty() {"),
		before("runtime/proc.go", "// If there's a runnext, it's the next G to run.\n",
			"if simulation.on { if gp := simPick(pp); gp != nil { return gp, false } }\n"),
		replace("runtime/proc.go", "if randomizeScheduler && next && randn(2) == 0 {",
			"if next && simBehind(gp) {"),
		after("runtime/proc.go", "func execute(gp *g, inheritTime bool) {\n", "simNote(gp)\n"),
		// A mutex does not starve by real time.
		replace("internal/sync/mutex.go", "starvationThresholdNs = 1e6",
			"starvationThresholdNs = 1e18"),
		// A context cancels its children in the order in which they were added.
		replace("context/context.go", "children map[canceler]struct{} // set",
			"children map[canceler]uint64 // set"),
		replace("context/context.go", "p.children = make(map[canceler]struct{})",
			"p.children = make(map[canceler]uint64)"),
		replace("context/context.go", "p.children[child] = struct{}{}",
			"p.children[child] = simSerial.Add(1)"),
		replace("context/context.go", "for child := range c.children {",
			"for _, child := range simInOrder(c.children) {"),
		before("context/context.go", "// A Context carries a deadline", inOrder),
		// A select locks its channels, and the timers behind them, in the order in which they were
		// made, not by address.
		after("runtime/chan.go", "\tbubble   *synctestBubble\n", "simSerial uint64\n"),
		after("runtime/chan.go",
			"\tc.dataqsiz = uint(size)\n\tif b := getg().bubble; b != nil {\n\t\tc.bubble = b\n\t}\n", "c.simSerial = atomic.Xadd64(&simChannels, 1)\n"),
		replace("runtime/select.go", "return uintptr(unsafe.Pointer(c))",
			"return uintptr(c.simSerial)"),
		// The content of a pool depends on when garbage was collected, and on what was logged: a
		// run that is replayed may log more. So pools are always empty. The variable in the
		// condition keeps vet from calling the rest of the function unreachable.
		after("sync/pool.go", "func (p *Pool) Get() any {\n",
			"if simEmpty := true; simEmpty { if p.New != nil { return p.New() }; return nil }\n"),
		replace("sync/pool.go", "\tif x == nil {\n\t\treturn\n",
			"\tif simEmpty := true; simEmpty || x == nil {\n\t\treturn\n"),
		// The content of a sync.Map depends on what was logged, too. So its atomics are not
		// synchronisation points.
		replace("internal/sync/hashtriemap.go", `"sync/atomic"`, `"internal/runtime/atomic"`),
		// Garbage is collected while all goroutines of the bubble are idle.
		after("runtime/synctest.go", "\t\tbubble.now = next\n", `
			if simulation.on && next >= simulation.next {
				simulation.next = next + simCollect
				unlock(&bubble.mu)
				GC()
				lock(&bubble.mu)
			}
`),
	}
}

const inOrder = `var simSerial atomic.Uint64

func simInOrder(children map[canceler]uint64) (ordered []canceler) {
	for c := range children {
		i := len(ordered)
		ordered = append(ordered, c)
		for ; i > 0 && children[ordered[i-1]] > children[c]; i-- {
			ordered[i] = ordered[i-1]
		}
		ordered[i] = c
	}
	return ordered
}

`

// points turns blocking channel operations, mutexes and typed atomics into synchronisation points.
func points() []overlay.Edit {
	const point = "runtime_simPoint()\n"
	edits := []overlay.Edit{
		after("runtime/chan.go",
			"func chansend(c *hchan, ep unsafe.Pointer, block bool, callerpc uintptr) bool {\n",
			"if block { simPoint() }\n"),
		after("runtime/chan.go",
			"func chanrecv(c *hchan, ep unsafe.Pointer, block bool) (selected, received bool) {\n",
			"if block { simPoint() }\n"),
		after("runtime/select.go", "nsends, nrecvs int, block bool) (int, bool) {\n",
			"if block { simPoint() }\n"),
		after("sync/runtime.go", "// defined in package runtime\n", "\nfunc "+point),
		before("sync/mutex.go", "m.mu.Lock()\n", point),
		after("sync/rwmutex.go", "func (rw *RWMutex) RLock() {\n", point),
		after("sync/atomic/type.go", "import \"unsafe\"\n", "\nfunc "+point),
		// A goroutine that waits for a mutex counts as durably blocked: its holder may be stopped,
		// or sleep at a point.
		after("runtime/runtime2.go", "var isIdleInSynctest = [len(waitReasonStrings)]bool{\n",
			"waitReasonSyncMutexLock: true,\nwaitReasonSyncRWMutexRLock: true,\nwaitReasonSyncRWMutexLock: true,\n"),
	}
	for _, of := range []struct{ receiver, value string }{
		{"Bool", "bool"},
		{"Int32", "int32"},
		{"Int64", "int64"},
		{"Uint32", "uint32"},
		{"Uint64", "uint64"},
		{"Pointer[T]", "*T"},
	} {
		for _, method := range []string{
			"Load() %s {", "Store(val %s) {",
			"CompareAndSwap(old, new %s) (swapped bool) {",
		} {
			edits = append(edits,
				after("sync/atomic/type.go",
					fmt.Sprintf("func (x *"+of.receiver+") "+method, of.value),
					"runtime_simPoint();"))
		}
	}
	return edits
}

// groups gives goroutines a group. The goroutines and timers that a goroutine starts inherit its
// group. While a group is stopped, its goroutines do not run.
func groups() []overlay.Edit {
	return []overlay.Edit{
		after("runtime/runtime2.go", "\tbubble  *synctestBubble\n",
			"simSerial, simPriority uint64\nsimGroup uint32\nsimQuiet int32\n"),
		before("runtime/proc.go", "// Track initial transition?\n", "simCreate(newg, callergp)\n"),
		before("runtime/proc.go",
			"if sched.disable.user && !schedEnabled(gp) {\n\t\t// Scheduling of",
			"if simFreeze(gp) { goto top }\n"),
		after("runtime/time.go", "only set when isFake\n",
			"simGroup uint32 // of the goroutine that made it\n"),
		before("runtime/time.go", "t.modify(when, period, f, arg, 0)\n\tt.init = true\n",
			"t.simGroup = getg().simGroup\n"),
		after("runtime/time.go", "\t\tgp.bubble = bubble\n", "gp.simGroup = t.simGroup\n"),
		after("runtime/time.go", "\t\tgp.bubble = nil\n", "gp.simGroup = 0\n"),
	}
}
