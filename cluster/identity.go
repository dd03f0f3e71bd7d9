package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"holdfast/cluster/raftlog"
	"holdfast/internal/durable"
)

// Identity says to which node of which cluster a data folder belongs. The raft id of a member is its name and its incarnation. A new
// incarnation is drawn when the data folder has no identity, or no log. A node that lost its disk must not come back under the id that it had before: it would vote again in terms in which it has voted.
type Identity struct {
	Cluster     string `json:"cluster"`
	Node        string `json:"node"`
	Incarnation string `json:"draw"`
}

// RaftID returns the id under which the node is a member.
func (i Identity) RaftID() raft.ServerID { return raft.ServerID(i.Node + "." + i.Incarnation) }

// ErrForeignData says that a data folder belongs to another node or cluster.
var ErrForeignData = errors.New("the data folder belongs to somebody else")

// LoadIdentity reads the identity of a data folder, or makes it with a random number as its incarnation if there is none, or no log.
// The error is ErrForeignData if the folder belongs to another node or cluster.
func LoadIdentity(dataDir, clusterName, node string, random uint64) (Identity, error) {
	file := filepath.Join(dataDir, "identity.json")
	data, err := os.ReadFile(file)
	if !raftlog.HasLog(dataDir) {
		// The votes that were given under an earlier id are lost with the log: it must not be used again.
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		identity := Identity{Cluster: clusterName, Node: node, Incarnation: fmt.Sprintf("%016x", random)}
		encoded, err := json.MarshalIndent(identity, "", "  ")
		if err != nil {
			return Identity{}, err
		}
		return identity, durable.WriteFile(file, append(encoded, '\n'))
	}
	if err != nil {
		return Identity{}, fmt.Errorf("read identity: %w", err)
	}
	var identity Identity
	if err := json.Unmarshal(data, &identity); err != nil {
		return Identity{}, fmt.Errorf("read identity: %s: %w", file, err)
	}
	if identity.Incarnation == "" {
		return Identity{}, fmt.Errorf("read identity: %s has no incarnation", file)
	}
	if identity.Cluster != clusterName || identity.Node != node {
		return Identity{}, fmt.Errorf("%w: %s is of node %q in cluster %q, not of %q in %q",
			ErrForeignData, dataDir, identity.Node, identity.Cluster, node, clusterName)
	}
	return identity, nil
}
