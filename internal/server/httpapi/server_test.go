package httpapi

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
)

// failingListener is a net.Listener that cannot accept connections.
type failingListener struct{ net.Listener }

var errAccept = errors.New("accept: bad file descriptor")

func (failingListener) Accept() (net.Conn, error) { return nil, errAccept }

// lineWriter sends each write to a channel.
type lineWriter chan string

func (w lineWriter) Write(line []byte) (int, error) {
	w <- string(line)
	return len(line), nil
}

// A server that can no longer accept connections says so in the log at once, and returns the error
// when it is closed.
func TestFailedListenerIsLogged(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lines := make(lineWriter, 10)
	s := Serve(failingListener{listener}, http.NotFoundHandler(),
		slog.New(slog.NewTextHandler(lines, nil)))
	if line := <-lines; !strings.Contains(line, "level=ERROR") ||
		!strings.Contains(line, errAccept.Error()) || !strings.Contains(line, s.Address()) {
		t.Errorf("%s", line)
	}
	if err := s.Close(t.Context()); !errors.Is(err, errAccept) {
		t.Errorf("close: %v", err)
	}
}
