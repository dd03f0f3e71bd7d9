package peer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// Status is what a member says of itself.
type Status struct {
	ID       raft.ServerID      `json:"id"`
	Address  raft.ServerAddress `json:"address"`
	HasState bool               `json:"hasState"` // it belongs, or has belonged, to a cluster
	// leader, follower, candidate, shutdown, or joining (in no cluster yet)
	State     string        `json:"state"`
	Leader    raft.ServerID `json:"leader,omitempty"`
	Servers   []raft.Server `json:"servers,omitempty"`
	Term      uint64        `json:"term"`      // raft's current term
	LastIndex uint64        `json:"lastIndex"` // index of the last log entry
	LastTerm  uint64        `json:"lastTerm"`  // term of the last log entry
	Commit    uint64        `json:"commitIndex"`
	Applied   uint64        `json:"appliedIndex"`
	// since the last contact with the leader (raft's LastContact); 0 on the leader, negative for
	// never
	Contact time.Duration `json:"lastContact"`
	// the newest log version that its build can apply
	Version  uint32 `json:"version"`
	BrokerUp bool   `json:"brokerUp"`
	DiskLow  bool   `json:"diskLow"`
	// AutoTotalBytes is what limits.totalBytes: auto is by this member's memory, in bytes; 0 is
	// unknown.
	AutoTotalBytes int64 `json:"autoTotalBytes,omitempty"`
	// Question stands for the latest question, 0 unless this member's broker has acknowledged it,
	// and Place is where the broker is in the list of addresses. The leader says in Heard whether
	// it gets the questions of the others, and in Alone that more voters are at another broker than
	// at its own.
	Question uint64                    `json:"question,omitempty"`
	Place    int                       `json:"place,omitempty"`
	Heard    map[raft.ServerID]Hearing `json:"heard,omitempty"`
	Alone    bool                      `json:"alone,omitempty"`
	// its wall clock, milliseconds since the Unix epoch
	Wall int64 `json:"wall"`
	// Acknowledged has, for each other member, the highest commit index that it reported to this
	// process: see Statuses.Acknowledged.
	Acknowledged map[raft.ServerID]uint64 `json:"acknowledged,omitempty"`
}

// Hearing says whether the leader gets what a member publishes.
type Hearing uint8

// Whether the leader gets what a member publishes. The zero value is that nothing is known.
const (
	Heard     Hearing = iota + 1
	Unheard           // not yet
	Elsewhere         // not any more: the member is at another broker
)

// AskStatus asks a member what it says of itself.
func AskStatus(ctx context.Context, client Client, member raft.Server) (Status, error) {
	body, err := client.Call(ctx, member, MethodPeerStatus, nil)
	if err != nil {
		return Status{}, err
	}
	var status Status
	if err := json.Unmarshal(body, &status); err != nil {
		return Status{}, fmt.Errorf("%w: %w", errAnswer, err)
	}
	return status, nil
}

var errAnswer = errors.New("an answer that cannot be read")

// EncodeTerm returns the response to MethodTerm: raft's current term, and the member's wall clock
// in milliseconds since the Unix epoch. The caller must read the term after the request arrived.
// Nothing reads the wall clock any more; it stays for builds that do.
func EncodeTerm(term uint64, wall int64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, term), uint64(wall))
}

// AskTerm asks a member for raft's current term. The member reads it after the call began.
func AskTerm(ctx context.Context, client Client, member raft.Server) (uint64, error) {
	body, err := client.Call(ctx, member, MethodTerm, nil)
	if err != nil {
		return 0, err
	}
	if len(body) < 16 {
		return 0, errAnswer
	}
	return binary.BigEndian.Uint64(body), nil
}
