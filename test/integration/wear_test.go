package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/client"
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

// processor returns the processor time that a process has used.
func (s *server) processor(t *testing.T) time.Duration {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.command.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	// the fields after the name, which may have spaces: the 12th and the 13th are user and system
	_, after, _ := strings.Cut(string(content), ") ")
	fields := strings.Fields(after)
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	const tick = 10 * time.Millisecond // of the kernel, for user space
	return time.Duration(ticks) * tick
}

// TestFiguresIdle measures what three nodes need while nobody asks for anything: alone, and with a
// thousand clients that are connected, of which a hundred watch a key. It has no bounds.
func TestFiguresIdle(t *testing.T) {
	keysForFigures(t)
	const (
		clients  = 1000
		watching = 100
		settle   = 30 * time.Second // elections, and what a hundred watches write
		measured = time.Minute
	)
	for _, profile := range []string{"lan", "edge"} {
		broker := startMosquitto(t)
		m := startMembers(t, 3, "mqtt://"+broker.address, "--log.level", "warn",
			"--cluster.profile", profile)
		measure := func(what string) {
			<-time.After(settle)
			leader := m.leader(t)
			before := make(map[*server][2]float64)
			for _, s := range m {
				before[s] = [2]float64{s.processor(t).Seconds(), s.written(t)}
			}
			<-time.After(measured)
			for _, s := range m {
				role := "follower"
				if s == leader {
					role = "leader"
				}
				t.Logf("%s, %s, %s: %.2f %% of a core, %.0f B/s written", profile, what, role,
					100*(s.processor(t).Seconds()-before[s][0])/measured.Seconds(),
					(s.written(t)-before[s][1])/measured.Seconds())
			}
		}
		measure("alone")
		for i := range clients {
			store, err := client.Connect(t.Context(),
				client.Config{Addresses: []string{broker.address}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() }) // it was only connected
			if i < watching {
				if _, err := store.Watch(t.Context(), fmt.Sprintf("key-%d", i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		measure(fmt.Sprintf("%d clients, of which %d watch", clients, watching))
		for _, s := range m {
			s.kill()
		}
	}
}
