// Package sdk tests a running `holdfast dev` with the Go client library that users of this protocol
// have, unmodified (here: the SDK). It is a module of its own, so that the product does not depend
// on that library.
package sdk

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run starts the product, unless the environment names a broker with a store behind it already.
func run(m *testing.M) (int, error) {
	if os.Getenv("HOLDFAST_BROKER") != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "holdfast-sdk-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-o", binary, "./cmd/holdfast")
	build.Dir, build.Stderr = filepath.Join("..", ".."), os.Stderr
	if err := build.Run(); err != nil {
		return 0, fmt.Errorf("build holdfast: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return 0, err
	}
	product := exec.Command(binary, "dev", "--listen", address)
	output, err := product.StdoutPipe()
	if err != nil {
		return 0, err
	}
	logs, err := product.StderrPipe()
	if err != nil {
		return 0, err
	}
	if err := product.Start(); err != nil {
		return 0, err
	}
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		noticeLeaderChanges(logs)
	}()
	defer func() {
		_ = product.Process.Signal(os.Interrupt)
		<-logged
		_ = product.Wait()
	}()
	ready := false
	for lines := bufio.NewScanner(output); !ready && lines.Scan(); {
		ready = strings.Contains(lines.Text(), "Holdfast is ready")
	}
	if !ready {
		return 0, fmt.Errorf("holdfast dev did not become ready")
	}
	if err := os.Setenv("HOLDFAST_BROKER", address); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// noticeLeaderChanges copies the product's log to standard error until its end. When a leadership
// ends, it makes the tests accept repeated notifications. That happens on a machine that stalls for
// longer than the election timeout.
func noticeLeaderChanges(logs io.Reader) {
	for lines := bufio.NewScanner(logs); lines.Scan(); {
		fmt.Fprintln(os.Stderr, lines.Text())
		if strings.Contains(lines.Text(), "leadership ended") {
			_ = os.Setenv("HOLDFAST_REPEATS", "1")
		}
	}
}
