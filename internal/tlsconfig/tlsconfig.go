// Package tlsconfig makes TLS configurations from certificate files.
package tlsconfig

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Files names the files of one side of a TLS connection. All may be empty.
type Files struct {
	CA          string // vouch for the other side; empty is the system's
	Certificate string
	Key         string
	ServerName  string // that the other side's certificate must have; empty is the name that was dialled
}

// ErrInvalid is wrapped by every error about certificate files.
var ErrInvalid = errors.New("invalid TLS configuration")

// Client returns the configuration of a client. The client certificate is read anew for each handshake, so that a renewed one
// is used without a restart.
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
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: there is no certificate in %s", ErrInvalid, f.CA)
	}
	return pool, nil
}
