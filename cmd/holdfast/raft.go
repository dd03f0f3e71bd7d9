package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	"github.com/spf13/cobra"

	"holdfast/cluster"
	"holdfast/cluster/membership"
	"holdfast/cluster/peer"
	"holdfast/cluster/raftlog"
	"holdfast/internal/server/httpapi"
	"holdfast/internal/server/node"
	"holdfast/internal/server/settings"
)

func newRaft() *cobra.Command {
	command := group(&cobra.Command{
		Use: "raft", Short: "Operate the cluster",
		Example: "  holdfast raft list-peers\n  holdfast raft snapshot save backup.snap",
	})
	command.AddCommand(
		newAdmin("list-peers", "List the members", "holdfast raft list-peers -o json", cobra.NoArgs,
			listPeers),
		newAdmin("status", "Show the state of the cluster", "holdfast raft status", cobra.NoArgs,
			raftStatus),
		newAdmin("autopilot", "Show the health of every member as the leader sees it",
			"holdfast raft autopilot", cobra.NoArgs, showAutopilot),
		newAdmin("add-voter ADDRESS",
			"Add the node that listens at the address; it votes once it has caught up",
			"holdfast raft add-voter n4.example:7400", cobra.ExactArgs(1), addMember(true)),
		newAdmin("add-nonvoter ADDRESS",
			"Add the node that listens at the address, and keep it a non-voter",
			"holdfast raft add-nonvoter n4.example:7400", cobra.ExactArgs(1), addMember(false)),
		newAdmin("demote NODE", "Make a voter a non-voter, which it stays until add-voter",
			"holdfast raft demote n3 --yes", cobra.ExactArgs(1), demote, true),
		newAdmin("remove-peer NODE", "Remove a member, by its name or id",
			"holdfast raft remove-peer n3 --yes", cobra.ExactArgs(1), removePeer, true),
		newKeepPeers(),
		newAdmin("step-down", "If the asked node leads, transfer the leadership to the first voter by name that is healthy and connected to its broker", "holdfast raft step-down", cobra.NoArgs, stepDown),
		newAdmin("transfer-leader [NODE]",
			"Transfer the leadership to a voter; without NODE, to the one with the longest log",
			"holdfast raft transfer-leader n2", cobra.MaximumNArgs(1), transferLeader),
		newAdmin("verify", "Compare the states of all replicas at one index",
			"holdfast raft verify", cobra.NoArgs, verifyReplicas),
		newSnapshot(), newRecover(), newConvertLog(),
	)
	return command
}

func listPeers(a *administration, command *cobra.Command, _ []string) error {
	var list []membership.Member
	if err := a.get(command.Context(), "/v1/members", &list); err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(m membership.Member) bool { return m.State == "leader" }) {
		// a failure to write to standard error cannot be reported
		_, _ = fmt.Fprintln(command.ErrOrStderr(),
			"holdfast: there is no leader: this is what the node that was asked knows")
	}
	if a.output == "json" {
		return printJSON(command.OutOrStdout(), list)
	}
	var rows [][]any
	for _, m := range list {
		rows = append(rows, []any{
			m.Node, m.ID, m.Address, m.State, m.Voter, m.CommitIndex,
			trails(&m),
		})
	}
	return printTable(command.OutOrStdout(),
		"Node, ID, Address, State, Voter, Commit Index, Trails Leader By", rows)
}

func trails(m *membership.Member) string {
	switch {
	case m.State == "leader":
		return "-"
	case m.State == "unreachable":
		return "unknown"
	case m.TrailsLeaderBy == 1:
		return "1 entry"
	default:
		return fmt.Sprintf("%d entries", m.TrailsLeaderBy)
	}
}

// clusterStatus is what `raft status` prints.
type clusterStatus struct {
	Leader           string `json:"leader"`
	Healthy          bool   `json:"healthy"` // all members are, and clients are served
	Ready            string `json:"ready"`   // "ok", or why the leader answers no client
	FailureTolerance int    `json:"failureTolerance"`
	Members          int    `json:"members"`
	Voters           int    `json:"voters"`
	Unreachable      int    `json:"unreachable"`
	Term             uint64 `json:"term"`
	CommitIndex      uint64 `json:"commitIndex"`
	LogVersion       uint32 `json:"logVersion"`
}

func raftStatus(a *administration, command *cobra.Command, _ []string) error {
	var status httpapi.Status
	var health cluster.Health
	var list []membership.Member
	for path, into := range map[string]any{
		"/v1/status": &status, "/v1/autopilot": &health,
		"/v1/members": &list,
	} {
		if err := a.get(command.Context(), path, into); err != nil {
			return err
		}
	}
	s := clusterStatus{
		Leader: peer.NodeName(health.Leader), Healthy: health.Healthy, Ready: health.Ready,
		FailureTolerance: health.FailureTolerance, Members: len(list),
		Term: status.Term, LogVersion: status.LogVersion,
	}
	for _, m := range list {
		if m.Voter {
			s.Voters++
		}
		if m.State == "unreachable" {
			s.Unreachable++
		}
		s.CommitIndex = max(s.CommitIndex, m.CommitIndex)
	}
	if a.output == "json" {
		return printJSON(command.OutOrStdout(), s)
	}
	if err := printUnready(command, health.Ready); err != nil {
		return err
	}
	return printTable(command.OutOrStdout(),
		"Leader, Healthy, Failure Tolerance, Members, Voters, Unreachable, Term, Commit Index, Log Version",
		[][]any{{
			s.Leader, s.Healthy, s.FailureTolerance, s.Members, s.Voters, s.Unreachable,
			s.Term, s.CommitIndex, s.LogVersion,
		}})
}

// printUnready prints why the leader answers no client, if that is so.
func printUnready(command *cobra.Command, ready string) error {
	if ready == "" || ready == "ok" {
		return nil
	}
	_, err := fmt.Fprintf(command.OutOrStdout(), "The leader serves nobody: %s\n",
		strings.ReplaceAll(ready, "\n", "; "))
	return err
}

func showAutopilot(a *administration, command *cobra.Command, _ []string) error {
	var health cluster.Health
	if err := a.get(command.Context(), "/v1/autopilot", &health); err != nil {
		return err
	}
	if a.output == "json" {
		return printJSON(command.OutOrStdout(), health)
	}
	if _, err := fmt.Fprintf(command.OutOrStdout(), "Healthy: %v, failure tolerance: %d\n",
		health.Healthy, health.FailureTolerance); err != nil {
		return err
	}
	if err := printUnready(command, health.Ready); err != nil {
		return err
	}
	var rows [][]any
	for _, m := range health.Members {
		state := m.State
		if m.Pinned {
			state += " (kept)"
		}
		contact := m.LastContact
		if m.Version == 0 {
			// it did not answer the last poll: LastContact of an earlier answer would make it look
			// alive
			contact = "-"
		}
		rows = append(rows, []any{
			m.Member, state, m.Healthy, m.StableSince.Format(time.RFC3339),
			contact, m.LastIndex, m.Version, m.BrokerConnected,
		})
	}
	return printTable(command.OutOrStdout(),
		"Node, State, Healthy, Stable Since, Last Contact, Last Index, Version, Broker", rows)
}

func addMember(voter bool) func(*administration, *cobra.Command, []string) error {
	return func(a *administration, command *cobra.Command, arguments []string) error {
		body := httpapi.AddMember{Address: arguments[0], Voter: voter}
		if err := a.do(command.Context(), http.MethodPost, "/v1/members", body); err != nil {
			return err
		}
		if voter {
			return a.done(command.OutOrStdout(), "%s is a member; it votes once it has caught up",
				arguments[0])
		}
		return a.done(command.OutOrStdout(), "%s is a member, and stays a non-voter", arguments[0])
	}
}

func demote(a *administration, command *cobra.Command, arguments []string) error {
	if err := a.requireYes("removes the vote of " + arguments[0] +
		", which may reduce the number of members that may fail"); err != nil {
		return err
	}
	if err := a.do(command.Context(), http.MethodPost, "/v1/members/"+url.PathEscape(arguments[0])+
		"/demote", nil); err != nil {
		return err
	}
	return a.done(command.OutOrStdout(), "%s is a non-voter", arguments[0])
}

func removePeer(a *administration, command *cobra.Command, arguments []string) error {
	if err := a.requireYes("removes " + arguments[0] +
		" for good: its data folder has to be emptied before it can join again"); err != nil {
		return err
	}
	if err := a.do(command.Context(), http.MethodDelete, "/v1/members/"+
		url.PathEscape(arguments[0]), nil); err != nil {
		return err
	}
	return a.done(command.OutOrStdout(), "%s is no member any more", arguments[0])
}

func transferLeader(a *administration, command *cobra.Command, arguments []string) error {
	body := httpapi.TransferLeader{}
	if len(arguments) > 0 {
		body.To = arguments[0]
	}
	if err := a.do(command.Context(), http.MethodPost, "/v1/leader", body); err != nil {
		return err
	}
	return a.done(command.OutOrStdout(), "the leadership was handed over")
}

func verifyReplicas(a *administration, command *cobra.Command, _ []string) error {
	var v cluster.Verification
	if err := a.get(command.Context(), "/v1/verify", &v); err != nil {
		return err
	}
	if err := a.printVerification(command.OutOrStdout(), &v); err != nil {
		return err
	}
	if !v.Agree {
		return &codeError{exitError, "the replicas do not agree"}
	}
	if !v.Complete {
		return &codeError{
			exitUnknown,
			"not all members answered; the replicas of those that answered agree",
		}
	}
	return nil
}

func (a *administration) printVerification(out io.Writer, v *cluster.Verification) error {
	if a.output == "json" {
		return printJSON(out, v)
	}
	var rows [][]any
	for _, state := range v.Hashes {
		rows = append(rows, []any{state.Member, v.Index, state.Hash + state.Fault})
	}
	return printTable(out, "Node, Index, State Hash", rows)
}

// stoppedNode returns the settings of a node whose data folder has a log. It does not check that
// the node is stopped: opening the log does.
func (a *administration) stoppedNode(command *cobra.Command, flags *settingFlags,
	file string,
) (settings.Settings, error) {
	s, err := flags.load(command, file)
	switch {
	case err != nil:
		return s, err
	case a.output != "text" && a.output != "json":
		return s, usagef("--output is %q: must be text or json", a.output)
	case !raftlog.HasLog(s.Node.DataDir):
		return s, usagef("node.dataDir is %q: there is no log of a member in it", s.Node.DataDir)
	}
	return s, nil
}

func newRecover() *cobra.Command {
	var file string
	a := administration{output: "text"}
	command := &cobra.Command{
		Use:   "recover",
		Short: "Make a stopped node the only member of its cluster: when a majority is lost for good",
		Long: `Makes the stopped node that owns node.dataDir the only member of its cluster. Use it only if a majority of the members is lost for
good: entries that only they had are lost, and uncommitted entries of this node are committed. Without --yes it prints only the term
and the index of the last entry of this node's log. Recover the node whose last entry has the highest term, and of those the one with
the highest index. Keep a copy of its data folder, empty the data folders of all other nodes, and start them again: they join.

It takes the settings of the server: its file, environment and flags.`,
		Example: "  holdfast raft recover --config /etc/holdfast.yaml --yes",
		Args:    positional(cobra.NoArgs),
	}
	flags := addSettings(command, &file)
	command.Flags().StringVarP(&a.output, "output", "o", "text", "output `format`, text or json")
	a.addYes(command)
	command.RunE = func(command *cobra.Command, _ []string) error {
		s, err := a.stoppedNode(command, flags, file)
		if err != nil {
			return err
		}
		stores, err := raftlog.OpenStores(s.Node.DataDir, raftlog.Kind(s.Cluster.LogStore),
			slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer func() { _ = stores.Close() }() // what was written is synced
		term, index, err := stores.LastEntry()
		if err != nil {
			return err
		}
		if err := a.requireYes(
			fmt.Sprintf("makes %s the only member, commits its uncommitted entries, and loses the entries that only other members have; "+
				"the last entry of its log has the term %d and the index %d: recover the node whose last entry has the highest term, and of those the one with the highest index",
				s.Node.ID, term, index)); err != nil {
			return err
		}
		identity, err := node.Identify(s.Node.DataDir, s.Cluster.Name, s.Node.ID)
		if errors.Is(err, cluster.ErrNoIdentity) {
			// the file is lost: a new id will do, because Recover makes it the only member
			identity, err = cluster.NewIdentity(s.Node.DataDir, s.Cluster.Name, s.Node.ID,
				rand.Uint64())
		}
		if err != nil {
			return err
		}
		address := raft.ServerAddress(identity.RaftID())
		if s.Cluster.Listens() {
			address = raft.ServerAddress(s.AdvertisedAddress())
		}
		log, _ := newLog(command.ErrOrStderr(), &s)
		status, err := cluster.Recover(&stores, identity.RaftID(), address, log)
		if err != nil {
			return err
		}
		return a.done(command.OutOrStdout(),
			"%s is the only member, with %d keys at index %d: empty the folders of all other nodes, then start them", s.Node.ID, status.Keys, status.Index)
	}
	return command
}
