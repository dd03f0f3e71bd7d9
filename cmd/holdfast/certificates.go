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

// newCertWatch returns a watch over all certificates that a node is given.
func newCertWatch(s *settings.Settings) *certwatch.Watch {
	return certwatch.New([]certwatch.File{
		{
			Name: "cluster.tls.certFile", Path: s.Cluster.TLS.CertFile,
			CA: s.Cluster.TLS.CAFile,
		},
		{Name: "cluster.tls.caFile", Path: s.Cluster.TLS.CAFile, Authorities: true},
		{Name: "broker.tls.certFile", Path: s.Broker.TLS.CertFile},
		{Name: "broker.tls.caFile", Path: s.Broker.TLS.CAFile, Authorities: true},
		{Name: "broker.api.caFile", Path: s.Broker.API.CAFile, Authorities: true},
		{Name: "admin.tls.certFile", Path: s.Admin.TLS.CertFile},
		{Name: "admin.tls.caFile", Path: s.Admin.TLS.CAFile, Authorities: true},
	}, time.Now)
}

// watchCertificates makes the certificates of a node, and that of its broker, known to its metrics.
func watchCertificates(s *settings.Settings, config *node.Config) *certwatch.Watch {
	watch := newCertWatch(s)
	config.Registry.MustRegister(watch)
	renew := config.Dialer.Renew
	config.Dialer.Renew = func() (*tls.Config, error) {
		client, err := renew()
		if err == nil {
			watch.Observe(certwatch.Broker, client)
		}
		return client, err
	}
	return watch
}

// checkCertificates returns what the other sides would refuse of the certificates of a node.
func checkCertificates(s *settings.Settings, now time.Time) error {
	var faults []error
	for _, one := range []struct {
		path    string
		file    string
		purpose pki.Purpose
	}{
		{
			"cluster.tls", s.Cluster.TLS.CertFile,
			pki.Purpose{
				Listens: true, Dials: true, CA: s.Cluster.TLS.CAFile, Names: []string{s.Node.ID},
			},
		},
		{"admin.tls", s.Admin.TLS.CertFile, pki.Purpose{Listens: true}},
		{"broker.tls", s.Broker.TLS.CertFile, pki.Purpose{Dials: true}},
	} {
		if one.file == "" {
			continue
		}
		if err := pki.Check(one.file, one.purpose, now); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", one.path, err))
		}
	}
	for _, one := range []struct{ path, file string }{
		{"cluster.tls", s.Cluster.TLS.CAFile},
		{"admin.tls", s.Admin.TLS.CAFile},
		{"broker.tls", s.Broker.TLS.CAFile},
		{"broker.api", s.Broker.API.CAFile},
	} {
		if one.file == "" {
			continue
		}
		if err := pki.CheckAuthorities(one.file, now); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", one.path, err))
		}
	}
	return errors.Join(faults...)
}
