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

// Identity names the node and the cluster that a data folder belongs to. The raft id of a member is
// its name and its incarnation (a random number). A data folder without a log gets a new
// incarnation: under its old id, a node that lost its log could vote twice in one term.
type Identity struct {
	Cluster     string `json:"cluster"`
	Node        string `json:"node"`
	Incarnation string `json:"draw"` // "draw" is the field's former name, which the file keeps
}

// RaftID returns the id under which the node is a member.
func (i Identity) RaftID() raft.ServerID { return raft.ServerID(i.Node + "." + i.Incarnation) }

var (
	// ErrForeignData says that a data folder belongs to another node or cluster.
	ErrForeignData = errors.New("the data folder belongs to another node or cluster")
	// ErrNoIdentity says that a data folder has a log, and no identity.
	ErrNoIdentity = errors.New("the data folder has a log, but no identity.json")
)

// LoadIdentity reads the identity of a data folder. If the folder has no log, it writes a new
// identity, with random as the incarnation. The error is ErrForeignData if the identity names
// another node or cluster, and ErrNoIdentity if there is a log without an identity.
func LoadIdentity(dataDir, clusterName, node string, random uint64) (Identity, error) {
	file := identityFile(dataDir)
	hasLog := raftlog.HasLog(dataDir)
	identity, err := readIdentity(file)
	switch {
	case err == nil && (identity.Cluster != clusterName || identity.Node != node):
		return Identity{}, fmt.Errorf(
			"%w: %s belongs to node %q of cluster %q, but this is node %q of cluster %q: check the folder and the names; if it has nothing to keep, empty it",
			ErrForeignData, dataDir, identity.Node, identity.Cluster, node, clusterName)
	case err == nil && hasLog:
		return identity, nil
	case errors.Is(err, fs.ErrNotExist) && hasLog:
		return Identity{}, fmt.Errorf(
			"%w: restore %s; or, if the other members are a majority without this one, empty the folder; or call `holdfast raft recover`", ErrNoIdentity, file)
	case err != nil && hasLog:
		return Identity{}, fmt.Errorf(
			"%w, or one that cannot be read (%w): restore it; or, if the other members are a majority without this one, empty the folder", ErrNoIdentity, err)
	}
	return NewIdentity(dataDir, clusterName, node, random)
}

// NewIdentity writes a new identity into a data folder, with random as the incarnation. If the
// folder has a log, the caller must make the new id a member: see Recover.
func NewIdentity(dataDir, clusterName, node string, random uint64) (Identity, error) {
	identity := Identity{
		Cluster: clusterName, Node: node,
		Incarnation: fmt.Sprintf("%016x", random),
	}
	encoded, err := json.MarshalIndent(identity, "", "  ")
	if err != nil {
		return Identity{}, err
	}
	return identity, durable.WriteFile(identityFile(dataDir), append(encoded, '\n'))
}

func identityFile(dataDir string) string { return filepath.Join(dataDir, "identity.json") }

func readIdentity(file string) (Identity, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Identity{}, err
	}
	var identity Identity
	if err := json.Unmarshal(data, &identity); err != nil {
		return Identity{}, fmt.Errorf("%s: %w", file, err)
	}
	if identity.Incarnation == "" {
		return Identity{}, fmt.Errorf("%s has no incarnation", file)
	}
	return identity, nil
}
