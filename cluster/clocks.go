package cluster

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// wall returns the cluster clock as this node, as the leader, stamps it: the lower median of the wall clocks of the voters in
// contact. One node with a wrong clock changes nothing, leader or not.
func (n *Node) wall() int64 { return n.world.Clock.Wall() + n.wallOffset.Load() }

// watchClocks asks the voters for their wall clocks every second.
func (n *Node) watchClocks(ctx context.Context) {
	const interval = time.Second
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		n.wallOffset.Store(n.medianOffset(ctx, interval))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (n *Node) medianOffset(ctx context.Context, timeout time.Duration) int64 {
	future := n.raft.GetConfiguration()
	if future.Error() != nil {
		return n.wallOffset.Load()
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var mu sync.Mutex
	offsets := []int64{0} // this node's own
	var asking sync.WaitGroup
	for _, server := range future.Configuration().Servers {
		if server.ID == n.config.ID || server.Suffrage != raft.Voter {
			continue
		}
		asking.Go(func() {
			answer, err := n.world.Peers.Ask(ctx, server)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			offsets = append(offsets, answer.Wall-n.world.Clock.Wall())
		})
	}
	asking.Wait()
	slices.Sort(offsets)
	return offsets[(len(offsets)-1)/2]
}
