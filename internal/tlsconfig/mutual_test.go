package tlsconfig

import (
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"holdfast/internal/testcert"
)

// A bundle of certificates that is being written is not used, although those that are complete in it could be.
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
			m, err := NewMutual(Files{CA: first.File("ca.crt"), Certificate: first.File("n1.crt"), Key: first.File("n1.key")}, slog.New(slog.DiscardHandler))
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

func TestWithoutTLSEverybodyHasEachName(t *testing.T) {
	var m *Mutual
	if !m.OwnHasName("n1") || !m.PeerHasName(nil, "n1") {
		t.Error("a name is asked for")
	}
}
