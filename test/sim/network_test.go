package sim

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// testLinks connects the hosts near and far, and returns both ends of a connection between them.
func testLinks(t *testing.T) (n *network, near, far *conn) {
	t.Helper()
	n = newNetwork(rand.New(rand.NewPCG(1, 1)), time.Millisecond)
	l, err := n.newStack("far").listen("far:1")
	if err != nil {
		t.Fatal(err)
	}
	dialled, err := n.newStack("near").DialBroker(context.Background(), "far:1")
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return n, dialled.(*conn), accepted.(*conn)
}

// writeUntilFailure writes every few milliseconds, and returns how long it took until a Write
// failed; limit if none did.
func writeUntilFailure(t *testing.T, c net.Conn, limit time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	for time.Since(began) < limit {
		if _, err := c.Write([]byte("x")); err != nil {
			if !errors.Is(err, errReset) {
				t.Errorf("Write returned %v, want %v", err, errReset)
			}
			return time.Since(began)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return limit
}

func TestCloseReachesTheReaderAfterTheData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, near, far := testLinks(t)
		if _, err := far.Write([]byte("last words")); err != nil {
			t.Fatal(err)
		}
		closed := time.Now()
		_ = far.Close()
		if data, err := io.ReadAll(near); err != nil || string(data) != "last words" {
			t.Errorf("read %q, %v", data, err)
		}
		if time.Since(closed) == 0 {
			t.Error("the end of the stream took no time")
		}
	})
}

func TestWriterLearnsOfACloseByTheAnswer(t *testing.T) {
	const limit = time.Second
	for _, test := range []struct {
		name   string
		end    func(n *network, far *conn)
		learns bool
	}{
		{"closed", func(_ *network, far *conn) { _ = far.Close() }, true},
		{"killed", func(_ *network, far *conn) { far.stack.die(false) }, true},
		{"without power", func(n *network,
			far *conn,
		) {
			n.host("far").power.close()
			far.stack.die(true)
		}, false},
		{"without power, then rebooted", func(n *network, far *conn) {
			n.host("far").power.close()
			far.stack.die(true)
			n.host("far").power.open()
			n.rebooted("far")
		}, true},
		{
			"stopped after the close",
			func(n *network, far *conn) { _ = far.Close(); n.host("far").running.close() }, false,
		},
		{
			"closed behind a cut to it",
			func(n *network, far *conn) { n.link(far.peer.link).gate.close(); _ = far.Close() },
			false,
		},
		{
			"closed behind a cut from it",
			func(n *network, far *conn) { n.link(far.link).gate.close(); _ = far.Close() }, false,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, near, far := testLinks(t)
				test.end(n, far)
				took := writeUntilFailure(t, near, limit)
				if took == 0 || (took < limit) != test.learns {
					t.Errorf("a Write failed after %v, want a failure below %v: %v", took, limit,
						test.learns)
				}
			})
		})
	}
}

func TestResetPassesWhenTheCutEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, near, far := testLinks(t)
		cut := &n.link(far.link).gate
		cut.close()
		_ = far.Close()
		writeUntilFailure(t, near, time.Second)
		if err := near.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("behind the cut, Read returned %v, want a timeout", err)
		}
		if err := near.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		cut.open()
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, errReset) {
			t.Errorf("after the cut, Read returned %v, want %v", err, errReset)
		}
	})
}

// A kernel answers with a reset if an end is closed before it has read everything.
func TestCloseWithUnreadDataResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, near, far := testLinks(t)
		if _, err := near.Write([]byte("not read")); err != nil {
			t.Fatal(err)
		}
		_ = far.Close()
		time.Sleep(time.Second)
		if _, err := near.Write([]byte("x")); !errors.Is(err, errReset) {
			t.Errorf("Write returned %v, want %v", err, errReset)
		}
	})
}
