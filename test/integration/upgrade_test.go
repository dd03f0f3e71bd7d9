package integration

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/testwait"
	"holdfast/test/mutants"
)

// A rolling upgrade fails no request. The old binary lacks all kinds of commands since log version 2: the leader does not propose them before every member
// knows them.
func TestRollingUpgradeFailsNoRequest(t *testing.T) {
	old := filepath.Join(t.TempDir(), "holdfast-1")
	overlay, err := mutants.Overlay(t.Context(), t.TempDir(), mutants.Version1())
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-overlay", overlay, "-o", old, "holdfast/cmd/holdfast")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	broker := startMosquitto(t)
	m := prepareMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info", "--mirrors", "upgraded=mirror/")
	for _, s := range m {
		s.program = old
		s.start(t)
	}
	m.waitReady(t)
	l := startLoad(t, broker.address, 16, 10*time.Millisecond)
	l.progress(100)
	watcher := connect(t, &target{address: broker.address}, "watcher", false)
	for i, s := range m {
		if _, code := m.leader(t).operate(t, "raft", "demote", m.other(m.leader(t)).id, "--yes"); code == 0 {
			t.Errorf("with %d old members a newer command was proposed: code %d", 3-i, code)
		}
		for _, newer := range [][]string{
			{"set", "upgraded", "v", "--if-version", "1:0:StateStore"},
			{"del", "upgraded", "--if-version", "1:0:StateStore"},
			{"scan", "*"},
			{"watch", "--glob", "*"},
		} {
			if _, faults, code := holdfastWith(t, broker.address, "", newer...); code != 3 || !strings.Contains(faults, "the store is older than this program") {
				t.Errorf("with %d old members: %v: code %d, %s", 3-i, newer, code, faults)
			}
		}
		if shown := late(t, broker.address, "mirror/"); len(shown) != 0 {
			t.Errorf("with %d old members mirrors were published: %v", 3-i, shown)
		}
		must(t, watcher.call(request{payload: array("KEYNOTIFY", "*", "GLOB")}), errSyntax)
		must(t, watcher.call(request{payload: array("KEYNOTIFY", "*", "GLOB", "STOP")}), errArguments)
		must(t, watcher.call(request{payload: array("TXN", array("SET", "upgraded", "txn")), properties: []string{"__ts", now()}}), errUnknown)
		if code, _ := s.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		s.program = binary
		s.start(t)
		m.waitReady(t)
		l.progress(100)
	}
	m.awaitAgreement(t, 3)
	testwait.Until(t, "every member was upgraded", func() bool {
		_, code := m.leader(t).operate(t, "raft", "demote", m.other(m.leader(t)).id, "--yes")
		return code == 0
	})
	if _, code := holdfast(t, broker.address, "", "set", "upgraded", "v", "--if-version", "1:0:StateStore"); code != 1 {
		t.Errorf("a condition on the version that is not met: code %d, want 1", code)
	}
	if out, code := holdfast(t, broker.address, "", "scan", "*"); code != 0 || out == "" {
		t.Errorf("SCAN after the upgrade: code %d, %q", code, out)
	}
	must(t, watcher.call(request{payload: array("KEYNOTIFY", "*", "GLOB")}), "+OK\r\n")
	must(t, watcher.call(request{payload: array("TXN", array("GET", "upgraded")), properties: []string{"__ts", now()}}), "*1\r\n$-1\r\n")
	must(t, watcher.call(request{payload: array("SET", "upgraded", "shown"), properties: []string{"__ts", now()}}), "+OK\r\n")
	mirrored(t, broker.address, storeOf(t, broker.address), "upgraded", "mirror/")
	l.stop()
	l.check(t, broker.address)
}
