package tlsconfig

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"holdfast/internal/testcert"
)

// A file of certificates that is half-written is not used, although the complete certificates in it
// could be.
func TestHalfWrittenCertificatesAreNotLoaded(t *testing.T) {
	first, second := testcert.NewAuthority(t), testcert.NewAuthority(t)
	first.Issue("n1", "n1")
	read := func(file string) []byte {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	other := read(second.File("ca.crt"))
	half := other[:len(other)/2]
	for _, name := range []string{"ca.crt", "n1.crt"} {
		t.Run(name, func(t *testing.T) {
			file, whole := first.File(name), read(first.File(name))
			write := func(data []byte) {
				if err := os.WriteFile(file, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			defer write(whole)
			m, err := NewMutual(Files{
				CA: first.File("ca.crt"), Certificate: first.File("n1.crt"),
				Key: first.File("n1.key"),
			}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			before := m.reloadIfChanged()
			write(slices.Concat(whole, half))
			if m.reloadIfChanged() != before {
				t.Error("half of a certificate was taken for all that there is")
			}
			write(slices.Concat(whole, other))
			m.failed = time.Time{} // no pause
			if m.reloadIfChanged() == before {
				t.Error("the whole file is not used")
			}
		})
	}
}

func TestWholeCertificateFilesAreRead(t *testing.T) {
	authority := testcert.NewAuthority(t)
	one, err := os.ReadFile(authority.File("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
	for name, test := range map[string]struct {
		more string // text after a complete certificate
		want error
	}{
		"nothing more":                 {"", nil},
		"text":                         {"the end\n", nil},
		"a certificate in a comment":   {"#" + begin + "\n#MII\n#" + end + "\n", nil},
		"a block of another type":      {"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n", nil},
		"a block that nobody can read": {begin + "\n!\n" + end + "\n", nil},
		"the beginning of a block":     {begin + "\nMII", ErrInvalid},
		"a block but for its end":      {begin + "\nMII\n-----END CERTIF", ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			file := t.TempDir() + "/ca.crt"
			if err := os.WriteFile(file, append(slices.Clone(one), test.more...),
				0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := (Files{CA: file}).Client(); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
}

// A nil *Mutual means that there is no TLS: no name is checked.
func TestWithoutTLSEverybodyHasEachName(t *testing.T) {
	var m *Mutual
	if !m.OwnHasName("n1") || !m.PeerHasName(nil, "n1") {
		t.Error("a name is asked for")
	}
}
