package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority makes certificates for a test.
type authority struct {
	t           *testing.T
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.certificate, a.key = a.issue(name, nil, nil)
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue writes NAME.crt and NAME.key; without a parent the certificate vouches for itself. It is of 127.0.0.1, or of the hosts
// instead.
func (a *authority) issue(name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey, hosts ...string) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true, IsCA: parent == nil, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	if len(hosts) > 0 {
		template.IPAddresses = nil
		for _, host := range hosts {
			if ip := net.ParseIP(host); ip != nil {
				template.IPAddresses = append(template.IPAddresses, ip)
			} else {
				template.DNSNames = append(template.DNSNames, host)
			}
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".crt", "CERTIFICATE", der)
	a.write(name+".key", "EC PRIVATE KEY", keyDER)
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return parsed, key
}

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o644); err != nil {
		a.t.Fatal(err)
	}
}

// A node and the commands against a broker that wants TLS, a client certificate, and a login; the first broker of two is down.
func TestTLSAndLogin(t *testing.T) {
	ca := newAuthority(t, "ca")
	for _, name := range []string{"broker", "node", "person"} {
		ca.issue(name, ca.certificate, ca.key)
	}
	passwords := ca.file("passwords")
	if output, err := exec.Command(need(t, "mosquitto_passwd"), "-c", "-b", passwords, "user", "secret").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	// Mosquitto gives up root's rights before it reads them.
	for _, dir := range []string{ca.dir, filepath.Dir(ca.dir)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(passwords, 0o644); err != nil {
		t.Fatal(err)
	}
	broker := startMosquitto(t, "cafile "+ca.file("ca.crt"), "certfile "+ca.file("broker.crt"), "keyfile "+ca.file("broker.key"),
		"require_certificate true", "password_file "+passwords, "allow_anonymous false")
	secret := ca.file("secret")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dead := fmt.Sprintf("mqtts://127.0.0.1:%d", freePort(t))
	config := ca.file("holdfast.yaml")
	text := strings.Join([]string{
		"broker:", "  addresses: [" + dead + ", mqtts://" + broker.address + "]", "  username: user", "  passwordFile: " + secret,
		"  tls:", "    caFile: " + ca.file("ca.crt"), "    certFile: " + ca.file("node.crt"), "    keyFile: " + ca.file("node.key"),
	}, "\n")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := holdfast(t, broker.address, "", "config", "check", config); code != 0 {
		t.Fatalf("config check: code %d: %s", code, out)
	}
	s := newServer(t, dead+",mqtts://"+broker.address, t.TempDir(), "--config", config)
	s.waitReady(t)
	login := []string{
		"--broker", dead + ",mqtts://" + broker.address, "--ca-file", ca.file("ca.crt"), "--cert-file", ca.file("person.crt"),
		"--key-file", ca.file("person.key"), "--username", "user", "--password-file", secret,
	}
	if _, code := holdfast(t, "", "", append([]string{"set", "k", "v"}, login...)...); code != 0 {
		t.Errorf("set: code %d", code)
	}
	if out, code := holdfast(t, "", "", append([]string{"get", "k"}, login...)...); code != 0 || out != "v" {
		t.Errorf("get: code %d, %q", code, out)
	}
	other := newAuthority(t, "other")
	for name, arguments := range map[string][]string{
		"another authority":     {"--ca-file", other.file("other.crt")},
		"no client certificate": {"--cert-file", "", "--key-file", ""},
		"a wrong password":      {"--password-file", ca.file("ca.crt")},
	} {
		if _, code := holdfast(t, "", "", append(append([]string{"get", "k", "--timeout", "3s"}, login...), arguments...)...); code == 0 {
			t.Errorf("%s is accepted", name)
		}
	}
}
