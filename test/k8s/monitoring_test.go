package k8s

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// metricName finds the metrics of an expression, or of a line of /metrics: the whole name, with a
// histogram's _bucket, _sum or _count.
var metricName = regexp.MustCompile(`\bholdfast_[a-z_]+[a-z]`)

// Every metric that an alert or the dashboard asks for is one that a node has, and every alert has
// its section in the documentation.
func TestAlertsAndDashboardKnowTheMetrics(t *testing.T) {
	known := scrape(t)
	// a node without certificates does not have it; TestCertificatesOfTheCommandAreEnough looks for
	// it
	known["holdfast_certificate_expiry_seconds"] = true
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	alerts, err := os.ReadFile(filepath.Join(chart, "files", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(alerts, &rules); err != nil {
		t.Fatal(err)
	}
	operations, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, rule := range rules.Groups[0].Rules {
		asked += check(t, known, rule.Alert, rule.Expr)
		if !strings.Contains(string(operations), "\n### "+rule.Alert+"\n") ||
			rule.Annotations["runbook"] != "docs/operations.md#"+strings.ToLower(rule.Alert) {
			t.Errorf("%s has no section in docs/operations.md", rule.Alert)
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile(filepath.Join(chart, "files", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			asked += check(t, known, panel.Title, target.Expr)
		}
	}
	if asked < 30 {
		t.Errorf("only %d metrics are asked for", asked)
	}
}

func check(t *testing.T, known map[string]bool, what, expression string) (asked int) {
	t.Helper()
	for _, metric := range metricName.FindAllString(expression, -1) {
		asked++
		if !known[metric] {
			t.Errorf("%s asks for %s, which no node has", what, metric)
		}
	}
	return asked
}

// scrape returns the names of the metrics of a node that has served a few requests.
func scrape(t *testing.T) map[string]bool {
	t.Helper()
	program := filepath.Join(t.TempDir(), "holdfast")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-trimpath",
		"-o", program, "./cmd/holdfast").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	dev := exec.CommandContext(t.Context(), program, "dev", "--nodes", "1", "--data",
		filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--health.listen",
		"127.0.0.1:0")
	dev.WaitDelay = 5 * time.Second
	output, err := dev.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = dev.Process.Kill() // its data is in the test's temporary folder
		_ = dev.Wait()         // it was killed
	})
	broker, metrics := "", ""
	for lines := bufio.NewScanner(output); lines.Scan() && metrics == ""; {
		switch fields := strings.Fields(lines.Text()); {
		case len(fields) == 2 && fields[0] == "broker":
			broker = fields[1]
		case len(fields) == 2 && fields[0] == "metrics":
			metrics = fields[1]
		}
	}
	for _, command := range [][]string{{"set", "k", "v"}, {"get", "k"}} {
		if _, err := run(t.Context(), program, append(command, "--broker", broker)...); err != nil {
			t.Fatal(err)
		}
	}
	response, err := http.Get(metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	names := map[string]bool{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		names[metricName.FindString(lines.Text())] = true
	}
	return names
}

// In each case of alerts_test.yaml the alerts fire that must fire, and no others.
func TestAlertsFireWhenTheyHaveTo(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("promtool is missing: install Debian's prometheus")
	}
	tests, err := os.ReadFile("alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tests = []byte(strings.Replace(string(tests), "[ALERTS]", "["+
		absolute(t, filepath.Join(chart, "files", "alerts.yaml"))+"]", 1))
	if output, err := exec.CommandContext(t.Context(), promtool, "test", "rules",
		write(t, t.TempDir(), "tests.yaml", tests)).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}
