// Package pki makes the certificates of a plant, and reads them.
//
//	ca, pair, err := pki.NewAuthority("holdfast", 10*pki.Year, time.Now())
//	pair, err = ca.Issue(pki.Request{Name: "n1", Hosts: hosts, Use: pki.Node}, pki.Year, time.Now())
//	err = pair.Write("n1.crt", "n1.key")
//
// All keys are of the curve P-256, which every TLS library of this field knows.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"time"
)

// Year is how long certificates are valid by default, those of authorities ten times as long.
const Year = 365 * 24 * time.Hour

// Use is what a certificate is for.
type Use int

// The uses.
const (
	// Node is a member of a cluster: it listens and dials. The name of the node is one of its
	// hosts.
	Node Use = iota
	// Client only dials. Without hosts it can stand for no member.
	Client
	// Server only listens.
	Server
)

// ErrUnusable is wrapped by every error about a file with a certificate or a key.
var ErrUnusable = errors.New("unusable certificate")

// Pair is a certificate and its key, both as PEM.
type Pair struct{ Certificate, Key []byte }

// Authority signs certificates. Its methods are safe for concurrent use.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// NewAuthority makes an authority that signs its own certificate.
func NewAuthority(name string, lifetime time.Duration, now time.Time) (*Authority, Pair, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return newAuthority(template, lifetime, now)
}

func newAuthority(template *x509.Certificate, lifetime time.Duration, now time.Time) (*Authority,
	Pair, error,
) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, Pair{}, err
	}
	pair, certificate, err := sign(template, key, template, key, lifetime, now)
	if err != nil {
		return nil, Pair{}, err
	}
	return &Authority{certificate, key}, pair, nil
}

// Load reads an authority that NewAuthority made, from its files. The error wraps ErrUnusable.
func Load(certFile, keyFile string) (*Authority, error) {
	certificates, err := Read(certFile)
	if err != nil {
		return nil, err
	}
	for _, certificate := range certificates {
		key, err := keyOf(certificate, keyFile)
		switch {
		case errors.Is(err, errOtherKey):
			continue
		case err != nil:
			return nil, err
		case !certificate.IsCA:
			return nil, fmt.Errorf("%w: %s is no authority", ErrUnusable, certFile)
		}
		return &Authority{certificate, key}, nil
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrUnusable, keyFile, errOtherKey)
}

// errOtherKey says that a key is not that of a certificate.
var errOtherKey = errors.New("it is not the key of the certificate")

// CheckKey returns an error, which wraps ErrUnusable, unless a file has the key of a certificate.
func CheckKey(certificate *x509.Certificate, keyFile string) error {
	_, err := keyOf(certificate, keyFile)
	return err
}

func keyOf(certificate *x509.Certificate, keyFile string) (crypto.Signer, error) {
	data, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	key, err := parseKey(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnusable, keyFile, err)
	}
	public, comparable := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !comparable || !public.Equal(certificate.PublicKey) {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnusable, keyFile, errOtherKey)
	}
	return key, nil
}

func parseKey(data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("there is no key in it")
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	if signer, ok := parsed.(crypto.Signer); ok {
		return signer, nil
	}
	return nil, errors.New("it cannot sign")
}

// Request says whom a certificate is for.
type Request struct {
	Name string // the common name
	// Hosts are the names and IP addresses of a Node or a Server.
	Hosts []string
	Use   Use
}

// Issue makes a certificate with a key of its own. It is valid from five minutes ago, because
// clocks differ, for the lifetime, and not longer than the authority's own certificate.
func (a *Authority) Issue(r Request, lifetime time.Duration, now time.Time) (Pair, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: r.Name}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	switch r.Use {
	case Node:
		template.ExtKeyUsage = []x509.ExtKeyUsage{
			x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth,
		}
	case Server:
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	default:
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	for _, host := range r.Hosts {
		if strings.ContainsAny(host, "*: \t/") && net.ParseIP(host) == nil {
			return Pair{}, fmt.Errorf(
				"%w: %q is no host: want a name or an IP address, without a port",
				ErrUnusable, host)
		}
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(template, lifetime, now)
}

// Renew makes a certificate with a key of its own for whom another certificate is for, as long as
// that was valid. The authority must have signed the other certificate; it may have expired.
func (a *Authority) Renew(old *x509.Certificate, now time.Time) (Pair, error) {
	if err := old.CheckSignatureFrom(a.certificate); err != nil {
		return Pair{}, fmt.Errorf("%w: %s did not sign it", ErrUnusable,
			a.certificate.Subject.CommonName)
	}
	return a.issue(&x509.Certificate{
		Subject: old.Subject, KeyUsage: old.KeyUsage, ExtKeyUsage: old.ExtKeyUsage,
		UnknownExtKeyUsage: old.UnknownExtKeyUsage, DNSNames: old.DNSNames,
		IPAddresses: old.IPAddresses, URIs: old.URIs, EmailAddresses: old.EmailAddresses,
	}, old.NotAfter.Sub(old.NotBefore)-earlier, now)
}

func (a *Authority) issue(template *x509.Certificate, lifetime time.Duration, now time.Time) (Pair,
	error,
) {
	if left := a.certificate.NotAfter.Sub(now); left <= 0 {
		return Pair{}, fmt.Errorf("%w: the authority expired at %s", ErrUnusable,
			a.certificate.NotAfter.Format(time.RFC3339))
	} else if lifetime > left {
		lifetime = left
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	pair, _, err := sign(template, key, a.certificate, a.key, lifetime, now)
	return pair, err
}

// earlier is by how much a certificate is valid before it is made, because clocks differ.
const earlier = 5 * time.Minute

func sign(template *x509.Certificate, key *ecdsa.PrivateKey, parent *x509.Certificate,
	parentKey crypto.Signer, lifetime time.Duration, now time.Time,
) (Pair, *x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return Pair{}, nil, err
	}
	template.SerialNumber, template.BasicConstraintsValid = serial, true
	template.NotBefore, template.NotAfter = now.Add(-earlier), now.Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return Pair{}, nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return Pair{}, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, nil, err
	}
	return Pair{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, certificate, nil
}

// Read reads the certificates of a PEM file, of which there must be one at least. A file that ends
// within a certificate is being written, and is refused. The error wraps ErrUnusable.
func Read(file string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	certificates, rest := parse(data)
	switch {
	case endsWithin(rest):
		return nil, fmt.Errorf("%w: %s ends within a PEM block", ErrUnusable, file)
	case len(certificates) == 0:
		return nil, fmt.Errorf("%w: there is no certificate in %s", ErrUnusable, file)
	}
	return certificates, nil
}

func parse(data []byte) (certificates []*x509.Certificate, rest []byte) {
	for {
		block, after := pem.Decode(data)
		if block == nil {
			return certificates, data
		}
		if data = after; block.Type != "CERTIFICATE" {
			continue
		}
		// a bundle of authorities may have some that Go does not read, as x509.CertPool skips them
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			certificates = append(certificates, certificate)
		}
	}
}

// endsWithin reports whether what follows the last whole PEM block begins another one.
func endsWithin(rest []byte) bool {
	const begin, end, dashes = "\n-----BEGIN ", "\n-----END ", "-----"
	rest = append([]byte("\n"), rest...)
	last := bytes.LastIndex(rest, []byte(begin))
	if last < 0 {
		return false
	}
	_, label, ends := bytes.Cut(rest[last:], []byte(end))
	return !ends || !bytes.Contains(label, []byte(dashes))
}
