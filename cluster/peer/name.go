package peer

import (
	"cmp"
	"net"
	"slices"
	"strings"

	"github.com/hashicorp/raft"
)

// NodeName returns the name of the node in a raft id, which is name.incarnation.
func NodeName(id raft.ServerID) string {
	name := string(id)
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		return name[:dot]
	}
	return name
}

// CompareNames orders node names by length first: n2 goes before n10.
func CompareNames(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// HostOf returns the host of an address, without its port.
func HostOf(address raft.ServerAddress) string {
	host, _, err := net.SplitHostPort(string(address))
	if err != nil {
		return string(address)
	}
	return host
}

// Others returns the servers without the one with the id, in their order.
func Others(servers []raft.Server, id raft.ServerID) []raft.Server {
	return slices.DeleteFunc(slices.Clone(servers), func(s raft.Server) bool { return s.ID == id })
}

// Find returns the server with the id, if there is one.
func Find(servers []raft.Server, id raft.ServerID) (raft.Server, bool) {
	for _, server := range servers {
		if server.ID == id {
			return server, true
		}
	}
	return raft.Server{}, false
}
