package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// benchResult is what these tests read of `holdfast bench -o json`.
type benchResult struct {
	Clients    int     `json:"clients"`
	Requests   int64   `json:"requests"`
	Errors     int64   `json:"errors"`
	Unknown    int64   `json:"unknown"`
	Rate       float64 `json:"requestsPerSecond"`
	TargetRate float64 `json:"targetRate"`
	P50        int64   `json:"p50"`
	P99        int64   `json:"p99"`
	Max        int64   `json:"max"`
}

func bench(t *testing.T, address string, arguments ...string) (r benchResult) {
	t.Helper()
	out, code := holdfast(t, address, "",
		append([]string{"bench", "-q", "-o", "json", "--duration", "1s"}, arguments...)...)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if r.Errors+r.Unknown > 0 || r.Requests == 0 || r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.Max {
		t.Errorf("%q: %+v", arguments, r)
	}
	return r
}

// holdfast bench fills its keys if asked, measures a closed loop or an open loop at a fixed rate,
// and writes a histogram. It rejects invalid flags.
func TestBenchHoldsRateAndWritesAHistogram(t *testing.T) {
	target := startBehindMosquitto(t)
	if r := bench(t, target.address, "--outstanding", "8", "--clients", "2", "--ratio", "50:50",
		"--keys", "50", "--fill", "--warmup", "100ms"); r.Clients != 2 || r.TargetRate != 0 {
		t.Errorf("closed loop: %+v", r)
	}
	if out, code := holdfast(t, target.address, "", "get", "holdfast-bench/00049"); code != 0 ||
		len(out) < 100 {
		t.Errorf("the keys were not filled: %d bytes, exit code %d", len(out), code)
	}
	file := filepath.Join(t.TempDir(), "latency.hgrm")
	if r := bench(t, target.address, "--rate", "200", "--outstanding", "64", "--histogram",
		file); r.Rate < 150 || r.Rate > 210 || r.TargetRate != 200 {
		t.Errorf("open loop at 200/s: %+v", r)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "Percentile") {
		t.Errorf("histogram: %v, %q", err, text)
	}
	out, code := holdfast(t, target.address, "", "bench", "--duration", "2s", "--outstanding", "4")
	if code != 0 || !strings.Contains(out, "requests/s") || !strings.Contains(out, "p99.9") {
		t.Errorf("table: %d, %s", code, out)
	}
	for _, wrong := range [][]string{{"--rate", "-1"}, {"--ratio", "x"}, {"--client-id", "c"}} {
		t.Run(strings.Join(wrong, " "), func(t *testing.T) {
			if out, code := holdfast(t, target.address, "",
				append([]string{"bench"}, wrong...)...); code != 2 {
				t.Errorf("%q: exit code %d: %s", wrong, code, out)
			}
		})
	}
}
