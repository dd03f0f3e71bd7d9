package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hashicorp/raft"
)

// requestTimeout bounds a request at the leader that needs several steps: a change of the members
// or of the leader, a verification, a count, the end of watches.
const requestTimeout = 20 * time.Second

func (a *admin) members(w http.ResponseWriter, r *http.Request) error {
	members, err := a.Node.Membership().List(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, members)
}

// membersAsKnown answers from this node's configuration, for lack of a leader: then an operator has
// to know which members are reachable.
func (a *admin) membersAsKnown(w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, a.Node.Membership().ListAsKnown(r.Context()))
}

// AddMember is the body of POST /v1/members.
type AddMember struct {
	Address string `json:"address"` // host:port of the node's cluster.advertise
	Voter   bool   `json:"voter"`   // false keeps it a non-voter
}

func (a *admin) addMember(w http.ResponseWriter, r *http.Request) error {
	var body AddMember
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	if body.Address == "" {
		return badRequest{errors.New("address is missing")}
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	return writeDone(w, a.Node.Membership().Add(ctx, raft.ServerAddress(body.Address), body.Voter))
}

func (a *admin) removeMember(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	return writeDone(w, a.Node.Membership().Remove(ctx, r.PathValue("member")))
}

func (a *admin) demoteMember(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	return writeDone(w, a.Node.Membership().Demote(ctx, r.PathValue("member")))
}

// TransferLeader is the body of POST /v1/leader.
type TransferLeader struct {
	To string `json:"to"` // a member's name or id; empty is any voter
}

func (a *admin) transferLeader(w http.ResponseWriter, r *http.Request) error {
	var body TransferLeader
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	return writeDone(w, a.Node.Membership().Transfer(ctx, body.To))
}

func (a *admin) autopilot(w http.ResponseWriter, r *http.Request) error {
	health, err := a.Node.Health(r.Context())
	if health.Ready = "ok"; err == nil {
		if fault := a.Ready(); fault != nil {
			// a cluster whose leader answers nobody is not healthy, however well Raft is
			health.Ready, health.Healthy = fault.Error(), false
		}
	}
	if err != nil {
		return err
	}
	return writeJSON(w, health)
}

func (a *admin) verify(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	verification, err := a.Node.Verify(ctx)
	if err != nil {
		return err
	}
	return writeJSON(w, verification)
}
