package integration

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/testcert"
	"holdfast/internal/testwait"
)

// A node and the client commands connect to a broker that demands TLS, a client certificate and a
// login, although the first of its two addresses is dead.
func TestNodesAndCommandsUseTLSAndLogin(t *testing.T) {
	ca := testcert.NewAuthority(t)
	for _, name := range []string{"broker", "node", "person"} {
		ca.Issue(name, "127.0.0.1")
	}
	passwords := ca.File("passwords")
	if output, err := exec.Command(need(t, "mosquitto_passwd"), "-c", "-b", passwords, "user",
		"secret").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	// Mosquitto gives up root's rights before it reads the passwords.
	folder := filepath.Dir(passwords)
	for _, dir := range []string{folder, filepath.Dir(folder)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(passwords, 0o644); err != nil {
		t.Fatal(err)
	}
	broker := startMosquitto(t, "cafile "+ca.File("ca.crt"), "certfile "+ca.File("broker.crt"),
		"keyfile "+ca.File("broker.key"),
		"require_certificate true", "password_file "+passwords, "allow_anonymous false")
	secret := ca.File("secret")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dead := fmt.Sprintf("mqtts://127.0.0.1:%d", freePort(t))
	config := ca.File("holdfast.yaml")
	text := strings.Join([]string{
		"broker:", "  addresses: [" + dead + ", mqtts://" + broker.address + "]",
		"  username: user", "  passwordFile: " + secret,
		"  tls:", "    caFile: " + ca.File("ca.crt"), "    certFile: " + ca.File("node.crt"),
		"    keyFile: " + ca.File("node.key"),
	}, "\n")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := holdfast(t, broker.address, "", "config", "check", config); code != 0 {
		t.Fatalf("config check: code %d: %s", code, out)
	}
	// the certificates that it names do not exist
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	faulty := "node: {id: n1}\nbroker: {addresses: ['mqtt://b:1883']}\nadmin: {listen: '127.0.0.1:0', tls: {caFile: /no/ca, certFile: /no/cert, keyFile: /no/key}}\n"
	if err := os.WriteFile(missing, []byte(faulty), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := holdfast(t, broker.address, "", "config", "check", missing); code != 2 {
		t.Errorf("config check without the certificates: code %d: %s", code, out)
	}
	s := newServer(t, dead+",mqtts://"+broker.address, t.TempDir(), "--config", config)
	s.waitReady(t)
	login := []string{
		"--broker", dead + ",mqtts://" + broker.address, "--ca-file", ca.File("ca.crt"),
		"--cert-file", ca.File("person.crt"),
		"--key-file", ca.File("person.key"), "--username", "user", "--password-file", secret,
	}
	if _, code := holdfast(t, "", "", append([]string{"set", "k", "v"}, login...)...); code != 0 {
		t.Errorf("set: code %d", code)
	}
	if out, code := holdfast(t, "", "", append([]string{"get", "k"}, login...)...); code != 0 ||
		out != "v" {
		t.Errorf("get: code %d, %q", code, out)
	}
	other := testcert.NewAuthority(t)
	for name, arguments := range map[string][]string{
		"another authority":     {"--ca-file", other.File("ca.crt")},
		"no client certificate": {"--cert-file", "", "--key-file", ""},
		"a wrong password":      {"--password-file", ca.File("ca.crt")},
	} {
		t.Run(name, func(t *testing.T) {
			if _, code := holdfast(t, "", "",
				append(append([]string{"get", "k", "--timeout", "3s"}, login...),
					arguments...)...); code == 0 {
				t.Errorf("%s is accepted", name)
			}
		})
	}
}

// When the file with the broker's certificate authority changes, the node accepts the new authority
// without a restart.
func TestAuthorityOfTheBrokerIsReadAgain(t *testing.T) {
	folder := t.TempDir()
	place := func(ca *testcert.Authority) {
		for from, to := range map[string]string{
			"ca.crt": "ca.crt", "broker.crt": "broker.crt",
			"broker.key": "broker.key",
		} {
			data, err := os.ReadFile(ca.File(from))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(folder, to), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	first, second := testcert.NewAuthority(t), testcert.NewAuthority(t)
	first.Issue("broker", "127.0.0.1")
	second.Issue("broker", "127.0.0.1")
	place(first)
	broker := startMosquitto(t, "user root", "certfile "+filepath.Join(folder, "broker.crt"),
		"keyfile "+filepath.Join(folder, "broker.key"))
	s := newServer(t, "mqtts://"+broker.address, t.TempDir(), "--broker.tls.caFile",
		filepath.Join(folder, "ca.crt"))
	s.waitReady(t)
	place(second)
	broker.kill()
	testwait.Until(t, "it has lost its broker",
		func() bool { return httpStatus("http://"+s.health+"/readyz") != http.StatusOK })
	broker.start(t)
	s.waitReady(t)
}

// The certificates of `holdfast tls` are all that a plant needs: for members, for the admin API,
// for the broker and its clients. A client's certificate opens no admin API.
func TestCertificatesOfTheCommandAreEnough(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	made := func(arguments ...string) {
		t.Helper()
		if out, code := holdfast(t, "", "", append([]string{"tls"}, arguments...)...); code != 0 {
			t.Fatalf("tls %v: code %d: %s", arguments, code, out)
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	made("ca", "--dir", dir)
	for _, id := range []string{"n1", "n2", "n3"} {
		made("node", id, "127.0.0.1", "--dir", dir)
	}
	made("admin", "alice", "--dir", dir)
	made("broker", "127.0.0.1", "--dir", dir)
	made("client", "line-7", "--dir", dir)
	for _, folder := range []string{dir, filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))} {
		if err := os.Chmod(folder, 0o755); err != nil { // Mosquitto gives up root's rights
			t.Fatal(err)
		}
	}
	if err := os.Chmod(file("broker.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	broker := startMosquitto(t, "cafile "+file("mqtt-ca.crt"), "certfile "+file("broker.crt"),
		"keyfile "+file("broker.key"), "require_certificate true",
		"use_identity_as_username true")
	client := []string{
		"--ca-file", file("mqtt-ca.crt"), "--cert-file", file("line-7.crt"), "--key-file",
		file("line-7.key"),
	}
	m := prepareMembers(t, 3, "mqtts://"+broker.address)
	for _, s := range m {
		for name, setting := range map[string]string{
			"cluster.tls.certFile": s.id + ".crt", "cluster.tls.keyFile": s.id + ".key",
			"cluster.tls.caFile": "ca.crt", "broker.tls.caFile": "mqtt-ca.crt",
			"broker.tls.certFile": "line-7.crt", "broker.tls.keyFile": "line-7.key",
			"admin.tls.certFile": s.id + ".crt", "admin.tls.keyFile": s.id + ".key",
			"admin.tls.caFile": "ca.crt",
		} {
			s.arguments = append(s.arguments, "--"+name, file(setting))
		}
		s.arguments = slices.DeleteFunc(s.arguments,
			func(a string) bool { return a == "--cluster.tls.insecure" })
		s.start(t)
	}
	m.waitReady(t)
	if out, code := holdfast(t, "", "",
		append([]string{"set", "k", "v", "--broker", "mqtts://" + broker.address},
			client...)...); code != 0 {
		t.Errorf("set: code %d: %s", code, out)
	}
	list := func(name string) (string, int) {
		return holdfast(t, "", "", "raft", "list-peers", "--admin", "https://"+m[0].admin,
			"--ca-file", file("ca.crt"), "--cert-file", file(name+".crt"), "--key-file",
			file(name+".key"))
	}
	if out, code := list("alice"); code != 0 || strings.Count(out, "127.0.0.1:") != 3 {
		t.Errorf("an administrator: code %d: %s", code, out)
	}
	if out, code := list("line-7"); code == 0 {
		t.Errorf("a client of the broker is let in: %s", out)
	}
	for _, name := range []string{
		"cluster.tls.certFile", "cluster.tls.caFile", "broker.tls.certFile", "broker.tls.caFile",
		"admin.tls.certFile", "admin.tls.caFile", "broker",
	} {
		if !strings.Contains(m[0].metrics(t),
			`holdfast_certificate_expiry_seconds{certificate="`+name+`"} 3`) {
			t.Errorf("no metric of %s", name)
		}
	}
	before, err := os.ReadFile(file("n1.crt"))
	if err != nil {
		t.Fatal(err)
	}
	made("renew", file("n1.crt"), "--dir", dir)
	if after, err := os.ReadFile(file("n1.crt")); err != nil || string(after) == string(before) {
		t.Errorf("it is not renewed: %v", err)
	}
	m[0].kill()
	m[0].start(t)
	m.waitReady(t)
}
