package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Purpose says what a certificate has to be good for.
type Purpose struct {
	Listens, Dials bool
	// CA is the file of the authorities by which the other side verifies it. Empty means that these
	// are not known here.
	CA string
	// Names are those of which it must have one; empty means that none is needed.
	Names []string
}

// Check reads a certificate and returns what the other side would refuse, all of it at once. Each
// error wraps ErrUnusable and names the file.
func Check(file string, purpose Purpose, now time.Time) error {
	certificates, err := Read(file)
	if err != nil {
		return err
	}
	leaf := certificates[0]
	unusable := func(format string, arguments ...any) error {
		return fmt.Errorf("%w: %s %s", ErrUnusable, file, fmt.Sprintf(format, arguments...))
	}
	var faults []error
	if fault := dates(leaf, now); fault != "" {
		faults = append(faults, unusable("%s", fault))
	}
	for _, use := range []struct {
		wanted bool
		usage  x509.ExtKeyUsage
		what   string
	}{
		{purpose.Listens, x509.ExtKeyUsageServerAuth, "servers"},
		{purpose.Dials, x509.ExtKeyUsageClientAuth, "clients"},
	} {
		if use.wanted && !isFor(leaf, use.usage) {
			faults = append(faults, unusable("is not for %s (extended key usage)", use.what))
		}
	}
	if len(purpose.Names) > 0 && !HasName(leaf, purpose.Names) {
		faults = append(faults, unusable("names %s, and must name %s", names(leaf),
			strings.Join(purpose.Names, " or ")))
	}
	if purpose.CA != "" {
		if err := verify(certificates, purpose.CA, now); err != nil {
			faults = append(faults, unusable("%s", err))
		}
	}
	return errors.Join(faults...)
}

// CheckAuthorities reads a file of authorities, and returns an error if none of them is valid now.
// It wraps ErrUnusable and names the file.
func CheckAuthorities(file string, now time.Time) error {
	certificates, err := Read(file)
	if err != nil {
		return err
	}
	var fault string
	for _, certificate := range certificates {
		if fault = dates(certificate, now); fault == "" {
			return nil
		}
	}
	return fmt.Errorf("%w: the authority in %s %s", ErrUnusable, file, fault)
}

func dates(certificate *x509.Certificate, now time.Time) string {
	switch {
	case now.After(certificate.NotAfter):
		return "expired at " + certificate.NotAfter.Format(time.RFC3339)
	case now.Before(certificate.NotBefore):
		return "is not valid before " + certificate.NotBefore.Format(time.RFC3339)
	default:
		return ""
	}
}

// isFor reports whether a certificate may be used for a purpose. One without extended key usages
// may be used for each.
func isFor(certificate *x509.Certificate, usage x509.ExtKeyUsage) bool {
	for _, has := range certificate.ExtKeyUsage {
		if has == usage || has == x509.ExtKeyUsageAny {
			return true
		}
	}
	return len(certificate.ExtKeyUsage) == 0 && len(certificate.UnknownExtKeyUsage) == 0
}

// HasName reports whether a certificate has one of the names. Empty names match nothing.
func HasName(certificate *x509.Certificate, names []string) bool {
	for _, name := range names {
		if name != "" && certificate.VerifyHostname(name) == nil {
			return true
		}
	}
	return false
}

func names(certificate *x509.Certificate) string {
	all := certificate.DNSNames
	for _, address := range certificate.IPAddresses {
		all = append(all, address.String())
	}
	if len(all) == 0 {
		return "no host"
	}
	return strings.Join(all, ", ")
}

// verify checks that the authorities of a file vouch for the first of the certificates now or, if
// that is not valid now, which is told apart, when it was.
func verify(certificates []*x509.Certificate, ca string, now time.Time) error {
	if dates(certificates[0], now) != "" {
		now = certificates[0].NotBefore.Add(time.Second)
	}
	if _, err := chains(certificates, ca, now); err != nil {
		return fmt.Errorf("is not signed by an authority in %s: %w", ca, err)
	}
	return nil
}

// chains returns how the authorities of a file vouch for the first of the certificates.
func chains(certificates []*x509.Certificate, ca string, now time.Time) ([][]*x509.Certificate,
	error,
) {
	authorities, err := Read(ca)
	if err != nil {
		return nil, err
	}
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	for _, authority := range authorities {
		options.Roots.AddCert(authority)
	}
	for _, intermediate := range certificates[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	return certificates[0].Verify(options)
}

// ValidUntil returns until when a certificate is good: until it ends itself or, where ca names the
// authorities by which it is verified, the first of those that vouch for it. The error wraps
// ErrUnusable.
func ValidUntil(file, ca string, now time.Time) (time.Time, error) {
	certificates, err := Read(file)
	if err != nil {
		return time.Time{}, err
	}
	end := certificates[0].NotAfter
	if ca == "" {
		return end, nil
	}
	found, err := chains(certificates, ca, now)
	if err != nil {
		return end, nil // config check says what is wrong
	}
	var latest time.Time
	for _, chain := range found {
		first := end
		for _, certificate := range chain {
			if certificate.NotAfter.Before(first) {
				first = certificate.NotAfter
			}
		}
		if first.After(latest) {
			latest = first
		}
	}
	return latest, nil
}

// Describe returns what a certificate says, in one line.
func Describe(certificate *x509.Certificate) string {
	kind := "client"
	switch {
	case certificate.IsCA:
		kind = "authority"
	case isFor(certificate, x509.ExtKeyUsageServerAuth) &&
		isFor(certificate, x509.ExtKeyUsageClientAuth):
		kind = "node"
	case isFor(certificate, x509.ExtKeyUsageServerAuth):
		kind = "server"
	}
	return fmt.Sprintf("%s %q, signed by %q, names %s, valid until %s", kind,
		certificate.Subject.CommonName, certificate.Issuer.CommonName, names(certificate),
		certificate.NotAfter.UTC().Format("2006-01-02 15:04"))
}
