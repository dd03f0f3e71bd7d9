package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The files of the broker's certificate, which is its own authority, and of its key.
const (
	certificateFile = "broker.crt"
	keyFile         = "broker.key"
)

// issueCertificate writes a certificate for 127.0.0.1 and its key into a folder. It returns the file of the certificate.
func issueCertificate(dir string) (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return "", err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", err
	}
	const readable = 0o644 // mosquitto gives up root before it reads them
	write := func(name, kind string, bytes []byte) error {
		return os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), readable)
	}
	return filepath.Join(dir, certificateFile), errors.Join(
		write(certificateFile, "CERTIFICATE", certificate), write(keyFile, "EC PRIVATE KEY", private), os.Chmod(dir, 0o755))
}
