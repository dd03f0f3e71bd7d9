package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A change is of unknown outcome only if it may have reached a node.
func TestChangeIsOfUnknownOutcomeOnlyIfItMayHaveReachedANode(t *testing.T) {
	hangsUp := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter,
		*http.Request,
	) {
		panic(http.ErrAbortHandler)
	}))
	defer hangsUp.Close()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request,
	) {
		http.Error(w, "Bad Gateway", http.StatusBadGateway)
	}))
	defer proxy.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	// the kernel accepts the TCP connection; no process answers the TLS handshake
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	const unknown, unavailable, usage = "unknown", "unavailable", "usage"
	for name, test := range map[string]struct {
		address, want string
		timeout       time.Duration
	}{
		"the node hangs up":                  {hangsUp.URL, unknown, time.Minute},
		"a proxy lost the node's answer":     {proxy.URL, unknown, time.Minute},
		"nobody listens":                     {"http://127.0.0.1:1", unavailable, time.Minute},
		"the certificate is of no authority": {secure.URL, unavailable, time.Minute},
		"a handshake that takes too long": {
			"https://" + silent.Addr().String(), unavailable,
			100 * time.Millisecond,
		},
		"the address has another scheme":   {"localhost:7401", usage, time.Minute},
		"the address is a host and a port": {"127.0.0.1:7401", usage, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			a := &administration{address: test.address, timeout: test.timeout, output: "text"}
			err := a.request(t.Context(), http.MethodPost, "/v1/change", nil,
				func(io.Reader) error { return nil })
			var coded *codeError
			got := ""
			switch {
			case errors.As(err, &coded) && coded.code == exitUnknown:
				got = unknown
			case errors.Is(err, errUnavailable):
				got = unavailable
				if code, _ := exitCode(err); code != exitError {
					t.Errorf("exit code %d, want %d", code, exitError)
				}
			case isUsage(err):
				got = usage
			}
			if got != test.want {
				t.Errorf("%s: %v", got, err)
			}
		})
	}
}

// If --admin is no http or https URL with a host, the command fails. It does not report that no
// process listens there.
func TestMalformedAdminAddressIsAUsageError(t *testing.T) {
	for _, address := range []string{"localhost:7401", "http:///", "store-0:7401", ""} {
		t.Run(fmt.Sprintf("%q", address), func(t *testing.T) {
			a := &administration{address: address, timeout: time.Second}
			if listens, err := a.somebodyListens(t.Context()); listens || !isUsage(err) {
				t.Errorf("%q: %t, %v", address, listens, err)
			}
		})
	}
}
