package httpapi

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/membership"
	"holdfast/cluster/peer"
)

// The status page is read-only HTML with one script and one style sheet, all embedded. It gets its
// data as server-sent events.

//go:embed ui
var pages embed.FS

const (
	// pageInterval is the time between two events of a status page's stream.
	pageInterval = 2 * time.Second
	// pageTimeout bounds the wait for the other members.
	pageTimeout = time.Second
	// maxStreams bounds the status pages that are open at one node.
	maxStreams = 16
)

// addPage adds the status page to a handler.
func (a *admin) addPage(mux *http.ServeMux) {
	files, err := fs.Sub(pages, "ui")
	if err != nil {
		panic(err) // the name of the folder is wrong
	}
	serve := http.StripPrefix("/ui/", http.FileServerFS(files))
	mux.HandleFunc("GET /ui/", func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy",
			"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cache-Control", "no-cache")
		serve.ServeHTTP(w, r)
	})
	mux.Handle("GET /{$}", http.RedirectHandler("/ui/", http.StatusFound))
	mux.HandleFunc("GET /ui/events", a.stream)
}

// PageData is one event of the status page's stream.
type PageData struct {
	Node       string              `json:"node"`   // the node that answers
	Leader     string              `json:"leader"` // empty when none is known
	Version    string              `json:"version"`
	Time       time.Time           `json:"time"`
	Members    []membership.Member `json:"members"`
	Activities []*Activity         `json:"activities"` // of the members that answered
	Overview   *Overview           `json:"overview"`   // null if no leader answered
}

// stream sends the page's data now and every pageInterval, until the client disconnects or the
// server stops.
func (a *admin) stream(w http.ResponseWriter, r *http.Request) {
	if err := checkQuery(r, "prefix"); err != nil {
		a.fail(w, err)
		return
	}
	select {
	case a.streams <- struct{}{}:
		defer func() { <-a.streams }()
	default:
		writeError(w, http.StatusServiceUnavailable,
			Error{fmt.Sprintf("%d status pages are open already", maxStreams), "not done"})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	ticker := time.NewTicker(pageInterval)
	defer ticker.Stop()
	for {
		data, err := json.Marshal(a.pageData(r.Context(), r.URL.Query().Get("prefix")))
		if err != nil {
			a.Log.Error("the data of the status page could not be encoded, its stream is closed",
				"error", err)
			return
		}
		// if it cannot be set, the server's WriteTimeout applies
		_ = control.SetWriteDeadline(time.Now().Add(5 * pageInterval))
		if _, err := fmt.Fprintf(w, "data: %s\n\n", data); err != nil || control.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-stopping(r.Context()):
			return
		case <-ticker.C:
		}
	}
}

// pageData asks all members concurrently, for at most pageTimeout.
func (a *admin) pageData(ctx context.Context, prefix string) *PageData {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	status := a.Node.Status()
	p := &PageData{
		Node: a.Name, Leader: peer.NodeName(status.LeaderID), Version: a.Version,
		Time: time.Now(), Members: []membership.Member{}, Activities: []*Activity{},
	}
	activities := make([]*Activity, len(status.Servers))
	var asking sync.WaitGroup
	asking.Go(func() { p.Members = a.Node.Membership().ListAsKnown(ctx) })
	for i, server := range status.Servers {
		asking.Go(func() {
			if server.ID == status.ID {
				// after an error the page shows this node as a member that does not answer
				activities[i], _ = a.ownActivity()
				return
			}
			var activity Activity
			if a.ask(ctx, server, "/v1/activity", &activity) == nil {
				activities[i] = &activity
			}
		})
		if server.ID == status.LeaderID {
			asking.Go(func() {
				p.Overview = a.leaderOverview(ctx, server, server.ID == status.ID,
					prefix)
			})
		}
	}
	asking.Wait()
	for _, activity := range activities {
		if activity != nil {
			p.Activities = append(p.Activities, activity)
		}
	}
	return p
}

// leaderOverview returns the leader's overview, or nil if it gives none. self says that this node
// is the leader.
func (a *admin) leaderOverview(ctx context.Context, leader raft.Server, self bool,
	prefix string,
) *Overview {
	if self {
		if a.Node.Confirm(ctx) != nil {
			return nil
		}
		return a.overviewOf(prefix)
	}
	var overview Overview
	if a.ask(ctx, leader, "/v1/overview?"+url.Values{"prefix": {prefix}}.Encode(),
		&overview) != nil {
		return nil
	}
	return &overview
}

// ask sends a GET request to another member's admin API, and decodes the JSON answer.
func (a *admin) ask(ctx context.Context, member raft.Server, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+hostName(member.ID)+
		path, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set(forwardCountHeader, "1")
	response, err := a.forwarder.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // an error of Close changes nothing
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	const most = 4 << 20 // more than any answer
	return json.NewDecoder(io.LimitReader(response.Body, most)).Decode(into)
}
