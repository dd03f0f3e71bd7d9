// Package httpapi serves a node's HTTP endpoints: the health port for probes and scrapers, and the
// admin API for operators.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast/internal/tlsconfig"
)

// Server is an HTTP server that runs until it is closed. Close must be called once; Address is safe
// for concurrent use.
type Server struct {
	server   *http.Server
	listener net.Listener
	done     chan error
}

// Listen starts a server. If secure is nil, it serves plain HTTP. It returns an error if it cannot
// listen, for example if the port is in use.
func Listen(address string, handler http.Handler, secure *tlsconfig.Mutual,
	log *slog.Logger,
) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return Serve(secure.Listener(listener), handler, log), nil
}

// Serve starts a server on a listener, which it owns from now on.
func Serve(listener net.Listener, handler http.Handler, log *slog.Logger) *Server {
	stopping, stop := context.WithCancel(context.Background())
	s := &Server{
		server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
			WriteTimeout: 2 * time.Minute, IdleTimeout: time.Minute,
			MaxHeaderBytes: 256 << 10, // room for a percent-encoded key of 64 KiB in a query
			ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
			BaseContext: func(net.Listener) context.Context {
				return context.WithValue(context.Background(), stoppingKey{}, stopping)
			},
		},
		listener: listener, done: make(chan error, 1),
	}
	s.server.RegisterOnShutdown(stop)
	go func() {
		err := s.server.Serve(listener)
		if !errors.Is(err, http.ErrServerClosed) {
			log.Error("the HTTP server no longer accepts connections: restart this node", "address",
				s.Address(), "error", err)
		}
		s.done <- err
	}()
	return s
}

// stoppingKey is the key under which the context of each request holds a second context. That one
// ends when the server begins to stop.
type stoppingKey struct{}

// stopping returns a channel that is closed when the request's server begins to stop. A response
// that would never end by itself must end then.
func stopping(ctx context.Context) <-chan struct{} {
	if stopping, ok := ctx.Value(stoppingKey{}).(context.Context); ok {
		return stopping.Done()
	}
	return nil
}

// Address returns the host and port on which the server listens.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Close stops the server. The context bounds the wait for requests that are under way.
func (s *Server) Close(ctx context.Context) error {
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.server.Close())
	}
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// Health returns the handler of the health port, which is plain and read-only. /livez says that the
// process runs. /readyz answers 200 with "ok", or 503 with the error of ready, and then the notes,
// one a line. /metrics is for Prometheus.
func Health(ready func() error, notes func() []string, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, strings.Join(append([]string{err.Error()}, notes()...), "\n"),
				http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, strings.Join(append([]string{"ok"}, notes()...), "\n"))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return mux
}

// Liveness returns the handler of a process that is ready as soon as it runs: /livez and /readyz.
func Liveness() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", alive)
	return mux
}

func alive(w http.ResponseWriter, _ *http.Request) {
	_, _ = fmt.Fprintln(w, "ok") // a prober that has gone needs no answer
}
