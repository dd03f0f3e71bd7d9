package cluster

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// broadcaster sends messages to the observers (the front ends) of other members, and collects the requests that they hold: those that are received and not
// known to be answered. It is safe for concurrent use.
type broadcaster struct {
	id       raft.ServerID        // of this member
	servers  func() []raft.Server // all members
	client   peer.Client
	observer interface {
		HandleBroadcast(message []byte)
		Held(cursor uint64, age time.Duration) (page []byte, next uint64)
	}
	log *slog.Logger
}

// broadcast sends a message to the observers of all other members, once. It returns when each member has answered or cannot be reached, or when the
// context ends.
func (b *broadcaster) broadcast(ctx context.Context, message []byte) {
	var calling sync.WaitGroup
	for _, server := range peer.Others(b.servers(), b.id) {
		calling.Go(func() {
			if _, err := b.client.Call(ctx, server, peer.MethodBroadcast, message); err != nil {
				b.log.Debug("a broadcast to a member failed", "id", server.ID, "error", err)
			}
		})
	}
	calling.Wait()
}

// collectGrace bounds how long collectHeld waits for the remaining members once more than half of all members have answered. This member and the
// non-voters count. A member that hangs must not delay a new leader.
const collectGrace = 50 * time.Millisecond

// collectHeld implements Node.CollectHeld: it collects requests that other members hold for at least age.
func (b *broadcaster) collectHeld(ctx context.Context, age time.Duration, handlePage func(member string, page []byte, last bool)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	servers := b.servers()
	others := peer.Others(servers, b.id)
	complete := make(chan bool, len(others))
	var collecting sync.WaitGroup
	for _, server := range others {
		collecting.Go(func() { complete <- b.collectFrom(ctx, server, age, handlePage) })
	}
	var grace <-chan time.Time
	for ended, answered := 0, 1; ended < len(others); { // this member counts, too
		select {
		case ok := <-complete:
			ended++
			if ok {
				answered++
			}
			if answered > len(servers)/2 && grace == nil {
				timer := time.NewTimer(collectGrace)
				defer timer.Stop()
				grace = timer.C
			}
		case <-grace:
			ended = len(others)
		case <-ctx.Done():
			ended = len(others)
		}
	}
	cancel()
	collecting.Wait()
}

// collectFrom collects the requests that one member holds, and reports whether it sent all of them.
func (b *broadcaster) collectFrom(ctx context.Context, server raft.Server, age time.Duration, handlePage func(member string, page []byte, last bool)) bool {
	for cursor := uint64(0); ; {
		millis := uint64((age + time.Millisecond - 1).Milliseconds()) // rounded up, because age 0 asks for all held requests
		request := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, cursor), millis)
		body, err := b.client.Call(ctx, server, peer.MethodHeldRequests, request)
		if err == nil && len(body) < 8 {
			err = fmt.Errorf("the page of held requests has %d bytes, fewer than its cursor", len(body))
		}
		if err != nil {
			b.log.Debug("a member did not give all requests that it holds", "id", server.ID, "error", err)
			return false
		}
		cursor = binary.BigEndian.Uint64(body)
		handlePage(string(server.ID), body[8:], cursor == 0)
		if cursor == 0 {
			return true
		}
	}
}

// handleBroadcast gives another member's message to this node's observer.
func (b *broadcaster) handleBroadcast(message []byte) { b.observer.HandleBroadcast(message) }

// handleHeld returns a page of the requests that this node's observer holds.
func (b *broadcaster) handleHeld(request []byte) ([]byte, error) {
	if len(request) != 16 {
		return nil, fmt.Errorf("%w: malformed request for held requests", peer.ErrRefused)
	}
	// The bound keeps the duration from an overflow.
	age := time.Duration(min(binary.BigEndian.Uint64(request[8:]), 1<<32)) * time.Millisecond
	page, next := b.observer.Held(binary.BigEndian.Uint64(request), age)
	return append(binary.BigEndian.AppendUint64(nil, next), page...), nil
}
