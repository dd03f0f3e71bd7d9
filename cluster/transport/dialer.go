package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// dialer opens connections to other members.
type dialer struct {
	config *Config
	faults *certFaults
}

// dial opens a connection to a member, and returns the id of the member that listens there. If to
// is empty, any node may listen there.
func (d *dialer) dial(ctx context.Context, k kind, to raft.ServerID, address string) (net.Conn,
	raft.ServerID, error,
) {
	ctx, cancel := context.WithTimeout(ctx, d.config.Timeout)
	defer cancel()
	raw, err := d.config.Network.Dial(ctx, address)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", peer.ErrUnreachable, err)
	}
	conn, id, err := d.open(ctx, raw, k, to, address)
	d.faults.ended(to, address, err)
	return conn, id, err
}

// open makes the handshakes on a new connection. It closes the connection if they fail.
func (d *dialer) open(ctx context.Context, raw net.Conn, k kind, to raft.ServerID,
	address string,
) (net.Conn, raft.ServerID, error) {
	tune(raw, k)
	conn := d.config.TLS.Client(raw, peer.HostOf(raft.ServerAddress(address)), peer.NodeName(to))
	// The handshake ends with the context, whatever the other side does.
	ended := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	id, err := d.greet(conn, k, to)
	if !ended() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close() // the earlier error is returned
		if !errors.Is(err, peer.ErrUnreachable) {
			err = fmt.Errorf("%w: %w", peer.ErrUnreachable, err)
		}
		return nil, id, err
	}
	return conn, id, nil
}

// joinTarget joins an id and an address to the address id@address, by which raft's transport dials.
func joinTarget(id raft.ServerID, address raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "@" + address
}

// splitTarget is the reverse of joinTarget. A host has no '@'.
func splitTarget(joined raft.ServerAddress) (raft.ServerID, string) {
	at := strings.LastIndexByte(string(joined), '@')
	if at < 0 {
		return "", string(joined)
	}
	return raft.ServerID(joined[:at]), string(joined[at+1:])
}
