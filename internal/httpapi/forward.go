package httpapi

import (
	"context"
	"encoding/hex"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster"
)

// forwarded says how often a request was passed on from one member to another.
const forwarded = "Holdfast-Forwarded"

// maxForwards bounds that: once to the leader, and a little more for one that has just handed over.
const maxForwards = 3

// newForwarder returns the transport of requests to the leader. The host of their URL is a member's raft id.
func newForwarder(a *admin) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, host string) (net.Conn, error) {
			id, _, err := net.SplitHostPort(host)
			if err != nil {
				id = host
			}
			for _, server := range a.Node.Status().Servers {
				if hostName(server.ID) == id {
					return a.Dial(ctx, server)
				}
			}
			return nil, cluster.ErrUnreachable
		},
		DisableKeepAlives: true, // operators are few, and the leader changes
	}
}

// hostName turns a raft id into something that is a host in a URL.
func hostName(id raft.ServerID) string { return hex.EncodeToString([]byte(id)) }

// leaderPatience is how long a request waits for a leader to be there.
const leaderPatience = 5 * time.Second

// leader waits until this node knows of a leader that is another node.
func (a *admin) leader(ctx context.Context) (raft.Server, bool) {
	const poll = 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		status := a.Node.Status()
		for _, server := range status.Servers {
			if server.ID == status.LeaderID && server.ID != status.ID {
				return server, true
			}
		}
		select {
		case <-ctx.Done():
			return raft.Server{}, false
		case <-ticker.C:
		}
	}
}

func (a *admin) waitOtherLeader(ctx context.Context) bool {
	_, ok := a.leader(ctx)
	return ok
}

// forward lets the leader answer.
func (a *admin) forward(w http.ResponseWriter, r *http.Request) {
	leader, ok := a.leader(r.Context())
	times, _ := strconv.Atoi(r.Header.Get(forwarded)) // none at all is not a number
	if !ok || times >= maxForwards {
		a.refuse(w)
		return
	}
	slow(w, snapshotTimeout)
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", hostName(leader.ID)
			p.Out.Host = hostName(leader.ID)
			p.Out.Header.Set(forwarded, strconv.Itoa(times+1))
		},
		Transport: a.forwarder,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			a.Log.Warn("a request could not be forwarded to the leader", "leader", leader.ID, "error", err)
			a.refuse(w)
		},
	}
	proxy.ServeHTTP(w, r)
}

// refuse says that there is no leader to answer.
func (a *admin) refuse(w http.ResponseWriter) {
	writeError(w, http.StatusServiceUnavailable, Error{"there is no leader that could answer now; try again", "not done"})
}
