package certwatch

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/pki"
)

// issue writes an authority and a certificate of it, valid for the lifetime from now on, and
// returns their files.
func issue(t *testing.T, lifetime time.Duration) (ca, certificate string) {
	t.Helper()
	authority, pair, err := pki.NewAuthority("ca", 10*pki.Year, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca, certificate = filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "n1.crt")
	if err := pair.Write(ca, ca+".key"); err != nil {
		t.Fatal(err)
	}
	if pair, err = authority.Issue(pki.Request{Name: "n1", Use: pki.Node}, lifetime,
		time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := pair.Write(certificate, certificate+".key"); err != nil {
		t.Fatal(err)
	}
	return ca, certificate
}

func watchOf(ca, certificate string) *Watch {
	return New([]File{
		{Name: "cluster.tls.certFile", Path: certificate},
		{Name: "cluster.tls.caFile", Path: ca, Authorities: true},
		{Name: "admin.tls.certFile"},
	}, time.Now)
}

// Two weeks before a certificate ends /readyz and the log say so, the log once a day, and when it
// has ended that it has.
func TestCertificatesAreToldOfInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		watch := watchOf(issue(t, 20*day))
		ctx, stop := context.WithCancel(t.Context())
		var logged bytes.Buffer
		done := make(chan struct{})
		go func() {
			watch.Run(ctx, slog.New(slog.NewTextHandler(&logged, nil)))
			close(done)
		}()
		said := func() string { return strings.Join(watch.Notes(), "\n") }
		if time.Sleep(5 * day); said() != "" {
			t.Errorf("15 days before: %s", said())
		}
		if time.Sleep(2 * day); !strings.Contains(said(),
			"the certificate of cluster.tls.certFile expires in 13 days") {
			t.Errorf("13 days before: %s", said())
		}
		if time.Sleep(14 * day); !strings.Contains(said(), "expired at") {
			t.Errorf("a day after: %s", said())
		}
		stop()
		<-done
		if lines := strings.Count(logged.String(), "level=WARN"); lines < 14 || lines > 16 {
			t.Errorf("%d lines in 15 days", lines)
		}
	})
}

// The metric has the seconds that are left, also of what the broker shows.
func TestMetricHasEachCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watch := watchOf(issue(t, time.Hour))
		config := &tls.Config{MinVersion: tls.VersionTLS13}
		watch.ObserveBroker(config)
		if err := config.VerifyConnection(tls.ConnectionState{
			PeerCertificates: []*x509.Certificate{{NotAfter: time.Now().Add(-time.Minute)}},
		}); err != nil {
			t.Fatal(err)
		}
		got := gather(t, watch)
		for name, want := range map[string]float64{
			"broker": -60, "cluster.tls.caFile": (10 * pki.Year).Seconds(),
			"cluster.tls.certFile": 3600,
		} {
			if got[name] != want {
				t.Errorf("%s: %g, want %g", name, got[name], want)
			}
		}
		if len(got) != 3 {
			t.Errorf("%v", got)
		}
	})
}

// A file that cannot be read is told of, and has no metric.
func TestFileThatIsGoneIsToldOf(t *testing.T) {
	watch := New([]File{{Name: "broker.tls.caFile", Path: "/no/ca.crt"}}, time.Now)
	if notes := watch.Notes(); len(notes) != 1 ||
		!strings.HasPrefix(notes[0], "broker.tls.caFile: ") {
		t.Errorf("%q", notes)
	}
	if got := gather(t, watch); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// gather returns the values of the metric, by the certificate.
func gather(t *testing.T, watch *Watch) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(watch)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			values[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return values
}
