package httpapi

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster"
	"holdfast/cluster/peer"
)

// AdminConfig is what the admin API needs of its node.
type AdminConfig struct {
	Name  string
	Node  *cluster.Node
	Ready func() error
	Notes func() []string
	// Dial connects to the admin API of another member over the connection between members.
	Dial  func(ctx context.Context, member raft.Server) (net.Conn, error)
	Pprof bool
	// Metrics has the metrics of the node. The status page shows some of them.
	Metrics prometheus.Gatherer
	Version string // of the program
	Mirrors MirrorPublisher
	Log     *slog.Logger
}

// admin serves the admin API.
type admin struct {
	AdminConfig
	forwarder *http.Transport
	streams   chan struct{} // has one element for each open status page
}

// route is one operation of the API. openapi.json describes the same ones; a test compares them.
type route struct {
	method, path string
	leader       bool   // only the leader answers: any other node forwards
	query        string // names of the parameters, separated by spaces
	serve        func(*admin, http.ResponseWriter, *http.Request) error
}

func routes() []route {
	return []route{
		{"GET", "/v1/openapi.json", false, "", (*admin).openAPI},
		{"GET", "/v1/status", false, "", (*admin).status},
		{"GET", "/v1/activity", false, "", (*admin).activity},
		{"POST", "/v1/snapshot/take", false, "", (*admin).takeSnapshot},
		{"GET", "/v1/snapshot", true, "", (*admin).saveSnapshot},
		{"PUT", "/v1/snapshot", true, "", (*admin).restoreSnapshot},
		{"GET", "/v1/members", true, "", (*admin).members},
		{"POST", "/v1/members", true, "", (*admin).addMember},
		{"DELETE", "/v1/members/{member}", true, "", (*admin).removeMember},
		{"POST", "/v1/members/{member}/demote", true, "", (*admin).demoteMember},
		{"POST", "/v1/leader", true, "", (*admin).transferLeader},
		{"GET", "/v1/autopilot", true, "", (*admin).autopilot},
		{"GET", "/v1/verify", true, "", (*admin).verify},
		{"GET", "/v1/keys", true, "prefix after limit", (*admin).keys},
		{"GET", "/v1/keys/count", true, "prefix", (*admin).countKeys},
		{"GET", "/v1/keys/owners", true, "limit", (*admin).owners},
		{"POST", ExportPath, true, "", (*admin).export},
		{"GET", "/v1/key", true, "key", (*admin).key},
		{"GET", "/v1/overview", true, "prefix", (*admin).overview},
		{
			"GET", "/v1/watches", true, "prefix client after afterPattern afterClient limit",
			(*admin).watches,
		},
		{"GET", "/v1/mirrors", true, "", (*admin).mirrors},
		{"POST", "/v1/mirrors/resync", true, "", (*admin).resyncMirrors},
		{"DELETE", "/v1/watches", true, "client key pattern", (*admin).dropWatches},
	}
}

// Admin returns the handler of the admin API. It refuses changes (POST, PUT, DELETE) that a browser
// sends from another site: on loopback nothing else would keep a web page from changing the
// cluster.
func Admin(config AdminConfig) http.Handler {
	a := &admin{AdminConfig: config, streams: make(chan struct{}, maxStreams)}
	a.forwarder = newMemberTransport(a)
	mux := http.NewServeMux()
	for _, r := range routes() {
		mux.HandleFunc(r.method+" "+r.path, func(w http.ResponseWriter, request *http.Request) {
			if err := checkQuery(request, r.query); err != nil {
				a.fail(w, err)
				return
			}
			serve := func(w http.ResponseWriter,
				request *http.Request,
			) error {
				return r.serve(a, w, request)
			}
			if r.leader {
				var leaderless func(http.ResponseWriter, *http.Request) error
				if r.path == "/v1/members" && r.method == http.MethodGet {
					leaderless = a.membersAsKnown
				}
				a.answer(w, request, serve, leaderless)
			} else if err := serve(w, request); err != nil {
				a.fail(w, err)
			}
		})
	}
	a.addPage(mux)
	if config.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return sameOrigin(mux)
}

// sameOrigin refuses what a page of another site asks for, reads included: a read takes one of the
// few streams, and caches could keep it. A link on another site may lead to the status page. No
// answer is stored.
func sameOrigin(handler http.Handler) http.Handler {
	changes := http.NewCrossOriginProtection().Handler(handler)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
		other := site == "cross-site" || site == "same-site"
		if site == "" && origin != "" {
			at, err := url.Parse(origin)
			other = err != nil || at.Host != r.Host
		}
		isLink := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
			r.Header.Get("Sec-Fetch-Dest") == "document"
		if other && !isLink {
			writeError(w, http.StatusForbidden,
				Error{"a page of another site asks for this", "not done"})
			return
		}
		changes.ServeHTTP(w, r)
	})
}

// IsLoopback reports whether an address to listen on can only be reached from this machine.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// Local prevents DNS rebinding: it refuses a Host header that is neither localhost nor an IP
// address. Otherwise a web page could reach the API through a DNS name that resolves to this
// machine.
func Local(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if host != "localhost" && net.ParseIP(strings.Trim(host, "[]")) == nil {
			writeError(w, http.StatusMisdirectedRequest,
				Error{"ask for localhost, or for an address", "not done"})
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// checkQuery refuses unknown and repeated parameters. An ignored filter would make a DELETE affect
// more than was asked for.
func checkQuery(r *http.Request, allowed string) error {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return badRequest{fmt.Errorf("the query: %w", err)}
	}
	for name, given := range values {
		if !slices.Contains(strings.Fields(allowed), name) {
			return badRequest{fmt.Errorf("the query: there is no parameter %q", name)}
		}
		if len(given) > 1 {
			return badRequest{fmt.Errorf("the query: %q is there twice", name)}
		}
	}
	return nil
}

//go:embed openapi.json
var openAPI []byte

func (a *admin) openAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, err := w.Write(openAPI)
	return err
}

// Status is what GET /v1/status answers.
type Status struct {
	Node         string   `json:"node"`
	ID           string   `json:"id"`
	State        string   `json:"state"` // leader, follower, candidate or shutdown
	Leader       string   `json:"leader"`
	Serving      bool     `json:"serving"`
	Ready        string   `json:"ready"` // "ok", or what is wrong
	Notes        []string `json:"notes"` // what is wrong although the node is ready
	Term         uint64   `json:"term"`
	LastTerm     uint64   `json:"lastTerm"`  // of the last entry in the log
	LastIndex    uint64   `json:"lastIndex"` // of the last entry in the log
	CommitIndex  uint64   `json:"commitIndex"`
	AppliedIndex uint64   `json:"appliedIndex"`
	// the version of the log that is in force: commands of newer versions are not proposed
	LogVersion uint32 `json:"logVersion"`
	Hash       string `json:"hash"` // of the state at the applied index
	Keys       int    `json:"keys"`
	Bytes      int64  `json:"bytes"` // of keys and values
	Watches    int    `json:"watches"`
	Remembered int    `json:"rememberedOutcomes"` // outcomes in the dedup table
}

func (a *admin) status(w http.ResponseWriter, _ *http.Request) error {
	s := a.Node.Status()
	answer := Status{
		Node: a.Name, ID: string(s.ID), State: s.Role, Leader: peer.NodeName(s.LeaderID),
		Serving: s.Serving, Ready: "ok",
		Notes: a.Notes(), Term: s.Term, LastTerm: a.Node.LastTerm(), LastIndex: s.Last,
		CommitIndex:  s.Commit,
		AppliedIndex: s.State.Index, LogVersion: s.State.Version,
		Hash: fmt.Sprintf("%016x", s.State.Hash), Keys: s.State.Keys,
		Bytes: s.State.Bytes, Watches: s.State.Watches, Remembered: s.State.Remembered,
	}
	if answer.Notes == nil {
		answer.Notes = []string{}
	}
	if err := a.Ready(); err != nil {
		answer.Ready = err.Error()
	}
	return writeJSON(w, answer)
}

// Error is the body of the answer when an operation fails. An unknown path or method, and a request
// from another site, get plain text.
type Error struct {
	Error string `json:"error"`
	// Outcome is "not done", or "unknown" if the operation may have taken effect or may still do
	// so.
	Outcome string `json:"outcome"`
}

// badRequest is the error of a malformed request. fail answers it with status 400.
type badRequest struct{ error }

// fail answers with an error.
func (a *admin) fail(w http.ResponseWriter, err error) {
	answer, code := Error{err.Error(), "not done"}, http.StatusInternalServerError
	var bad badRequest
	switch {
	case errors.As(err, &bad):
		code = http.StatusBadRequest
	case errors.Is(err, errNotFound):
		code = http.StatusNotFound
	case errors.Is(err, peer.ErrOutcomeUnknown):
		answer.Outcome, code = "unknown", http.StatusGatewayTimeout
	case errors.Is(err, peer.ErrRefused):
		code = http.StatusConflict
	case errors.Is(err, peer.ErrNotLeader), errors.Is(err, peer.ErrNotDone),
		errors.Is(err, peer.ErrUnreachable):
		code = http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		// errors that state their outcome are handled above
		answer.Outcome, code = "unknown", http.StatusGatewayTimeout
	}
	writeError(w, code, answer)
}

func writeError(w http.ResponseWriter, code int, answer Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // a client that has gone needs no answer
}

func writeJSON(w http.ResponseWriter, value any) error {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value) // a client that has gone needs no answer
	return nil
}

// maxBody bounds the body of a request in bytes, except of a snapshot: the longest key that
// settings allow, in Base64, has 11 MiB.
const maxBody = 16 << 20

// readJSON decodes the body of a request. It refuses unknown fields and anything after the JSON
// value. An empty body leaves value as it is.
func readJSON(w http.ResponseWriter, r *http.Request, value any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	switch err := decoder.Decode(value); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return badRequest{fmt.Errorf("the body: %w", err)}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return badRequest{errors.New("the body: there is more after the JSON value")}
	}
	return nil
}

// Done is the answer of an operation that has succeeded and returns nothing.
type Done struct {
	Done bool `json:"done"`
}

func writeDone(w http.ResponseWriter, err error) error {
	if err != nil {
		return err
	}
	return writeJSON(w, Done{true})
}

// extendDeadlines lets one request take longer than the server's timeouts allow.
func extendDeadlines(w http.ResponseWriter, limit time.Duration) {
	control := http.NewResponseController(w)
	deadline := time.Now().Add(limit)
	_ = control.SetReadDeadline(deadline)  // where it cannot be set, the server's own holds
	_ = control.SetWriteDeadline(deadline) // the same
}
