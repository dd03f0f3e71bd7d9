// Package testcert makes certificates for tests and benches.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is an Issuer in a temporary folder of a test. An error ends the test.
type Authority struct {
	t      testing.TB
	issuer *Issuer
}

// NewAuthority makes an authority, with its certificate in ca.crt.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	issuer, err := NewIssuer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{t, issuer}
}

// File returns the path of a file in the authority's folder.
func (a *Authority) File(name string) string { return a.issuer.File(name) }

// Issue writes NAME.crt and NAME.key, as Issuer.Issue does.
func (a *Authority) Issue(name string, hosts ...string) {
	a.t.Helper()
	if err := a.issuer.Issue(name, hosts...); err != nil {
		a.t.Fatal(err)
	}
}

// Issuer issues certificates into a folder.
type Issuer struct {
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewIssuer makes an authority in a folder, with its certificate in ca.crt.
func NewIssuer(dir string) (*Issuer, error) {
	i := &Issuer{dir: dir}
	return i, i.Issue("ca")
}

// File returns the path of a file in the issuer's folder.
func (i *Issuer) File(name string) string { return filepath.Join(i.dir, name) }

// Issue writes NAME.crt and NAME.key, a certificate of the hosts (names or IP addresses) for
// servers and clients, valid for a day. The first certificate that an Issuer issues is the
// authority's own: it signs all others.
func (i *Issuer) Issue(name string, hosts ...string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		BasicConstraintsValid: true, IsCA: i.certificate == nil,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	parent, parentKey := i.certificate, i.key
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if i.certificate == nil {
		i.key = key
		if i.certificate, err = x509.ParseCertificate(der); err != nil {
			return err
		}
	}
	return errors.Join(i.write(name+".crt", "CERTIFICATE", der),
		i.write(name+".key", "EC PRIVATE KEY", keyDER))
}

func (i *Issuer) write(name, kind string, der []byte) error {
	const readable = 0o644 // brokers drop their privileges before they read
	return os.WriteFile(i.File(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}),
		readable)
}
