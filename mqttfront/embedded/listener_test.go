package embedded

import (
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/mochi-mqtt/server/v2/listeners"
)

// exhausted is a listener whose first calls of Accept fail, as in a process without free file
// descriptors.
type exhausted struct {
	net.Listener
	left atomic.Int32 // number of calls that still fail
}

func (e *exhausted) Accept() (net.Conn, error) {
	if e.left.Add(-1) >= 0 {
		return nil, syscall.EMFILE
	}
	return e.Listener.Accept()
}

// The listener goes on after an error of Accept.
func TestListenerOutlivesExhaustion(t *testing.T) {
	l := newListener(Config{Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)},
		func(net.Conn) {})
	if err := l.Init(nil); err != nil {
		t.Fatal(err)
	}
	network := &exhausted{Listener: l.network}
	network.left.Store(2)
	l.network = network
	established, served := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		l.Serve(listeners.EstablishFn(func(string,
			net.Conn,
		) error {
			close(established)
			return nil
		}))
	}()
	conn, err := net.Dial("tcp", l.Address())
	if err != nil {
		t.Fatal(err)
	}
	<-established
	_ = conn.Close() // nothing was written
	l.Close(func(string) {})
	<-served
}
