package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
)

// written returns how many bytes a process has had written to disks, by the kernel's count.
func (s *server) written(t *testing.T) (bytes float64) {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.command.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var rchar, wchar, syscr, syscw, read, wrote int64
	if _, err := fmt.Sscanf(string(content),
		"rchar: %d\nwchar: %d\nsyscr: %d\nsyscw: %d\nread_bytes: %d\nwrite_bytes: %d", &rchar,
		&wchar, &syscr, &syscw, &read, &wrote); err != nil {
		t.Fatal(err)
	}
	return float64(wrote)
}

// TestFiguresDiskBytesPerSet measures how many bytes a SET of 100 bytes costs each node's disk,
// because writes wear flash out. It has no bounds.
func TestFiguresDiskBytesPerSet(t *testing.T) {
	keysForFigures(t)
	for _, logStore := range []string{"boltdb", "wal"} {
		t.Run(logStore, func(t *testing.T) {
			broker := startMosquitto(t)
			m := startMembers(t, 3, "mqtt://"+broker.address, "--log.level", "warn",
				"--cluster.logStore", logStore)
			for _, outstanding := range []string{"1", "16", "256"} {
				before := make([]float64, len(m))
				for i := range m {
					before[i] = m[i].written(t)
				}
				out, code := holdfast(t, broker.address, "", "bench", "--clients", "1",
					"--outstanding", outstanding, "--duration", "10s", "-q", "-o", "json")
				var result struct {
					Requests float64 `json:"requests"`
				}
				if err := json.Unmarshal([]byte(out), &result); err != nil || code != 0 ||
					result.Requests == 0 {
					t.Fatalf("code %d, %v: %s", code, err, out)
				}
				var each [3]float64
				for i := range m {
					each[i] = (m[i].written(t) - before[i]) / result.Requests
				}
				t.Logf("%s, %s outstanding: %.0f SETs; bytes a SET on each node: %.0f", logStore,
					outstanding, result.Requests, each)
			}
			for _, s := range m {
				s.kill()
			}
		})
	}
}
