package transport

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
)

// † Whoever connects cannot flood the log: a host has a line for each reason, whatever the time in
// Go's text, and there is a bound for all hosts.
func TestRefusedCertificatesDoNotFloodTheLog(t *testing.T) {
	var logged strings.Builder
	f := newCertFaults(slog.New(slog.NewTextHandler(&logged, nil)))
	host := func(n int) net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, byte(n>>8), byte(n))} }
	for second := range 100 {
		f.refused(host(1), fmt.Errorf("at second %d: %w", second,
			x509.CertificateInvalidError{Reason: x509.Expired}))
	}
	if n := strings.Count(logged.String(), "\n"); n != 1 {
		t.Errorf("%d lines for one host and one reason", n)
	}
	f.refused(host(1), x509.UnknownAuthorityError{})
	if n := strings.Count(logged.String(), "\n"); n != 2 {
		t.Errorf("%d lines for one host and two reasons", n)
	}
	for n := range 1000 {
		f.refused(host(n), x509.UnknownAuthorityError{})
	}
	if n := strings.Count(logged.String(), "\n"); n != certFaultsLogged {
		t.Errorf("%d lines, want %d", n, certFaultsLogged)
	}
}
