package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster"
	"holdfast/cluster/transport"
	"holdfast/internal/server/node"
	"holdfast/internal/server/settings"
	"holdfast/internal/tlsconfig"
)

// links are how a node and the other members reach each other. The links of a node that does not
// listen for members are within its process.
type links struct {
	node.Links
	// finds the first members, or a cluster to join, for a node without state
	assemble node.Assemble
	// what a node without state waits for
	waiting func() string
	// what is wrong with the connections
	notes func() []string
	// accepts the HTTP requests that other members forward
	http     net.Listener
	dialHTTP func(context.Context, raft.Server) (net.Conn, error) // connects to a member's http
}

// newLinks makes the links of a node: through the network when it listens for others, else within
// the process.
func newLinks(s *settings.Settings, identity cluster.Identity, timing cluster.Timing,
	log *slog.Logger,
) (*links, error) {
	id := identity.RaftID()
	if !s.Cluster.Listens() {
		network := cluster.NewNetwork()
		alone := []raft.Server{{ID: id, Address: raft.ServerAddress(id)}}
		return inProcess(network, id, timing, node.Members(alone)), nil
	}
	var secure *tlsconfig.Mutual
	if !s.Cluster.TLS.Insecure {
		var err error
		files := tlsconfig.Files{
			CA: s.Cluster.TLS.CAFile, Certificate: s.Cluster.TLS.CertFile,
			Key: s.Cluster.TLS.KeyFile,
		}
		if secure, err = tlsconfig.NewMutual(files, log); err != nil {
			return nil, &usageError{fmt.Errorf("cluster.tls: %w", err)}
		}
		if !secure.OwnHasName(s.Node.ID) {
			return nil, usagef(
				"cluster.tls.certFile is %q: the certificate must have %s, the id of the node, as a name: other members verify it before they know the address", s.Cluster.TLS.CertFile, s.Node.ID)
		}
	}
	const connectTimeout = 3 * time.Second
	network, err := transport.Listen(transport.Config{
		Cluster: s.Cluster.Name, ID: id, Listen: s.Cluster.Listen, Advertise: s.AdvertisedAddress(),
		TLS:     secure,
		Timeout: connectTimeout, Patience: timing.Heartbeat, Log: log,
	})
	if err != nil {
		return nil, err
	}
	log.Info("listening", "what", "members", "address", network.Address(), "advertised",
		s.AdvertisedAddress(), "tls", secure != nil)
	address := raft.ServerAddress(s.AdvertisedAddress())
	newcomer := &cluster.Newcomer{ID: id, Address: address, Log: log}
	return &links{
		waiting: newcomer.WaitReason, notes: network.Notes,
		Links: node.Links{
			Address: address, Raft: network.Raft(), Peers: network,
			Attach: func(n *cluster.Node) { network.Serve(n) },
		},
		assemble: func(ctx context.Context) ([]raft.Server, error) {
			peers, err := initialPeers(s)
			if err != nil {
				return nil, err
			}
			newcomer.Peers = peers
			newcomer.Reload = func() ([]cluster.InitialMember, error) { return initialPeers(s) }
			network.Serve(newcomer)
			return newcomer.Assemble(ctx, network)
		},
		http: network.HTTP(), dialHTTP: network.DialHTTP,
	}, nil
}

func initialPeers(s *settings.Settings) ([]cluster.InitialMember, error) {
	list, err := s.InitialPeers()
	if err != nil {
		return nil, err
	}
	peers := make([]cluster.InitialMember, len(list))
	for i, peer := range list {
		peers[i] = cluster.InitialMember{Name: peer.ID, Address: raft.ServerAddress(peer.Address)}
	}
	return peers, nil
}

// inProcess returns the links of a member of a cluster within this process.
func inProcess(network *cluster.Network, id raft.ServerID, timing cluster.Timing,
	assemble node.Assemble,
) *links {
	return &links{
		Links: node.Links{
			Address: raft.ServerAddress(id), Raft: network.Transport(id, timing), Peers: network,
			Attach: network.Attach,
		},
		assemble: assemble, waiting: func() string { return "" },
		notes: func() []string { return nil }, http: network.HTTP(id), dialHTTP: network.DialHTTP,
	}
}
