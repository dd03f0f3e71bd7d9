package mqttconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// ErrAddress is wrapped by errors about a broker address that is not understood.
var ErrAddress = errors.New("broker address")

// Address is where a broker listens.
type Address struct {
	Host string // host:port
	TLS  bool
}

// ParseAddress reads mqtt://host[:port], mqtts://host[:port] (also tcp, ssl and tls), or host:port.
// The ports are 1883 and 8883 where none is given.
func ParseAddress(text string) (Address, error) {
	// without the text: it may hold a password
	malformed := fmt.Errorf("%w: want mqtt://host:port or mqtts://host:port", ErrAddress)
	if !strings.Contains(text, "://") {
		host, port, err := net.SplitHostPort(text)
		if err != nil || host == "" || !validPort(port) {
			return Address{}, malformed
		}
		return Address{Host: text}, nil
	}
	parsed, err := url.Parse(text)
	if err != nil || parsed.Hostname() == "" || (parsed.Path != "" && parsed.Path != "/") ||
		parsed.RawQuery != "" || parsed.Fragment != "" || parsed.User != nil {
		return Address{}, malformed
	}
	port, address := "1883", Address{}
	switch parsed.Scheme {
	case "mqtt", "tcp":
	case "mqtts", "ssl", "tls":
		port, address.TLS = "8883", true
	default:
		return Address{}, malformed
	}
	if parsed.Port() != "" {
		port = parsed.Port()
	}
	if !validPort(port) {
		return Address{}, malformed
	}
	address.Host = net.JoinHostPort(parsed.Hostname(), port)
	return address, nil
}

func validPort(port string) bool {
	number, err := strconv.ParseUint(port, 10, 16)
	return err == nil && number > 0
}

// Dialer connects to the first of several addresses that answers, beginning with the one that
// answered last. It is safe for concurrent use.
type Dialer struct {
	Addresses []Address
	TLS       *tls.Config // for addresses with TLS
	// Renew returns a new configuration for each connection, because the files that it is made from
	// may change. It takes precedence over TLS. It may be nil.
	Renew func() (*tls.Config, error)
	// bounds an attempt to connect to one address, with its TLS handshake; required
	Timeout time.Duration
	// Network opens the network connection; nil is TCP.
	Network func(ctx context.Context, address string) (net.Conn, error)

	first atomic.Uint32 // index of the address with which the next Dial begins
}

// Dial returns a connection, or the errors of all addresses.
func (d *Dialer) Dial(ctx context.Context) (net.Conn, error) {
	conn, _, err := d.DialAny(ctx)
	return conn, err
}

// DialSame connects to the address with which the next Dial begins, and to no other one: for a
// connection that is of use only where another one of the process is.
func (d *Dialer) DialSame(ctx context.Context) (net.Conn, error) {
	if len(d.Addresses) == 0 {
		return nil, errNoAddress
	}
	return d.dial(ctx, d.Addresses[int(d.first.Load())%len(d.Addresses)], 1)
}

var errNoAddress = errors.New("there is no broker address")

// DialAny is Dial, and also returns the place of the address among Addresses.
func (d *Dialer) DialAny(ctx context.Context) (conn net.Conn, place int, err error) {
	if len(d.Addresses) == 0 {
		return nil, 0, errNoAddress
	}
	first := int(d.first.Load())
	var failures []error
	for i := range d.Addresses {
		index := (first + i) % len(d.Addresses)
		conn, err = d.dial(ctx, d.Addresses[index], len(d.Addresses)-i)
		if err == nil {
			d.first.Store(uint32(index))
			return conn, index, nil
		}
		failures = append(failures, err)
	}
	return nil, 0, errors.Join(failures...)
}

// Prefer makes the next Dial begin with an address, by its place among Addresses. It does nothing
// for a place that is not there.
func (d *Dialer) Prefer(place int) {
	if place >= 0 && place < len(d.Addresses) {
		d.first.Store(uint32(place))
	}
}

// Next makes the next Dial begin with another address. Callers use it if a broker accepts the
// network connection but does not work otherwise.
func (d *Dialer) Next() {
	if len(d.Addresses) > 0 {
		d.first.Store((d.first.Load() + 1) % uint32(len(d.Addresses)))
	}
}

// dial connects to one address. It takes at most Timeout, and at most 1/left of the time until the
// deadline. left is the number of addresses that are not tried yet, this one included.
func (d *Dialer) dial(ctx context.Context, address Address, left int) (net.Conn, error) {
	timeout := d.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)/time.Duration(left))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	network := d.Network
	if network == nil {
		network = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	}
	config, err := d.config(address)
	if err != nil {
		return nil, err
	}
	conn, err := network(ctx, address.Host)
	if err != nil {
		return nil, err
	}
	plain := newCoalescer(conn)
	if !address.TLS {
		return plain, nil
	}
	secure := plain.withTLS(config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS handshake with %s: %w", address.Host, err),
			conn.Close())
	}
	return secure, nil
}

// config returns the TLS configuration for an address, or nil without TLS. If the configuration has
// no ServerName, it sets the host of the address.
func (d *Dialer) config(address Address) (*tls.Config, error) {
	if !address.TLS {
		return nil, nil
	}
	config := d.TLS
	if d.Renew != nil {
		var err error
		if config, err = d.Renew(); err != nil {
			return nil, err
		}
	}
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.ServerName != "" {
		return config, nil
	}
	host, _, err := net.SplitHostPort(address.Host)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAddress, err)
	}
	config = config.Clone()
	config.ServerName = host
	return config, nil
}
