// Package tlsconfig makes TLS configurations from certificate files.
package tlsconfig

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
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
	data, err := readWhole(f.CA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%w: there is no certificate in %s", ErrInvalid, f.CA)
	}
	return pool, nil
}

// readWhole reads a file of certificates. It refuses a file that ends within a PEM block: such a
// file is being written, and may lack certificates.
func readWhole(file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	rest := data
	for block := new(pem.Block); block != nil; {
		block, rest = pem.Decode(rest)
	}
	const begin, end, dashes = "\n-----BEGIN ", "\n-----END ", "-----"
	rest = append([]byte("\n"), rest...)
	if last := bytes.LastIndex(rest, []byte(begin)); last >= 0 {
		if _, label, ends := bytes.Cut(rest[last:], []byte(end)); !ends ||
			!bytes.Contains(label, []byte(dashes)) {
			return nil, fmt.Errorf("%w: %s ends within a PEM block", ErrInvalid, file)
		}
	}
	return data, nil
}
