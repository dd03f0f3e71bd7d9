package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"

	"holdfast/cluster"
)

// Status is what GET /v1/status answers.
type Status struct {
	Node         string `json:"node"`
	ID           string `json:"id"`
	State        string `json:"state"` // leader, follower, candidate or shutdown
	Serving      bool   `json:"serving"`
	Ready        string `json:"ready"` // "ok", or what is wrong
	Term         uint64 `json:"term"`
	CommitIndex  uint64 `json:"commitIndex"`
	AppliedIndex uint64 `json:"appliedIndex"`
	Hash         string `json:"hash"` // of the state at the applied index
	Keys         int    `json:"keys"`
	Bytes        int64  `json:"bytes"`
	Watches      int    `json:"watches"`
	Remembered   int    `json:"rememberedOutcomes"`
}

// Admin returns the handler of the admin API.
//
//	GET  /v1/status    what the node knows of itself
//	GET  /v1/snapshot  a consistent, checksummed snapshot of the state
//	POST /v1/snapshot  take a snapshot now and cut the log behind it
func Admin(name string, member *cluster.Node, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, status(name, member, ready))
	})
	mux.HandleFunc("GET /v1/snapshot", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		if _, err := member.SaveSnapshot(w); err != nil {
			// The status is sent already. A body that breaks off is what the client sees; the checksum tells it, too.
			panic(http.ErrAbortHandler)
		}
	})
	mux.HandleFunc("POST /v1/snapshot", func(w http.ResponseWriter, _ *http.Request) {
		if err := member.TakeSnapshot(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		writeJSON(w, status(name, member, ready))
	})
	return mux
}

func status(name string, member *cluster.Node, ready func() error) Status {
	s := member.Status()
	answer := Status{
		Node: name, ID: string(s.ID), State: s.Role, Serving: s.Serving, Ready: "ok", Term: s.Term, CommitIndex: s.Commit,
		AppliedIndex: s.State.Index, Hash: fmt.Sprintf("%016x", s.State.Hash), Keys: s.State.Keys, Bytes: s.State.Bytes,
		Watches: s.State.Watches, Remembered: s.State.Remembered,
	}
	if err := ready(); err != nil {
		answer.Ready = err.Error()
	}
	return answer
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // a client that has gone needs no answer
}
