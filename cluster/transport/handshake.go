package transport

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// kind says what a connection is for.
type kind string

const (
	kindRaft kind = "raft"
	kindCall kind = "call"
	kindHTTP kind = "http"
)

// hello is the caller's first message on a connection. The names of its fields are part of the
// protocol between members.
type hello struct {
	Protocol int    `json:"protocol"`
	Cluster  string `json:"cluster"`
	Kind     kind   `json:"kind"`
	// id of the member that is meant. Empty means whichever node listens there: only for kindCall,
	// and the caller gets no rights of a member
	To      raft.ServerID `json:"to,omitempty"`
	From    raft.ServerID `json:"from"`
	Address string        `json:"address"` // host:port at which the caller is reached
}

// welcome is the listener's answer to a hello.
type welcome struct {
	ID     raft.ServerID `json:"id"`
	Refuse refusal       `json:"refuse,omitempty"`
}

// refusal says why a connection is refused.
type refusal string

const (
	refuseProtocol    refusal = "protocol"
	refuseCluster     refusal = "cluster"
	refuseWrongTarget refusal = "id"
	refuseCertificate refusal = "certificate"
	refuseNotAMember  refusal = "member"
)

// protocolVersion is the version of the handshake and of the frames that follow it.
const protocolVersion = 1

// Errors of refused connections. Each wraps peer.ErrUnreachable: no request was sent.
var (
	ErrProtocol = fmt.Errorf("%w: it speaks another version of the protocol between members",
		peer.ErrUnreachable)
	ErrCluster     = fmt.Errorf("%w: it belongs to another cluster", peer.ErrUnreachable)
	ErrOtherMember = fmt.Errorf("%w: another member listens there", peer.ErrUnreachable)
	ErrCertificate = fmt.Errorf("%w: it refuses this node's certificate", peer.ErrUnreachable)
	ErrNotAMember  = fmt.Errorf("%w: it does not know this node as a member", peer.ErrUnreachable)
)

func (r refusal) err() error {
	switch r {
	case "":
		return nil
	case refuseCluster:
		return ErrCluster
	case refuseWrongTarget:
		return ErrOtherMember
	case refuseCertificate:
		return ErrCertificate
	case refuseNotAMember:
		return ErrNotAMember
	default:
		return ErrProtocol
	}
}

// maxHello is the maximum size of a hello or a welcome in bytes. It limits what is read before the
// other side is known.
const maxHello = 4096

var errHello = errors.New("malformed handshake")

func writeMessage(w io.Writer, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(body) > maxHello {
		return errHello
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func readMessage(r io.Reader, message any) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(size[:])
	if length > maxHello {
		return errHello
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, message); err != nil {
		return fmt.Errorf("%w: %w", errHello, err)
	}
	return nil
}

// greet sends the hello and reads the answer. It returns the listener's id. The error wraps
// peer.ErrRejected if the listener is the member named by to, and refuses the connection.
func (d *dialer) greet(conn net.Conn, k kind, to raft.ServerID) (raft.ServerID, error) {
	ours := hello{
		Protocol: protocolVersion, Cluster: d.config.Cluster, Kind: k, To: to, From: d.config.ID,
		Address: d.config.Advertise,
	}
	if err := writeMessage(conn, &ours); err != nil {
		return "", err
	}
	var answer welcome
	if err := readMessage(conn, &answer); err != nil {
		return "", err
	}
	err := answer.Refuse.err()
	if err != nil && answer.ID == to {
		err = fmt.Errorf("%w: %w", peer.ErrRejected, err)
	}
	return answer.ID, err
}

// admitter decides whether a connection is admitted.
type admitter struct {
	config   *Config
	standing func(id raft.ServerID) (peer.Standing, raft.ServerAddress)
}

// admit reads the hello and answers it. A caller without a certificate of a configured authority
// does not get here: its TLS handshake fails.
func (a admitter) admit(conn net.Conn) (hello, error) {
	var theirs hello
	if err := readMessage(conn, &theirs); err != nil {
		return theirs, err
	}
	refused := a.judge(conn, &theirs)
	if err := writeMessage(conn, &welcome{ID: a.config.ID, Refuse: refused}); err != nil {
		return theirs, err
	}
	if refused == refuseCertificate {
		return theirs, fmt.Errorf("%w: %s at %s", errRefusedCertificate, theirs.From,
			theirs.Address)
	}
	if refused != "" {
		return theirs, fmt.Errorf("refused a connection from %s at %s to %q: %s", theirs.From,
			theirs.Address, theirs.To, refused)
	}
	return theirs, nil
}

// judge says why a connection is refused; empty admits it.
func (a admitter) judge(conn net.Conn, theirs *hello) refusal {
	switch {
	case theirs.Protocol != protocolVersion:
		return refuseProtocol
	case theirs.Cluster != a.config.Cluster:
		return refuseCluster
	case theirs.To != a.config.ID && (theirs.To != "" || theirs.Kind != kindCall):
		return refuseWrongTarget
	case theirs.To == "":
		return "" // what it may ask for depends on its certificate
	}
	standing, address := a.standing(theirs.From)
	name := peer.NodeName(theirs.From)
	switch { // the certificate of a Known member must name the host of its address, too
	case standing == peer.Stranger || standing == peer.Possible && theirs.Kind == kindHTTP:
		return refuseNotAMember
	case standing == peer.Known && a.config.TLS.PeerHasName(conn, name, peer.HostOf(address)),
		a.config.TLS.PeerHasName(conn, name):
		return ""
	default:
		return refuseCertificate
	}
}
