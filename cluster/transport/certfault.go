package transport

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/internal/tlsconfig"
)

// certFaults remembers which connections failed because of a certificate. Raft and the calls only
// see that a member cannot be reached, so a member that is refused looks like one that is down. Its
// methods are safe for concurrent use.
type certFaults struct {
	log *slog.Logger

	mu      sync.Mutex
	dialled map[raft.ServerID]certFault // by member, of the connections that this one opened
	logged  map[string]time.Time        // when a line was logged last, by whom and what it is about
}

type certFault struct {
	note string
	at   time.Time
}

const (
	// certFaultAge is for how long a fault that did not come again is told.
	certFaultAge = 30 * time.Second
	// certFaultsLogged bounds the lines that are told apart; each is logged once in certFaultPause.
	// Whoever connects decides what it is about, so beyond the bound nothing is logged.
	certFaultsLogged = 64
	certFaultPause   = time.Hour
)

func newCertFaults(log *slog.Logger) *certFaults {
	return &certFaults{
		log: log, dialled: make(map[raft.ServerID]certFault), logged: make(map[string]time.Time),
	}
}

// dueLocked reports whether a line is to be logged. f.mu must be held.
func (f *certFaults) dueLocked(about string, now time.Time) bool {
	if last, known := f.logged[about]; known && now.Sub(last) < certFaultPause {
		return false
	}
	maps.DeleteFunc(f.logged,
		func(_ string, last time.Time) bool { return now.Sub(last) >= certFaultPause })
	if len(f.logged) >= certFaultsLogged {
		return false
	}
	f.logged[about] = now
	return true
}

// reasonOf returns a word for why this side refused a certificate, empty if the error is about
// something else. Go's own text may have the time in it.
func reasonOf(err error) string {
	var verification *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(err, tlsconfig.ErrOtherName), errors.Is(err, errRefusedCertificate):
		return "name"
	case errors.As(err, &authority):
		return "authority"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "expired"
	case errors.As(err, &invalid), errors.As(err, &verification):
		return "other"
	default:
		return ""
	}
}

// ended notes how opening a connection to a member ended. A member that was never reached is told
// by its address.
func (f *certFaults) ended(to raft.ServerID, address string, err error) {
	who := peer.NodeName(to)
	if to == "" {
		who = address
		to = raft.ServerID(address)
	}
	fault, reason := certFault{at: time.Now()}, reasonOf(err)
	var remote *net.OpError
	switch {
	case errors.Is(err, ErrCertificate):
		fault.note = fmt.Sprintf(
			"%s refuses the certificate of this node: it has to name the node's id and, as a member's, its host", who)
	case reason != "":
		fault.note = fmt.Sprintf("this node refuses the certificate of %s: %v", who, err)
	case errors.As(err, &remote) && remote.Op == "remote error":
		fault.note = fmt.Sprintf("%s refuses the certificate of this node: %v", who, remote.Err)
	}
	f.mu.Lock()
	due := false
	if fault.note != "" {
		f.dialled[to] = fault
		due = f.dueLocked("to "+who+" "+reason, fault.at)
	} else if err == nil {
		delete(f.dialled, to)
	}
	f.mu.Unlock()
	if due {
		f.log.Warn(fault.note, "see", "holdfast config check, and holdfast tls show")
	}
}

// refused notes that a connection from a host was not admitted. It is logged if that is because of
// a certificate.
func (f *certFaults) refused(from net.Addr, err error) {
	reason := reasonOf(err)
	if reason == "" {
		return
	}
	host, _, splitErr := net.SplitHostPort(from.String())
	if splitErr != nil {
		host = from.String()
	}
	f.mu.Lock()
	due := f.dueLocked("from "+host+" "+reason, time.Now())
	f.mu.Unlock()
	if due {
		f.log.Warn("a member's connection is refused because of its certificate", "host", host,
			"error", err)
	}
}

// notes returns the faults of the last moments.
func (f *certFaults) notes() (notes []string) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, fault := range f.dialled {
		if now.Sub(fault.at) > certFaultAge {
			delete(f.dialled, id)
			continue
		}
		notes = append(notes, fault.note)
	}
	slices.Sort(notes)
	return notes
}

// errRefusedCertificate says that this member refused a connection: its certificate does not name
// the member that it is said to come from.
var errRefusedCertificate = errors.New("the certificate does not name the member")
