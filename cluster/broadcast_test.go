package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// page returns the answer to MethodHeldRequests.
func page(next uint64, requests string) []byte {
	return append(binary.BigEndian.AppendUint64(nil, next), requests...)
}

// A new leader waits for the held requests of a majority. After that a member that hangs delays it by collectGrace at most; without a majority, the
// context bounds the wait.
func TestMemberThatHangsDelaysNoNewLeader(t *testing.T) {
	const patience = time.Minute
	for name, test := range map[string]struct {
		hang []raft.ServerID
		want time.Duration
		from []string
	}{
		"all answer":          {nil, 0, []string{"a", "b", "c", "d"}},
		"one of five hangs":   {[]raft.ServerID{"d"}, collectGrace, []string{"a", "b", "c"}},
		"two of five hang":    {[]raft.ServerID{"c", "d"}, collectGrace, []string{"a", "b"}},
		"a majority hangs":    {[]raft.ServerID{"b", "c", "d"}, patience, []string{"a"}},
		"all other ones hang": {[]raft.ServerID{"a", "b", "c", "d"}, patience, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := broadcaster{id: "self", servers: func() []raft.Server { return serversOf("self", "a", "b", "c", "d") }, log: slog.New(slog.DiscardHandler)}
				b.client = peerFunc(func(ctx context.Context, member raft.Server, _ peer.Method, request []byte) ([]byte, error) {
					switch cursor := binary.BigEndian.Uint64(request); {
					case slices.Contains(test.hang, member.ID):
						<-ctx.Done()
						return nil, ctx.Err()
					case cursor == 0:
						return page(1, "first"), nil
					default:
						return page(0, "last"), nil
					}
				})
				var mu sync.Mutex
				var from []string
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				b.collectHeld(ctx, 0, func(member string, page []byte, last bool) {
					mu.Lock()
					defer mu.Unlock()
					if last != (string(page) == "last") {
						t.Errorf("page %q of %s is the last: %v", page, member, last)
					}
					if last {
						from = append(from, member)
					}
				})
				if slices.Sort(from); !slices.Equal(from, test.from) || time.Since(began) != test.want {
					t.Errorf("after %v, want %v: all pages of %v, want %v", time.Since(began), test.want, from, test.from)
				}
			})
		})
	}
}

// A page that is too short for its cursor ends the collection from that member. It does not count as complete.
func TestShortPageOfHeldRequestsEndsTheCollection(t *testing.T) {
	b := broadcaster{id: "self", servers: func() []raft.Server { return serversOf("self", "a") }, log: slog.New(slog.DiscardHandler)}
	b.client = peerFunc(func(context.Context, raft.Server, peer.Method, []byte) ([]byte, error) { return make([]byte, 7), nil })
	b.collectHeld(t.Context(), 0, func(string, []byte, bool) { t.Error("it is handled") })
}

// held is an observer that records with which age it is asked.
type held struct{ age time.Duration }

func (*held) HandleBroadcast([]byte) {}

func (h *held) Held(cursor uint64, age time.Duration) ([]byte, uint64) {
	h.age = age
	return []byte("requests"), cursor + 1
}

// A member answers with a page, whatever age the caller asks for. A request of another length is refused.
func TestHeldRequestsAreAnsweredInPages(t *testing.T) {
	observer := &held{}
	b := broadcaster{observer: observer}
	request := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 5), 1<<63)
	body, err := b.handleHeld(request)
	if err != nil || string(body) != string(page(6, "requests")) || observer.age != 1<<32*time.Millisecond {
		t.Errorf("%q, %v; asked for age %v", body, err, observer.age)
	}
	if _, err := b.handleHeld(request[1:]); !errors.Is(err, peer.ErrRefused) {
		t.Errorf("a short request: %v", err)
	}
}
