// Package testcert makes certificates for tests and benches.
package testcert

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/pki"
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

// IssueAt is Issue at another time, as Issuer.IssueAt.
func (a *Authority) IssueAt(now time.Time, name string, hosts ...string) {
	a.t.Helper()
	if err := a.issuer.IssueAt(now, name, hosts...); err != nil {
		a.t.Fatal(err)
	}
}

// Issuer issues certificates into a folder.
type Issuer struct {
	dir       string
	authority *pki.Authority
}

// NewIssuer makes an authority in a folder, with its certificate in ca.crt.
func NewIssuer(dir string) (*Issuer, error) {
	authority, pair, err := pki.NewAuthority("ca", lifetime, time.Now())
	i := &Issuer{dir, authority}
	if err != nil {
		return nil, err
	}
	return i, i.write("ca", pair)
}

// lifetime is how long the certificates of tests are valid.
const lifetime = 24 * time.Hour

// File returns the path of a file in the issuer's folder.
func (i *Issuer) File(name string) string { return filepath.Join(i.dir, name) }

// Issue writes NAME.crt and NAME.key, a certificate of the hosts (names or IP addresses) for
// servers and clients, valid for a day.
func (i *Issuer) Issue(name string, hosts ...string) error {
	return i.IssueAt(time.Now(), name, hosts...)
}

// IssueAt is Issue at another time: the certificate is valid for a day from then on.
func (i *Issuer) IssueAt(now time.Time, name string, hosts ...string) error {
	pair, err := i.authority.Issue(pki.Request{Name: name, Hosts: hosts, Use: pki.Node}, lifetime,
		now)
	if err != nil {
		return err
	}
	return i.write(name, pair)
}

func (i *Issuer) write(name string, pair pki.Pair) error {
	const readable = 0o644 // brokers drop their privileges before they read
	return errors.Join(os.WriteFile(i.File(name+".crt"), pair.Certificate, readable),
		os.WriteFile(i.File(name+".key"), pair.Key, readable))
}
