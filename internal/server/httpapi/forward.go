package httpapi

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/internal/backoff"
)

// forwardCountHeader is the header that counts how often a request was passed on from one member to
// another.
const forwardCountHeader = "Holdfast-Forwarded"

// maxForwards bounds that count. It also bounds how often a node retries a request during which it
// lost the leadership. If the leader never changed, 1 would be enough.
const maxForwards = 3

// newMemberTransport returns the transport of requests to other members. The host of a URL is the
// hostName of the member's raft id.
func newMemberTransport(a *admin) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			id, _, err := net.SplitHostPort(address)
			if err != nil {
				id = address
			}
			for _, server := range a.Node.Status().Servers {
				if hostName(server.ID) == id {
					return a.Dial(ctx, server)
				}
			}
			return nil, peer.ErrUnreachable
		},
		DisableKeepAlives: true, // operators are few, and the leader changes
	}
}

// hostName encodes a raft id, so that it can be the host of a URL.
func hostName(id raft.ServerID) string { return hex.EncodeToString([]byte(id)) }

// leaderPatience is how long a request waits until a leader is known.
const leaderPatience = 5 * time.Second

// waitForLeader waits until this node serves as the leader (then the result here is true), or knows
// another node that leads. ok is false if there is neither within leaderPatience, or before the
// context ends.
func (a *admin) waitForLeader(ctx context.Context) (leader raft.Server, here, ok bool) {
	const poll = 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		status := a.Node.Status()
		if status.Serving && status.Role == "leader" {
			return raft.Server{}, true, true
		}
		for _, server := range status.Servers {
			if server.ID == status.LeaderID && server.ID != status.ID {
				return server, false, true
			}
		}
		select {
		case <-ctx.Done():
			return raft.Server{}, false, false
		case <-ticker.C:
		}
	}
}

// answer answers a request with serve if this node leads, and otherwise forwards it to the leader.
// If this node loses the leadership meanwhile, answer asks the next leader, except for a PUT, whose
// body cannot be sent again. If there is no leader, answer calls leaderless, unless that is nil.
func (a *admin) answer(w http.ResponseWriter, r *http.Request, serve,
	leaderless func(http.ResponseWriter, *http.Request) error,
) {
	var body []byte
	if r.Method == http.MethodPost { // it may have to be read again
		var err error
		if body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
			a.fail(w, badRequest{err})
			return
		}
	}
	for attempt := 0; ; attempt++ {
		if r.Method == http.MethodPost {
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		leader, here, ok := a.waitForLeader(r.Context())
		if !ok && leaderless != nil {
			serve, here = leaderless, true
		}
		if !here {
			a.forward(w, r, leader, ok, leaderless)
			return
		}
		err := serve(w, r)
		if err == nil {
			return
		}
		if !errors.Is(err, peer.ErrNotLeader) || r.Method == http.MethodPut ||
			attempt == maxForwards {
			a.fail(w, err)
			return
		}
		// A leader that no majority confirms may not have stepped down yet: an immediate retry
		// would fail in the same way.
		backoff.Pause(r.Context(), time.Duration(attempt+1)*100*time.Millisecond)
	}
}

// forward passes a request on to the leader. If the leader cannot be reached, leaderless answers,
// unless it is nil. ok says that there is a leader.
func (a *admin) forward(w http.ResponseWriter, r *http.Request, leader raft.Server, ok bool,
	leaderless func(http.ResponseWriter, *http.Request) error,
) {
	times, _ := strconv.Atoi(r.Header.Get(forwardCountHeader)) // a missing header counts as 0
	if !ok || times >= maxForwards {
		a.refuse(w)
		return
	}
	if isSnapshot(r) {
		extendDeadlines(w, snapshotTimeout)
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", hostName(leader.ID)
			p.Out.Host = hostName(leader.ID)
			p.Out.Header.Set(forwardCountHeader, strconv.Itoa(times+1))
		},
		Transport: a.forwarder, ErrorLog: slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			a.Log.Warn("a request that was forwarded to the leader failed", "leader", leader.ID,
				"error", err)
			if leaderless != nil && errors.Is(err, peer.ErrUnreachable) {
				if err := leaderless(w, r); err == nil {
					return
				}
			}
			if errors.Is(err, peer.ErrUnreachable) || r.Method == http.MethodGet ||
				r.URL.Path == ExportPath {
				a.refuse(w)
				return
			}
			writeError(w, http.StatusGatewayTimeout,
				Error{"the leader took the request and did not answer: " + err.Error(), "unknown"})
		},
	}
	if !isSnapshot(r) {
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout+leaderPatience)
		defer cancel()
		r = r.WithContext(ctx)
	}
	proxy.ServeHTTP(w, r)
}

// isSnapshot reports whether a request transfers a snapshot, which may take up to snapshotTimeout.
func isSnapshot(r *http.Request) bool { return r.URL.Path == "/v1/snapshot" }

// refuse says that there is no leader to answer.
func (a *admin) refuse(w http.ResponseWriter) {
	writeError(w, http.StatusServiceUnavailable,
		Error{"there is no leader that could answer now; try again", "not done"})
}
