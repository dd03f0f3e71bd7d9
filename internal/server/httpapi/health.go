package httpapi

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Health returns the handler of the health port, which is plain and read-only. /livez says that the
// process runs. /readyz answers 200 with "ok" and the notes, one a line, or 503 with the error of
// ready. /metrics is for Prometheus.
func Health(ready func() error, notes func() []string, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
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
