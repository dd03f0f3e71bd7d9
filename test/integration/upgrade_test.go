package integration

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/testwait"
	"holdfast/test/mutants"
)

// A rolling upgrade fails no request, and nothing of the new version of the log is written before
// every member knows it. A build that does not know the version in force stops, and says why.
func TestRollingUpgradeFailsNoRequest(t *testing.T) {
	next := filepath.Join(t.TempDir(), "holdfast-next")
	overlay, err := mutants.Overlay(t.Context(), t.TempDir(), mutants.NextVersion())
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-overlay", overlay, "-o", next, "holdfast/cmd/holdfast")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	broker := startMosquitto(t)
	m := prepareMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info")
	for _, s := range m {
		s.start(t)
	}
	m.waitReady(t)
	l := startLoad(t, broker.address, 16, 10*time.Millisecond)
	l.progress(100)
	for i, s := range m {
		if version := m.leader(t).logVersion(t); version != 1 {
			t.Errorf("with %d old members version %d of the log is in force", 3-i, version)
		}
		if code, _ := s.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		s.program = next
		s.start(t)
		m.waitReady(t)
		l.progress(100)
	}
	m.awaitAgreement(t, 3)
	testwait.Until(t, "the next version is in force",
		func() bool { return m.leader(t).logVersion(t) == 2 })
	l.progress(100)
	l.stop()
	l.check(t, broker.address)

	s := m.other(m.leader(t))
	s.stop()
	s.program = binary
	s.start(t)
	select {
	case <-s.exited:
	case <-time.After(time.Minute):
		t.Fatal("the old build runs with the newer log")
	}
	if code := s.command.ProcessState.ExitCode(); code == 0 ||
		!strings.Contains(s.output.String(),
			"written by a newer version of holdfast: upgrade this node") {
		t.Errorf("exit code %d, without the reason", code)
	}
}

// logVersion returns the version of the log that is in force, as the server reports it.
func (s *server) logVersion(t testing.TB) uint32 {
	t.Helper()
	var status struct {
		LogVersion uint32 `json:"logVersion"`
	}
	if _, err := s.api(http.MethodGet, "/v1/status", nil, &status); err != nil {
		t.Fatal(err)
	}
	return status.LogVersion
}
