//go:build mutant_read_cache

package cluster

import (
	"sync"
	"time"

	"holdfast/fsm"
)

type cached struct {
	result fsm.Result
	at     time.Duration
}

var cache sync.Map // of all readers, by key

// readOne takes what it read a moment ago for what is there.
func (r *reader) readOne(m *fsm.Machine, command *fsm.Command) fsm.Result {
	const moment = 100 * time.Millisecond
	now := r.node.world.Clock.Monotonic()
	if known, ok := cache.Load(string(command.Key)); ok && now-known.(cached).at < moment {
		return known.(cached).result
	}
	result := m.Read(command)
	cache.Store(string(command.Key), cached{result, now})
	return result
}
