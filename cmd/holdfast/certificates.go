package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/pki"
	"holdfast/internal/server/certwatch"
	"holdfast/internal/server/node"
	"holdfast/internal/server/settings"
)

// certificateFiles are the files of one setting with certificates.
type certificateFiles struct {
	setting          string
	certFile, caFile string      // either may be empty
	purpose          pki.Purpose // of certFile
}

// certificatesOf returns all certificates that a node is given.
func certificatesOf(s *settings.Settings) []certificateFiles {
	return []certificateFiles{
		{
			"cluster.tls", s.Cluster.TLS.CertFile, s.Cluster.TLS.CAFile,
			pki.Purpose{
				Listens: true, Dials: true, CA: s.Cluster.TLS.CAFile, Names: []string{s.Node.ID},
			},
		},
		{
			"admin.tls", s.Admin.TLS.CertFile, s.Admin.TLS.CAFile, pki.Purpose{Listens: true},
		},
		{
			"broker.tls", s.Broker.TLS.CertFile, s.Broker.TLS.CAFile, pki.Purpose{Dials: true},
		},
		{setting: "broker.api", caFile: s.Broker.API.CAFile},
	}
}

// watchCertificates makes the certificates of a node, and that of its broker, known to its metrics.
func watchCertificates(s *settings.Settings, config *node.Config) *certwatch.Watch {
	var files []certwatch.File
	for _, c := range certificatesOf(s) {
		files = append(files,
			certwatch.File{Name: c.setting + ".certFile", Path: c.certFile, CA: c.purpose.CA},
			certwatch.File{Name: c.setting + ".caFile", Path: c.caFile, Authorities: true})
	}
	watch := certwatch.New(files, time.Now)
	config.Registry.MustRegister(watch)
	renew := config.Dialer.Renew
	config.Dialer.Renew = func() (*tls.Config, error) {
		client, err := renew()
		if err == nil {
			watch.ObserveBroker(client)
		}
		return client, err
	}
	return watch
}

// checkCertificates returns what the other sides would refuse of the certificates of a node.
func checkCertificates(s *settings.Settings, now time.Time) error {
	var faults []error
	for _, c := range certificatesOf(s) {
		var err error
		if c.certFile != "" {
			err = pki.Check(c.certFile, c.purpose, now)
		}
		if c.caFile != "" {
			err = errors.Join(err, pki.CheckAuthorities(c.caFile, now))
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", c.setting, err))
		}
	}
	return errors.Join(faults...)
}
