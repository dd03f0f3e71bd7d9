package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// While the member reads nothing, a send ends at the context's deadline, but not before
// minWriteTime and not after writeTimeout. A call that waits to write ends with its context.
func TestSendIsBoundedByItsContext(t *testing.T) {
	for name, test := range map[string]struct {
		timeout, want time.Duration
		writing       bool // another call writes
		fails         error
	}{
		"shorter than a write may take": {
			timeout: minWriteTime / 2, want: minWriteTime,
			fails: os.ErrDeadlineExceeded,
		},
		"shorter than the write limit": {
			timeout: writeTimeout / 2, want: writeTimeout / 2,
			fails: os.ErrDeadlineExceeded,
		},
		"longer than the write limit": {
			timeout: 2 * writeTimeout, want: writeTimeout,
			fails: os.ErrDeadlineExceeded,
		},
		"behind another write": {
			timeout: time.Second, want: time.Second, writing: true,
			fails: context.DeadlineExceeded,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				defer here.Close()
				defer there.Close()
				c := newConnection(here)
				if test.writing {
					go func() { _, _, _ = c.send(context.Background(), peer.MethodTerm, nil) }()
					synctest.Wait()
				}
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), test.timeout)
				defer cancel()
				_, _, err := c.send(ctx, peer.MethodTerm, nil)
				if took := time.Since(began); !errors.Is(err, test.fails) || took != test.want {
					t.Errorf("the send took %v, %v", took, err)
				}
			})
		})
	}
}

// A connection on which calls time out is closed only if nothing arrives: a large answer on a slow
// link is a sign of life.
func TestConnectionIsSilentOnlyIfNothingArrives(t *testing.T) {
	const patience, step = time.Second, 500 * time.Millisecond
	for name, test := range map[string]struct{ arrives, silent bool }{
		"a large answer arrives in pieces": {arrives: true, silent: false},
		"nothing arrives":                  {arrives: false, silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				silent := false
				client := &callClient{env: &callEnvironment{
					dial:     func(raft.ServerID, string) (net.Conn, error) { return here, nil },
					start:    func(work func()) { go work() },
					patience: patience, onSilent: func(raft.ServerAddress) { silent = true },
				}}
				defer there.Close()
				go func() { _, _ = io.Copy(io.Discard, there) }()
				large := make(chan error, 1)
				go func() {
					_, err := client.call(t.Context(), peer.MethodPeerStatus, nil)
					large <- err
				}()
				// of the bubble: the next calls are sent later than the connection was opened
				time.Sleep(step)
				var answer bytes.Buffer
				_ = writeFrame(&answer, codeAnswer, 1, make([]byte, 100))
				for answer.Len() > 0 {
					ctx, cancel := context.WithTimeout(t.Context(), step)
					if _, err := client.call(ctx, peer.MethodTerm, nil); !errors.Is(err,
						context.DeadlineExceeded) && !silent {
						t.Errorf("a call that is not answered: %v", err)
					}
					cancel()
					piece := answer.Next(10)
					if test.arrives {
						_, _ = there.Write(piece)
					}
				}
				if silent != test.silent {
					t.Errorf("silent: %t", silent)
				}
				synctest.Wait()
				client.close() // fails the call that has no answer
				if err := <-large; (err != nil) != test.silent {
					t.Errorf("the large answer: %v", err)
				}
			})
		})
	}
}

// A call that is given up at once does not end the connection for other calls, however long nothing
// has arrived on it.
func TestBriefCallEndsNoIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		client := &callClient{env: &callEnvironment{
			dial:     func(raft.ServerID, string) (net.Conn, error) { return here, nil },
			start:    func(work func()) { go work() },
			patience: time.Second,
			onSilent: func(raft.ServerAddress) { t.Error("the member counts as silent") },
		}}
		go func() { _, _ = io.Copy(io.Discard, there) }()
		long := make(chan error, 1)
		go func() {
			_, err := client.call(t.Context(), peer.MethodHash, nil)
			long <- err
		}()
		time.Sleep(time.Hour)
		brief, stop := context.WithTimeout(t.Context(), time.Millisecond)
		defer stop()
		if _, err := client.call(brief, peer.MethodHash, nil); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("the brief call: %v", err)
		}
		_ = writeFrame(there, codeAnswer, 1, nil)
		if err := <-long; err != nil {
			t.Errorf("the long call: %v", err)
		}
		client.close()
	})
}

// A connection of raft's on which nothing was sent yet is not silent: raft has just dialled it.
func TestNewConnectionIsNotSilent(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	var open conns[*raftConn]
	layer := streamLayer{
		ctx: t.Context(), outbound: &open,
		dial: func(context.Context, raft.ServerID, string) (net.Conn, error) { return here, nil },
	}
	conn, err := layer.Dial(joinTarget("n2", "n2:7400"), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if opened := conn.(*raftConn); opened.silentTo(opened.target, time.Minute) {
		t.Error("it counts as silent")
	}
}

// Idle clients, such as those of addresses that joining nodes named, are removed. A client that is
// connected or in use stays.
func TestClientsOfGoneMembersAreRemoved(t *testing.T) {
	listener := listen(t, "n2.b", nil, knowing(peer.Known, "n1.a"))
	caller := listen(t, "n1.a", nil, knowing(peer.Known))
	if err := call(t, caller, listener.server(), peer.MethodTerm); err != nil {
		t.Fatal(err)
	}
	const many = 100
	for i := range many {
		client, err := caller.calls.get(raft.ServerID(fmt.Sprintf("n3.%d", i)), "127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		client.retryAt = time.Now().Add(-time.Second)
		if i > 0 {
			caller.calls.release(client)
		}
	}
	if _, err := caller.calls.get("n4.a", "127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	if n := len(caller.calls.byPeer); n != 3 { // the connected one, the one in use, and the last
		t.Errorf("%d clients", n)
	}
}
