package cluster

import (
	"holdfast/cluster/propose"
	"holdfast/cluster/readindex"
)

// leadership is what this node does while it leads in one term.
type leadership struct {
	term     uint64
	proposer *propose.Proposer
	reader   *readindex.Reader
}
