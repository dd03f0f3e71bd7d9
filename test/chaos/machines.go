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

// hold keeps a machine from being started until letGo.
func (m *machine) hold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down++
	m.holds++
}

func (m *machine) letGo() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down--
}

// held reports whether the machine is to be down, and how often it was.
func (m *machine) held() (now bool, holds int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down > 0, m.holds
}

// endedByItself reports whether the node has ended though nobody wanted it to.
func (m *machine) endedByItself(ctx context.Context) bool {
	held, before := m.held()
	if held || m.running(ctx) {
		return false
	}
	held, after := m.held()
	return !held && before == after && ctx.Err() == nil
}

// boot starts a machine that is down, with what is wrong with its network.
func (w *world) boot(ctx context.Context, m *machine) error {
	if held, _ := m.held(); held {
		return nil
	}
	if err := m.do(ctx, "start"); err != nil {
		return err
	}
	return m.apply(ctx)
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
	return os.WriteFile(filepath.Join(m.folder, "clock"), []byte(fmt.Sprint(offset.Milliseconds())), 0o644)
}

// wipe empties the disk of a machine that is down.
func (m *machine) wipe() error {
	m.mu.Lock()
	m.damaged = false
	m.mu.Unlock()
	return os.RemoveAll(filepath.Join(m.folder, "data"))
}

func (m *machine) setDamaged() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.damaged = true
}

// excused reports whether the machine has a reason to end by itself, and whether its disk has to be emptied for it to run again.
func (m *machine) excused() (excused, damaged bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.damaged || m.trouble.FailSync || m.trouble.DiskFull || m.trouble.DiskHangs || m.trouble.SyncDelay > 0, m.damaged
}

// leader returns the machine that leads, as far as is known.
func (w *world) leader() *machine {
	var leader *machine
	for _, m := range w.machines {
		m.mu.Lock()
		if m.leads && (leader == nil || m.term > leader.term) {
			leader = m
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

// verify compares the states of all replicas. It returns why it could not, or what is missing.
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
	case !v.Complete || len(v.Hashes) != len(w.machines):
		return v, fmt.Sprintf("not all replicas tell their hash: %+v", v.Hashes)
	}
	return v, ""
}

// settle waits until all machines are members and have the same state, and returns what is missing at the end of its patience.
func (w *world) settle(ctx context.Context, patience time.Duration) (v verification, missing string) {
	for given := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		if v, missing = w.verify(ctx); missing == "" || time.Now().After(given) || ctx.Err() != nil {
			return v, missing
		}
	}
}
