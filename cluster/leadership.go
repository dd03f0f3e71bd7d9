package cluster

import (
	"holdfast/cluster/propose"
	"holdfast/cluster/readindex"
)

// leadership is the proposer and the reader of one term in which this node leads.
type leadership struct {
	term     uint64
	proposer *propose.Proposer
	reader   *readindex.Reader
}
