package tlsconfig

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"holdfast/internal/pki"
)

// Mutual is the TLS 1.3 of connections on which both sides show a certificate. The files are read
// again when they change, so that renewed certificates are used without a restart; while they
// cannot be loaded, the old ones stay in use. A nil *Mutual is no TLS at all. Its methods are safe
// for concurrent use.
type Mutual struct {
	files Files
	log   *slog.Logger

	mu      sync.Mutex
	stamps  [3]fileVersion // the versions of the files from which current was loaded
	warned  [3]fileVersion // the versions of the files about which a warning was logged last
	failed  time.Time      // when loading last failed
	current *material
}

// reloadPause is the least time between two attempts to read files that could not be used.
const reloadPause = time.Second

// material is what the files hold.
type material struct {
	certificate tls.Certificate
	authorities *x509.CertPool
}

// fileVersion identifies the content of a file: a file has changed if its fileVersion differs.
type fileVersion struct {
	modified time.Time
	size     int64
}

// NewMutual reads the files, all of which are required.
func NewMutual(files Files, log *slog.Logger) (*Mutual, error) {
	if files.CA == "" || files.Certificate == "" || files.Key == "" {
		return nil, fmt.Errorf(
			"%w: a certificate, its key and the certificates that vouch for the other side are required", ErrInvalid)
	}
	m := &Mutual{files: files, log: log}
	m.stamps = m.statFiles()
	current, err := files.load()
	if err != nil {
		return nil, err
	}
	m.current = current
	return m, nil
}

func (f Files) load() (*material, error) {
	if _, err := pki.Read(f.Certificate); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	certificate, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	authorities, err := f.authorities()
	if err != nil {
		return nil, err
	}
	return &material{certificate: certificate, authorities: authorities}, nil
}

func (m *Mutual) statFiles() (stamps [3]fileVersion) {
	for i, file := range []string{m.files.CA, m.files.Certificate, m.files.Key} {
		if info, err := os.Stat(file); err == nil {
			stamps[i] = fileVersion{info.ModTime(), info.Size()}
		}
	}
	return stamps
}

// reloadIfChanged loads the files again if they have changed. It returns what was last loaded
// successfully.
func (m *Mutual) reloadIfChanged() *material {
	m.mu.Lock()
	defer m.mu.Unlock()
	stamps := m.statFiles()
	if stamps == m.stamps || time.Since(m.failed) < reloadPause {
		return m.current
	}
	loaded, err := m.files.load()
	if err != nil {
		// a file is half-written, or not readable yet: the next call after reloadPause tries again
		m.failed = time.Now()
		if stamps != m.warned {
			m.warned = stamps
			m.log.Warn("the certificates changed and cannot be used: the old ones stay in use",
				"file", m.files.Certificate, "error", err)
		}
		return m.current
	}
	m.log.Info("the certificates were read again", "file", m.files.Certificate)
	m.stamps, m.current = stamps, loaded
	return loaded
}

// serverConfig returns the configuration of the listening side.
func (m *Mutual) serverConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := m.reloadIfChanged()
			return &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{now.certificate},
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: now.authorities,
				NextProtos:             []string{"http/1.1"},
				SessionTicketsDisabled: true, // so that each connection verifies the certificate
			}, nil
		},
	}
}

// Listener returns a listener that accepts the listener's connections with TLS, for HTTP.
func (m *Mutual) Listener(listener net.Listener) net.Listener {
	if m == nil {
		return listener
	}
	return tls.NewListener(listener, m.serverConfig())
}

// Server returns the accepting side of TLS over a connection.
func (m *Mutual) Server(conn net.Conn) net.Conn {
	if m == nil {
		return conn
	}
	return tls.Server(conn, m.serverConfig())
}

// ErrOtherName says that the other side's certificate has none of the expected names.
var ErrOtherName = errors.New("the certificate names somebody else")

// Client returns the dialling side of TLS over a connection. The certificate of the other side must
// have one of the names. There must be at least one name; the first is sent as the server name.
// Empty names match nothing.
func (m *Mutual) Client(conn net.Conn, names ...string) net.Conn {
	if m == nil {
		return conn
	}
	return tls.Client(conn, m.clientConfig(names))
}

func (m *Mutual) clientConfig(names []string) *tls.Config {
	now := m.reloadIfChanged()
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{now.certificate},
		ServerName:         names[0],
		InsecureSkipVerify: true,
		//nolint:gosec // VerifyConnection verifies instead, and accepts any of the names
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return ErrOtherName
			}
			options := x509.VerifyOptions{Roots: now.authorities, Intermediates: x509.NewCertPool()}
			for _, certificate := range state.PeerCertificates[1:] {
				options.Intermediates.AddCert(certificate)
			}
			if _, err := state.PeerCertificates[0].Verify(options); err != nil {
				return err
			}
			if !pki.HasName(state.PeerCertificates[0], names) {
				return fmt.Errorf("%w: want one of %q, it has %q and %v", ErrOtherName,
					slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" }),
					state.PeerCertificates[0].DNSNames, state.PeerCertificates[0].IPAddresses)
			}
			return nil
		},
	}
}

// PeerHasName reports whether the certificate of the other side of a connection has one of the
// names. A nil *Mutual returns true. Otherwise the connection must be a *tls.Conn, or have a method
// Secured that returns one; any other connection returns false. PeerHasName makes the handshake, if
// that was not made yet.
func (m *Mutual) PeerHasName(conn net.Conn, names ...string) bool {
	if m == nil {
		return true
	}
	if wrapped, ok := conn.(interface{ Secured() net.Conn }); ok {
		conn = wrapped.Secured()
	}
	secured, ok := conn.(*tls.Conn)
	if !ok || secured.Handshake() != nil {
		return false
	}
	certificates := secured.ConnectionState().PeerCertificates
	return len(certificates) > 0 && pki.HasName(certificates[0], names)
}

// OwnHasName reports whether this side's own certificate has one of the names.
func (m *Mutual) OwnHasName(names ...string) bool {
	if m == nil {
		return true
	}
	certificate, err := x509.ParseCertificate(m.reloadIfChanged().certificate.Certificate[0])
	return err == nil && pki.HasName(certificate, names)
}

// HTTP returns a transport for HTTP requests. The server's certificate must have the name
// Files.ServerName or, if that is empty, the name that is dialled.
func (f Files) HTTP() (*http.Transport, error) {
	config, err := f.Client()
	if err != nil {
		return nil, err
	}
	return &http.Transport{TLSClientConfig: config, Proxy: http.ProxyFromEnvironment}, nil
}
