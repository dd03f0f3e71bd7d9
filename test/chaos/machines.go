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

// hold keeps a machine from being started until each hold is released. It waits for a start or a check of the machine that is under way.
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

// release starts a machine that nobody else holds, with the faults of its network.
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

// alive reports whether the machine's first process is there, as far as can be told without asking Docker, which is slow.
func (m *machine) alive() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pidText != "" && exists("/proc/"+m.pidText)
}

// setTrouble changes what is wrong with a machine.
func (m *machine) setTrouble(change func(*record.Trouble)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.trouble)
	return record.Write(m.folder, "trouble.json", m.trouble)
}

// setClock sets a machine's wall clock ahead, or back.
func (m *machine) setClock(offset time.Duration) error {
	name := filepath.Join(m.folder, "clock")
	if err := os.WriteFile(name+".new", []byte(fmt.Sprint(offset.Milliseconds())), 0o644); err != nil {
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

// mark notes that a machine's disk is damaged, or its node removed.
func (m *machine) mark(damaged, removed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.damaged, m.removed = damaged, removed
}

// excuse lets a machine end by itself for a while.
func (m *machine) excuse() {
	const while = 45 * time.Second // a node ends when a call of its disk takes longer than 30 s, the DiskDeadline of the profile edge
	m.mu.Lock()
	defer m.mu.Unlock()
	m.excused = time.Now().Add(while)
}

// reasons reports whether the machine has a reason to end by itself, and whether its disk has to be emptied for it to run again.
func (m *machine) reasons() (excused, mustWipe bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mustWipe = m.damaged || m.removed
	return mustWipe || time.Now().Before(m.excused), mustWipe
}

// leader returns the machine that leads, as far as is known.
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

// operate runs a command of the product's own on a machine.
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

// verify compares the state hashes of all replicas. missing is why not all were compared. Hashes that differ are recorded as a failure.
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

// settle waits until the leader has the state hashes of all replicas, for at most patience. It returns what is missing then. Hashes that differ
// are recorded as a failure.
func (w *world) settle(ctx context.Context, patience time.Duration) (v verification, missing string) {
	for deadline := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		if v, missing = w.verify(ctx); missing == "" || time.Now().After(deadline) || ctx.Err() != nil {
			return v, missing
		}
	}
}
