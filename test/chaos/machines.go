package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast/test/chaos/record"
)

// hold keeps the harness from starting a machine until release has been called as often as hold. If
// a check or a start of the machine is under way, hold waits for its end.
func (m *machine) hold() {
	m.life.Lock()
	defer m.life.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds++
}

func (m *machine) held() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holds > 0
}

// release ends one hold of a machine. If that was the last one, it starts the machine and applies
// its firewall.
func (w *world) release(ctx context.Context, m *machine) error {
	m.life.Lock()
	defer m.life.Unlock()
	m.mu.Lock()
	m.holds--
	held := m.holds > 0
	m.mu.Unlock()
	if held {
		return nil
	}
	return m.start(ctx)
}

// start starts a machine. m.life must be held.
func (m *machine) start(ctx context.Context) error {
	if err := m.do(ctx, "start"); err != nil {
		return err
	}
	return m.apply(ctx)
}

// alive reports whether the machine's first process is there, as far as can be told without asking
// Docker, which is slow.
func (m *machine) alive() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pidText != "" && exists("/proc/"+m.pidText)
}

// setTrouble changes the faults of a machine's disk and of its path to the broker. The machine
// reads them from trouble.json.
func (m *machine) setTrouble(change func(*record.Trouble)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.trouble)
	return record.Write(m.folder, "trouble.json", m.trouble)
}

// setClock sets how far a machine's wall clock is ahead of the true time. A negative offset sets it
// back.
func (m *machine) setClock(offset time.Duration) error {
	name := filepath.Join(m.folder, "clock")
	if err := os.WriteFile(name+".new", []byte(fmt.Sprint(offset.Milliseconds())),
		0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// wipe empties the disk of a machine that is down.
func (m *machine) wipe() error {
	m.mu.Lock()
	m.damaged, m.removed = false, false
	m.mu.Unlock()
	return os.RemoveAll(filepath.Join(m.folder, "data"))
}

// mark notes whether a machine's disk is damaged, and whether its node was removed from the
// cluster.
func (m *machine) mark(damaged, removed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.damaged, m.removed = damaged, removed
}

// excuse allows a machine's node to exit by itself, from now on for a while, without a failure of
// the run.
func (m *machine) excuse() {
	// a node ends when a call of its disk takes longer than 30 s, the DiskDeadline of the profile
	// edge
	const while = 45 * time.Second
	m.mu.Lock()
	defer m.mu.Unlock()
	m.excused = time.Now().Add(while)
}

// reasons reports whether the machine has a reason to end by itself, and whether its disk has to be
// emptied for it to run again.
func (m *machine) reasons() (excused, mustWipe bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mustWipe = m.damaged || m.removed
	return mustWipe || time.Now().Before(m.excused), mustWipe
}

// leader returns the machine that leads according to the last metrics, or nil. If several say so,
// it is the one with the highest term.
func (w *world) leader() *machine {
	var leader *machine
	term := uint64(0)
	for _, m := range w.machines {
		m.mu.Lock()
		if m.leads && (leader == nil || m.term > term) {
			leader, term = m, m.term
		}
		m.mu.Unlock()
	}
	return leader
}

// operate runs the product's command-line program on a machine.
func (m *machine) operate(ctx context.Context, arguments ...string) (string, error) {
	return m.exec(ctx, append([]string{"/holdfast"}, arguments...)...)
}

// verification is what `holdfast raft verify -o json` prints.
type verification struct {
	Agree    bool `json:"agree"`
	Complete bool `json:"complete"`
	Hashes   []struct {
		Node string `json:"node"`
		Hash string `json:"hash"`
	} `json:"hashes"`
}

// verify compares the state hashes of all replicas. missing says why not all were compared, or is
// empty. Hashes that differ are recorded as a failure.
func (w *world) verify(ctx context.Context) (v verification, missing string) {
	leader := w.leader()
	if leader == nil {
		return v, "there is no leader"
	}
	output, err := leader.operate(ctx, "raft", "verify", "-o", "json", "--timeout", "10s")
	if text := strings.TrimSpace(output); strings.HasPrefix(text, "{") {
		err = json.Unmarshal([]byte(text), &v)
	}
	switch {
	case err != nil:
		return v, err.Error()
	case !v.Agree:
		w.fail("the replicas differ: %+v", v.Hashes)
	}
	if !v.Complete || len(v.Hashes) != len(w.machines) {
		return v, fmt.Sprintf("not all replicas tell their hash: %+v", v.Hashes)
	}
	return v, ""
}

// awaitVerification repeats verify until all replicas were compared, for at most patience. missing
// says why they were not, or is empty. Hashes that differ are recorded as a failure.
func (w *world) awaitVerification(ctx context.Context, patience time.Duration) (v verification,
	missing string,
) {
	for deadline := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		if v, missing = w.verify(ctx); missing == "" || time.Now().After(deadline) ||
			ctx.Err() != nil {
			return v, missing
		}
	}
}
