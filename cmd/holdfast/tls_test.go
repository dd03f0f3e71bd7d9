package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/server/settings"
	"holdfast/internal/testcert"
)

// tlsCommand runs `holdfast tls` and returns what it printed and its exit code.
func tlsCommand(t *testing.T, arguments ...string) (string, int) {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(append([]string{"tls"}, arguments...))
	code, _ := exitCode(root.ExecuteContext(t.Context()))
	return out.String(), code
}

// Nothing that exists is overwritten, but by renew; and what would not work is refused.
func TestCertificatesAreMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	for _, test := range []struct {
		arguments string
		code      int
		printed   string
	}{
		{"node n1", 2, ""}, // there is no authority
		{"ca --days 0", 2, ""},
		{"ca", 0, "ca.crt"},
		{"ca", 2, ""},
		{"node n1 n1.plant.example 10.0.0.1", 0, "n1.crt"},
		{"node n1", 2, ""},
		{"node ca", 2, ""},
		{"node a/b", 2, ""},
		{"node", 2, ""},
		{"admin alice", 0, "alice.key"},
		{"broker broker.plant.example", 0, "broker.crt"},
		{"client line-7 --days 30", 0, "line-7.crt"},
		{"renew DIR/n1.crt DIR/line-7.crt", 0, "n1.plant.example"},
		{"renew DIR/ca.crt", 2, ""},
		{"renew DIR/n1.key", 2, ""},
		{"renew DIR/none.crt", 2, ""},
		{"renew DIR/alone.crt", 2, ""},
		{"node n2 *", 2, ""},
		{"node n2 n2.x:7400", 2, ""},
	} {
		if strings.Contains(test.arguments, "alone") { // its key is elsewhere
			data, err := os.ReadFile(filepath.Join(dir, "n1.crt"))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "alone.crt"), data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		arguments := strings.Fields(strings.ReplaceAll(test.arguments, "DIR", dir))
		out, code := tlsCommand(t, append(arguments, "--dir", dir)...)
		if code != test.code || !strings.Contains(out, test.printed) {
			t.Errorf("%s: code %d, %q", test.arguments, code, out)
		}
	}
	out, code := tlsCommand(t, "show", filepath.Join(dir, "n1.crt"),
		filepath.Join(dir, "alice.crt"), filepath.Join(dir, "broker.crt"),
		filepath.Join(dir, "mqtt-ca.crt"))
	for _, want := range []string{
		`node "n1", signed by "holdfast cluster", names n1, n1.plant.example, 10.0.0.1, valid until`,
		`client "alice", signed by "holdfast cluster", names no host`,
		`server "broker", signed by "holdfast mqtt", names broker.plant.example`,
		`authority "holdfast mqtt", signed by "holdfast mqtt"`,
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("code %d, want %s: %s", code, want, out)
		}
	}
}

// Files without the key of an authority that signed a certificate cannot renew it.
func TestCertificateOfAnotherAuthorityIsNotRenewed(t *testing.T) {
	mine, other := t.TempDir(), t.TempDir()
	for _, dir := range []string{mine, other} {
		if _, code := tlsCommand(t, "ca", "--dir", dir); code != 0 {
			t.Fatal(code)
		}
	}
	if _, code := tlsCommand(t, "node", "n1", "--dir", mine); code != 0 {
		t.Fatal(code)
	}
	file := filepath.Join(mine, "n1.crt")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, code := tlsCommand(t, "renew", file, "--dir", other); code != 2 {
		t.Errorf("code %d", code)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("it has changed: %v", err)
	}
}

// config check finds what the other sides would refuse, in all settings at once.
func TestCertificatesOfSettingsAreChecked(t *testing.T) {
	ca := testcert.NewAuthority(t)
	ca.Issue("n1", "n1")
	ca.IssueAt(time.Now().Add(-48*time.Hour), "old", "n1")
	s := settings.Default()
	s.Node.ID = "n1"
	use := func(name string) {
		s.Cluster.TLS.CertFile, s.Cluster.TLS.KeyFile = ca.File(name+".crt"), ca.File(name+".key")
		s.Cluster.TLS.CAFile = ca.File("ca.crt")
		s.Admin.TLS = settings.TLS{
			CertFile: s.Cluster.TLS.CertFile, KeyFile: s.Cluster.TLS.KeyFile,
			CAFile: s.Cluster.TLS.CAFile,
		}
	}
	use("n1")
	if err := checkCertificates(&s, time.Now()); err != nil {
		t.Error(err)
	}
	use("old")
	s.Node.ID = "n2"
	err := checkCertificates(&s, time.Now())
	if err == nil {
		t.Fatal("an expired certificate of another name is good")
	}
	for _, want := range []string{"cluster.tls: ", "expired at", "must name n2", "admin.tls: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
