// Package testcert makes certificates for tests.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates into a folder of the test's.
type Authority struct {
	t           testing.TB
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes an authority, with its certificate in ca.crt.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	a.Issue("ca")
	return a
}

// File returns the path of a file in the authority's folder.
func (a *Authority) File(name string) string { return filepath.Join(a.dir, name) }

// Issue writes NAME.crt and NAME.key, a certificate of the hosts (names or IP addresses) for servers and clients. The first
// that is issued is the authority's own.
func (a *Authority) Issue(name string, hosts ...string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: a.certificate == nil, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	parent, parentKey := a.certificate, a.key
	if parent == nil {
		parent, parentKey = template, key
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
	if a.certificate == nil {
		a.key = key
		if a.certificate, err = x509.ParseCertificate(der); err != nil {
			a.t.Fatal(err)
		}
	}
}

func (a *Authority) write(name, kind string, der []byte) {
	a.t.Helper()
	const readable = 0o644 // brokers drop their privileges before they read
	if err := os.WriteFile(a.File(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), readable); err != nil {
		a.t.Fatal(err)
	}
}
