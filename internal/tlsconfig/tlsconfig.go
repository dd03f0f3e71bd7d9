// Package tlsconfig makes TLS configurations from certificate files.
package tlsconfig

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"holdfast/internal/pki"
)

// Files names the files of one side of a TLS connection. All may be empty.
type Files struct {
	CA          string // certificates that vouch for the other side; empty means the system's
	Certificate string
	Key         string
	// the name that the other side's certificate must have; empty means the name that was dialled
	ServerName string
}

// ErrInvalid is wrapped by every error about certificate files.
var ErrInvalid = errors.New("invalid TLS configuration")

// Client returns the configuration of a client. The client certificate is read anew for each
// handshake, so that a renewed one is used without a restart. The CA file is read once.
func (f Files) Client() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.CA != "" {
		authorities, err := f.authorities()
		if err != nil {
			return nil, err
		}
		config.RootCAs = authorities
	}
	if (f.Certificate == "") != (f.Key == "") {
		return nil, fmt.Errorf("%w: a certificate and its key go together", ErrInvalid)
	}
	if f.Certificate != "" {
		load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
			return &pair, err
		}
		if _, err := load(nil); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		config.GetClientCertificate = load
	}
	return config, nil
}

// authorities reads the certificates that vouch for the other side.
func (f Files) authorities() (*x509.CertPool, error) {
	certificates, err := pki.Read(f.CA)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	pool := x509.NewCertPool()
	for _, certificate := range certificates {
		pool.AddCert(certificate)
	}
	return pool, nil
}
