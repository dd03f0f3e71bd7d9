package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"holdfast/cluster"
	"holdfast/cluster/membership"
	"holdfast/internal/backoff"
	"holdfast/internal/server/httpapi"
)

// stepDown transfers the leadership before the node stops. The target is the first voter by name
// that can lead. A StatefulSet restarts its nodes from the last to the first. The new leader is
// then restarted last, so that clients see at most two changes of leader.
func stepDown(a *administration, command *cobra.Command, _ []string) error {
	ctx, cancel := context.WithTimeout(command.Context(), a.timeout)
	defer cancel()
	var status httpapi.Status
	if err := a.get(ctx, "/v1/status", &status); err != nil {
		return err
	}
	if status.State != "leader" {
		return a.done(command.OutOrStdout(), "%s does not lead", status.Node)
	}
	successor, alone, err := a.successor(ctx, status.Node)
	switch {
	case err != nil:
		return err
	case alone:
		return a.done(command.OutOrStdout(), "%s goes on leading: there is no other voter",
			status.Node)
	case successor == "":
		return &codeError{exitNotApplied, "no other voter is healthy: " + status.Node +
			" goes on leading"}
	}
	// If another node leads by now, that node transfers the leadership: one more change of leader,
	// and no harm.
	if err := a.do(ctx, http.MethodPost, "/v1/leader",
		httpapi.TransferLeader{To: successor}); err != nil {
		return err
	}
	return a.done(command.OutOrStdout(), "%s has handed over to %s", status.Node, successor)
}

// healthWait is how long successor waits for other voters to become able to lead. A new leader does
// not know their health yet.
const healthWait = 3 * time.Second

// successor returns the first other voter by name that can lead, or "" if none can. alone is true
// if there is no other voter. It waits up to healthWait until all other voters can lead.
func (a *administration) successor(ctx context.Context, leader string) (first string, alone bool,
	err error,
) {
	for deadline := time.Now().Add(healthWait); ; {
		var health cluster.Health
		if err := a.get(ctx, "/v1/autopilot", &health); err != nil {
			return "", false, err
		}
		first, able, voters := countSuccessors(&health, leader)
		if known := len(health.Members) > 0; known && able == voters || time.Now().After(deadline) {
			return first, known && voters == 0, nil
		}
		if !backoff.Pause(ctx, healthWait/12) {
			return first, false, ctx.Err()
		}
	}
}

// countSuccessors returns the first voter by name that can lead, the number of voters that can
// lead, and the number of voters. It leaves the leader out of all three. A voter can lead if it is
// healthy and connected to its broker.
func countSuccessors(health *cluster.Health, leader string) (first string, able, voters int) {
	for _, m := range health.Members {
		if m.Member == leader || m.State != "voter" {
			continue
		}
		voters++
		if !m.Healthy || !m.BrokerConnected {
			continue
		}
		able++
		if first == "" || m.Member < first {
			first = m.Member
		}
	}
	return first, able, voters
}

// keepOptions has the arguments of `keep-peers`, and what it has printed about them.
type keepOptions struct {
	ifAny   bool
	names   []string
	unknown []string // the names for which a note was printed that they are no member's
}

func newKeepPeers() *cobra.Command {
	var k keepOptions
	command := newAdmin("keep-peers NODE...",
		"Remove every member that is not named: what makes a cluster smaller",
		"holdfast raft keep-peers n1 n2 n3 --yes", cobra.MinimumNArgs(1),
		func(a *administration, command *cobra.Command, names []string) error {
			k.names = names
			return a.keepPeers(command, &k)
		}, true)
	command.Long = `Removes every member that is not named. A leader hands over before it is removed. The node that answers this command is removed
last. It waits, within --timeout, for a leader that knows who the members are, and tries again what did not work: nothing is removed on
the word of a node that has lost the others.`
	command.Flags().BoolVar(&k.ifAny, "if-any", false,
		"succeed when nobody listens at the address: there is no cluster to make smaller")
	return command
}

func (a *administration) keepPeers(command *cobra.Command, k *keepOptions) error {
	if err := a.checkFlags(); err != nil { // --if-any must not hide a mistake
		return err
	}
	ctx, cancel := context.WithTimeout(command.Context(), a.timeout)
	defer cancel()
	if k.ifAny {
		listens, err := a.somebodyListens(ctx)
		if err != nil {
			return err
		}
		if !listens {
			return a.done(command.OutOrStdout(),
				"nobody listens at %s: there is no cluster to make smaller", a.address)
		}
	}
	removed, err := a.removeOthers(ctx, k, command.ErrOrStderr())
	if err != nil {
		return err
	}
	if len(removed) == 0 {
		return a.done(command.OutOrStdout(), "there is no other member than %s",
			strings.Join(k.names, ", "))
	}
	return a.done(command.OutOrStdout(), "%s: no members any more", strings.Join(removed, ", "))
}

// removeOthers removes all members that are not named in k. It retries failures until the context
// ends.
func (a *administration) removeOthers(ctx context.Context, k *keepOptions,
	notes io.Writer,
) (removed []string, err error) {
	var last error
	for {
		again, err := a.removeOneOther(ctx, k, &removed, notes)
		var unknown *codeError
		switch {
		case err == nil && again:
			continue
		case err == nil:
			return removed, nil
		case isUsage(err):
			return removed, err
		case last == nil || ctx.Err() == nil || errors.As(err, &unknown):
			// otherwise err only says that the time is over
			last = err
		}
		if !backoff.Pause(ctx, time.Second) {
			return removed, last
		}
	}
}

// removeOneOther removes one member that is not named in k, and reports whether more may be left.
// It lists the members anew each time: an earlier attempt whose outcome is unknown may have removed
// one.
func (a *administration) removeOneOther(ctx context.Context, k *keepOptions, removed *[]string,
	notes io.Writer,
) (again bool, err error) {
	var asked httpapi.Status
	if err := a.get(ctx, "/v1/status", &asked); err != nil {
		return false, err
	}
	var members []membership.Member
	if err := a.get(ctx, "/v1/members", &members); err != nil {
		return false, err
	}
	if !slices.ContainsFunc(members,
		func(m membership.Member) bool { return m.State == "leader" }) {
		return false, errors.New("there is no leader that knows who the members are")
	}
	all := slices.Clone(members)
	surplus := slices.DeleteFunc(members,
		func(m membership.Member) bool { return slices.Contains(k.names, m.Node) })
	if len(surplus) == 0 {
		return false, nil
	}
	if len(surplus) == len(all) {
		return false, usagef("none of %s is a member: that would remove all",
			strings.Join(k.names, ", "))
	}
	for _, name := range k.names {
		if !slices.Contains(k.unknown, name) &&
			!slices.ContainsFunc(all, func(m membership.Member) bool { return m.Node == name }) {
			k.unknown = append(k.unknown, name)
			// a failure to write to standard error cannot be reported
			_, _ = fmt.Fprintf(notes, "holdfast: %s is no member\n", name)
		}
	}
	if err := a.requireYes(fmt.Sprintf(
		"removes %d members for good: their data folders have to be emptied before they can join again", len(surplus))); err != nil {
		return false, err
	}
	// The node that answers this command is removed last.
	target := surplus[max(0, slices.IndexFunc(surplus,
		func(m membership.Member) bool { return string(m.ID) != asked.ID }))]
	if err := a.do(ctx, http.MethodDelete, "/v1/members/"+url.PathEscape(string(target.ID)),
		nil); err != nil {
		return false, fmt.Errorf("remove %s: %w", target.Node, err)
	}
	*removed = append(*removed, target.Node)
	return len(surplus) > 1, nil
}

// somebodyListens reports whether a process listens at the admin address. It tries for a quarter of
// --timeout, because a process may just be restarting. Then it returns false if the connection was
// refused or the host name does not exist. For any other failure, such as a host that does not
// answer at all, it returns an error: it is not known whether a process listens.
func (a *administration) somebodyListens(ctx context.Context) (bool, error) {
	address, err := a.parseAddress()
	if err != nil {
		return false, err
	}
	port := address.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[address.Scheme]
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout/4)
	defer cancel()
	const interval = time.Second
	var last error
	for {
		began := time.Now()
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp",
			net.JoinHostPort(address.Hostname(), port))
		if err == nil {
			return true, conn.Close()
		}
		var late net.Error
		if cut := errors.As(err, &late) && late.Timeout() &&
			time.Since(began) < interval/2; last == nil || !cut {
			// an attempt that was cut short tells nothing
			last = err
		}
		if !backoff.Pause(ctx, interval) {
			break
		}
	}
	var unknown *net.DNSError
	if errors.Is(last, syscall.ECONNREFUSED) || errors.As(last, &unknown) && unknown.IsNotFound {
		return false, nil
	}
	return false, fmt.Errorf("%s: %w", a.address, last)
}
