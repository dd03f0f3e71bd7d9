package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func moment() time.Time { return time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC) }

// made is an authority in a folder, with the files of what it has issued.
type made struct {
	*Authority
	t   *testing.T
	dir string
}

func newMade(t *testing.T) *made {
	t.Helper()
	authority, pair, err := NewAuthority("test", 10*Year, moment())
	if err != nil {
		t.Fatal(err)
	}
	m := &made{authority, t, t.TempDir()}
	m.write("ca", pair)
	return m
}

func (m *made) file(name string) string { return filepath.Join(m.dir, name) }

func (m *made) write(name string, pair Pair) {
	m.t.Helper()
	if err := pair.Write(m.file(name+".crt"), m.file(name+".key")); err != nil {
		m.t.Fatal(err)
	}
}

func (m *made) issue(name string, r Request, lifetime time.Duration) {
	m.t.Helper()
	pair, err := m.Issue(r, lifetime, moment())
	if err != nil {
		m.t.Fatal(err)
	}
	m.write(name, pair)
}

func TestCheckSaysWhatTheOtherSideWouldRefuse(t *testing.T) {
	ca, other := newMade(t), newMade(t)
	ca.issue("node", Request{Name: "n1", Hosts: []string{"n1", "10.0.0.1"}, Use: Node}, Year)
	ca.issue("client", Request{Name: "line-7", Use: Client}, Year)
	ca.issue("server", Request{Name: "broker", Hosts: []string{"b.example"}, Use: Server}, Year)
	member := Purpose{
		Listens: true, Dials: true, CA: ca.file("ca.crt"), Names: []string{"n1"},
	}
	later := moment().Add(Year + time.Minute)
	for name, test := range map[string]struct {
		file    string
		purpose Purpose
		now     time.Time
		want    []string // parts of the error; none is no error
	}{
		"a member":       {"node", member, moment(), nil},
		"by its address": {"node", Purpose{Names: []string{"x", "10.0.0.1"}}, moment(), nil},
		"a client": {
			"client",
			Purpose{Dials: true, CA: ca.file("ca.crt")},
			moment(),
			nil,
		},
		"a server": {"server", Purpose{Listens: true}, moment(), nil},
		"expired": {
			"node", member, later,
			[]string{"expired at 2027-11-29T10:00:00Z"},
		},
		"before its time": {
			"node", member, moment().Add(-time.Hour),
			[]string{"not valid before"},
		},
		"a client that listens": {
			"client",
			Purpose{Listens: true},
			moment(),
			[]string{"not for servers"},
		},
		"a server that dials": {
			"server",
			Purpose{Dials: true},
			moment(),
			[]string{"not for clients"},
		},
		"another's name": {
			"node",
			Purpose{Names: []string{"n2"}},
			moment(),
			[]string{"names n1, 10.0.0.1, and must name n2"},
		},
		"another authority": {
			"node",
			Purpose{CA: other.file("ca.crt")},
			moment(),
			[]string{"is not signed by an authority in"},
		},
		"everything at once": {
			"client",
			Purpose{Listens: true, CA: other.file("ca.crt"), Names: []string{"n1"}},
			later,
			[]string{"expired", "not for servers", "names no host", "not signed"},
		},
		"no file": {"none", Purpose{}, moment(), []string{"no such file"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(ca.file(test.file+".crt"), test.purpose, test.now)
			if (err != nil) != (test.want != nil) || err != nil && !errors.Is(err, ErrUnusable) {
				t.Fatalf("%v", err)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v, want %q", err, part)
				}
			}
		})
	}
}

// One authority of a file that is valid is enough: while it is replaced both are there.
func TestOneValidAuthorityIsEnough(t *testing.T) {
	old, err := os.ReadFile(newMade(t).file("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	_, young, err := NewAuthority("young", 20*Year, moment())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, old, 0o600); err != nil {
		t.Fatal(err)
	}
	later := moment().Add(11 * Year)
	if err := CheckAuthorities(file, later); !errors.Is(err, ErrUnusable) {
		t.Errorf("an expired authority: %v", err)
	}
	if err := os.WriteFile(file, append(old, young.Certificate...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckAuthorities(file, later); err != nil {
		t.Errorf("beside a valid one: %v", err)
	}
}

// What is issued works in TLS, and no longer than its authority.
func TestIssuedCertificatesAreTrusted(t *testing.T) {
	ca := newMade(t)
	ca.issue("n1", Request{Name: "n1", Hosts: []string{"n1"}, Use: Node}, 100*Year)
	pair, err := tls.LoadX509KeyPair(ca.file("n1.crt"), ca.file("n1.key"))
	if err != nil {
		t.Fatal(err)
	}
	if !pair.Leaf.NotAfter.Equal(ca.certificate.NotAfter) {
		t.Errorf("valid until %v, its authority until %v", pair.Leaf.NotAfter,
			ca.certificate.NotAfter)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.certificate)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, DNSName: "n1", CurrentTime: moment(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		t.Error(err)
	}
	if _, err := ca.Issue(Request{Name: "n2"}, Year, moment().Add(11*Year)); !errors.Is(err,
		ErrUnusable) {
		t.Errorf("an authority that has expired signs: %v", err)
	}
}

// A renewed certificate says what the old one said, and its files are for who could read them.
func TestRenewedCertificateHasTheSameNames(t *testing.T) {
	ca := newMade(t)
	ca.issue("n1", Request{Name: "n1", Hosts: []string{"n1", "10.0.0.1"}, Use: Node}, Year)
	const group = 0o640
	if err := os.Chmod(ca.file("n1.key"), group); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(ca.file("ca.crt"), ca.file("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	old, err := Read(ca.file("n1.crt"))
	if err != nil {
		t.Fatal(err)
	}
	later := moment().Add(2 * Year)
	pair, err := loaded.Renew(old[0], later)
	if err != nil {
		t.Fatal(err)
	}
	ca.write("n1", pair)
	if err := Check(ca.file("n1.crt"), Purpose{
		Listens: true, Dials: true, CA: ca.file("ca.crt"), Names: []string{"10.0.0.1"},
	}, later); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(ca.file("n1.key")); err != nil || info.Mode().Perm() != group {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := newMade(t).Renew(old[0], later); !errors.Is(err, ErrUnusable) {
		t.Errorf("another authority renews it: %v", err)
	}
}

func TestKeysAreForTheirOwnerAlone(t *testing.T) {
	ca := newMade(t)
	for file, want := range map[string]os.FileMode{"ca.key": 0o600, "ca.crt": 0o644} {
		if info, err := os.Stat(ca.file(file)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
	ca.issue("n1", Request{Name: "n1", Use: Node}, Year)
	for name, files := range map[string][2]string{
		"another's key": {"ca.crt", "n1.key"}, "no authority": {"n1.crt", "n1.key"},
		"no key": {"ca.crt", "ca.crt"},
	} {
		if _, err := Load(ca.file(files[0]), ca.file(files[1])); !errors.Is(err, ErrUnusable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// issueBetween makes an authority that is valid between two times, and a certificate of it.
func issueBetween(t *testing.T, name string, from, to time.Time) (ca, certificate []byte) {
	t.Helper()
	authority, pair, err := NewAuthority(name, to.Sub(from), from)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue(Request{Name: "n1", Hosts: []string{"n1"}, Use: Node}, Year, from)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Certificate, leaf.Certificate
}

// † While authorities are replaced a file has several: the one that vouches has to be valid now,
// and the others do not matter.
func TestTheAuthorityThatVouchesHasToBeValid(t *testing.T) {
	const month = 30 * 24 * time.Hour
	now := moment()
	old, oldLeaf := issueBetween(t, "old", now.Add(-month), now.Add(month))
	next, _ := issueBetween(t, "next", now.Add(2*month), now.Add(12*month))
	dir := t.TempDir()
	bundle, leaf := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "n1.crt")
	for file, data := range map[string][]byte{bundle: append(old, next...), leaf: oldLeaf} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	purpose := Purpose{Listens: true, Dials: true, CA: bundle, Names: []string{"n1"}}
	if err := Check(leaf, purpose, now); err != nil {
		t.Errorf("beside an authority of next month: %v", err)
	}
	if end, err := ValidUntil(leaf, bundle, now); err != nil || end.After(now.Add(month)) {
		t.Errorf("%v, %v", end, err)
	}
	if err := Check(leaf, purpose, now.Add(2*month)); !errors.Is(err, ErrUnusable) {
		t.Errorf("after its authority ended: %v", err)
	}
}

// † A pair is replaced as a whole: if the certificate cannot be written, the key stays.
func TestKeyIsNotReplacedAlone(t *testing.T) {
	ca := newMade(t)
	ca.issue("n1", Request{Name: "n1", Use: Node}, Year)
	before, err := os.ReadFile(ca.file("n1.key"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(Request{Name: "n1", Use: Node}, Year, moment())
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Write(ca.file("missing/n1.crt"), ca.file("n1.key")); err == nil {
		t.Fatal("it is written into a folder that is not there")
	}
	if after, err := os.ReadFile(ca.file("n1.key")); err != nil || string(after) != string(before) {
		t.Errorf("the key has changed: %v", err)
	}
	if names, err := filepath.Glob(ca.file("*.key*")); err != nil || len(names) != 2 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

// Of a symbolic link, as systems that deploy certificates use, the target is replaced.
func TestTargetOfALinkIsReplaced(t *testing.T) {
	ca := newMade(t)
	ca.issue("n1", Request{Name: "n1", Use: Node}, Year)
	link := filepath.Join(t.TempDir(), "n1.key")
	if err := os.Symlink(ca.file("n1.key"), link); err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(Request{Name: "n1", Use: Node}, Year, moment())
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Write(ca.file("n1.crt"), link); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(ca.file("n1.key")); err != nil || string(data) != string(pair.Key) {
		t.Errorf("the target is not replaced: %v", err)
	}
}

// A wildcard would be the name of every member, and a port is no part of a name.
func TestHostsAreNamesOrAddresses(t *testing.T) {
	ca := newMade(t)
	for host, good := range map[string]bool{
		"n1.plant.example": true, "10.0.0.1": true, "fd00::1": true, "*": false, "*.plant": false,
		"n1:7400": false, "n1/x": false,
	} {
		if _, err := ca.Issue(Request{Name: "n1", Hosts: []string{host}}, Year,
			moment()); (err == nil) != good {
			t.Errorf("%q: %v", host, err)
		}
	}
}
