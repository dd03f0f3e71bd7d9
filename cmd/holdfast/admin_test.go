package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A change is of unknown outcome only if it may have reached a node.
func TestOutcomeOfAChangeWithoutAnAnswer(t *testing.T) {
	hangsUp := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer hangsUp.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	const unknown, unavailable, usage = "unknown", "unavailable", "usage"
	for name, test := range map[string]struct{ address, want string }{
		"the node hangs up":                   {hangsUp.URL, unknown},
		"nobody listens":                      {"http://127.0.0.1:1", unavailable},
		"the certificate is of nobody's":      {secure.URL, unavailable},
		"the address has another scheme":      {"localhost:7401", usage},
		"the address is a host without a URL": {"127.0.0.1:7401", usage},
	} {
		t.Run(name, func(t *testing.T) {
			a := &administration{address: test.address, timeout: 10 * time.Second, output: "text"}
			err := a.request(t.Context(), http.MethodPost, "/v1/change", nil, func(io.Reader) error { return nil })
			var coded *codeError
			got := ""
			switch {
			case errors.As(err, &coded) && coded.code == exitUnknown:
				got = unknown
			case errors.Is(err, errUnavailable):
				got = unavailable
			case isUsage(err):
				got = usage
			}
			if got != test.want {
				t.Errorf("%s: %v", got, err)
			}
		})
	}
}
