// Package integration runs the real holdfast command against real brokers. Most clients share no
// code with it: plain MQTT clients, mosquitto_rr and Debian's python3-paho-mqtt. Some tests use
// package client.
package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/testwait"
)

// binary is the holdfast command under test, built once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "holdfast-integration-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-o", binary, "holdfast/cmd/holdfast")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// need returns the path of a program. If it is missing, the test fails: make test installs what
// these tests need.
func need(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		for _, dir := range []string{"/usr/sbin", "/usr/local/sbin"} {
			if candidate := filepath.Join(dir, program); exists(candidate) {
				return candidate
			}
		}
		t.Fatalf("%s is missing: install the Debian packages mosquitto, mosquitto-clients and python3-paho-mqtt (make packages)", program)
	}
	return path
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// process is a program that a test has started. Its output is kept, and logged if the test fails.
type process struct {
	t       testing.TB
	command *exec.Cmd
	output  lockedBuffer
	exited  chan struct{}
}

type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

func start(t testing.TB, name string, arguments ...string) *process {
	t.Helper()
	p := &process{t: t, command: exec.Command(name, arguments...), exited: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = &p.output, &p.output
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.command.Wait() // how it ended is in ProcessState
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("output of %s:\n%s", filepath.Base(name), tail(p.output.String(), 4000))
		}
	})
	return p
}

func tail(text string, most int) string {
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}

func (p *process) kill() {
	_ = p.command.Process.Kill() // it may have ended already
	<-p.exited
}

// stop ends the process as an operator would, and returns its exit code and how long it took.
func (p *process) stop() (int, time.Duration) {
	began := time.Now()
	_ = p.command.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.exited:
	case <-time.After(30 * time.Second):
		p.t.Error("SIGTERM does not stop it")
		p.kill()
	}
	return p.command.ProcessState.ExitCode(), time.Since(began)
}

// nextPort counts the ports that freePort has tried: none is tried twice. Where freePort begins
// depends on the process id.
var nextPort atomic.Uint32

// freePort returns a port on which no process listens now. It is below the range from which Linux
// takes the local ports of connections.
func freePort(t testing.TB) int {
	t.Helper()
	const first, count = 20_000, 12_000
	for range count {
		port := first + (uint32(os.Getpid())*97+nextPort.Add(1))%count
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = listener.Close()
			return int(port)
		}
	}
	t.Fatal("no port is free")
	return 0
}

// mosquitto is a Mosquitto broker with the settings of deploy/mosquitto/conf.d/flow.conf.
type mosquitto struct {
	*process
	address string
	config  string
}

func startMosquitto(t testing.TB, extra ...string) *mosquitto {
	t.Helper()
	port := freePort(t)
	m := &mosquitto{
		address: fmt.Sprintf("127.0.0.1:%d", port),
		config:  filepath.Join(t.TempDir(), "mosquitto.conf"),
	}
	lines := append([]string{
		"include_dir " + flow(t), fmt.Sprintf("listener %d 127.0.0.1", port),
		"allow_anonymous true", "log_dest stderr",
	}, extra...)
	if err := os.WriteFile(m.config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start(t)
	return m
}

// deployed is the folder with the configuration that docs/brokers/mosquitto.md describes.
const deployed = "../../deploy/mosquitto"

// flow returns a new folder that holds only flow.conf: queues, sizes and logging, but neither TLS
// nor users.
func flow(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	content, err := os.ReadFile(filepath.Join(deployed, "conf.d/flow.conf"))
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "flow.conf"), content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func (m *mosquitto) start(t testing.TB) {
	t.Helper()
	m.process = start(t, need(t, "mosquitto"), "-c", m.config)
	testwait.Until(t, "mosquitto listens", func() bool {
		conn, err := net.Dial("tcp", m.address)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

// server is a `holdfast server` process.
type server struct {
	*process
	health, admin string
	arguments     []string

	program string // path of the executable; if empty, the binary under test
	// set only for a member of a cluster: node name, address for the other members, data folder
	id, peer, dataDir string
}

func newServer(t testing.TB, broker, dataDir string, extra ...string) *server {
	t.Helper()
	s := &server{
		health: fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		admin:  fmt.Sprintf("127.0.0.1:%d", freePort(t)),
	}
	s.arguments = append([]string{
		"server", "--node.id", "n1", "--node.dataDir", dataDir, "--broker.addresses", broker,
		"--health.listen", s.health, "--admin.listen", s.admin, "--log.level", "debug",
		"--node.minFreeDisk", "0",
	}, extra...)
	s.start(t)
	return s
}

func (s *server) start(t testing.TB) {
	t.Helper()
	program := binary
	if s.program != "" {
		program = s.program
	}
	s.process = start(t, program, s.arguments...)
}

func (s *server) waitReady(t testing.TB) {
	t.Helper()
	testwait.Until(t, "the server is ready",
		func() bool { return httpStatus("http://"+s.health+"/readyz") == http.StatusOK })
}

func httpStatus(url string) int {
	response, err := http.Get(url)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return response.StatusCode
}

// target is a store behind a broker.
type target struct {
	name    string
	address string // of the broker
	// it is the embedded broker, which knows who publishes, and delivers notifications without a
	// subscription
	embedded bool
}

func startEmbedded(t testing.TB, extra ...string) *target {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	p := start(t, binary, append([]string{
		"dev", "--listen", address, "--data",
		filepath.Join(t.TempDir(), "dev"), "--log.level", "debug",
	}, extra...)...)
	testwait.Until(t, "holdfast dev is ready",
		func() bool { return strings.Contains(p.output.String(), "Holdfast is ready") })
	return &target{name: "embedded", address: address, embedded: true}
}

func startBehindMosquitto(t testing.TB, extra ...string) *target {
	t.Helper()
	broker := startMosquitto(t)
	newServer(t, "mqtt://"+broker.address, t.TempDir(), extra...).waitReady(t)
	return &target{name: "mosquitto", address: broker.address}
}

// withMirrors returns the settings of the store that test/brokers starts. A test with these
// settings can run there, too (onBoth).
func withMirrors() []string { return []string{"--mirrors", "mirrored/*=mirror/"} }

// onBoth runs a test twice: with the embedded broker and with Mosquitto. If HOLDFAST_TEST_BROKER is
// set, it runs the test once, with the store that test/brokers has started behind that broker.
// extra are the settings of the store.
func onBoth(t *testing.T, extra []string, test func(t *testing.T, target *target)) {
	if address := os.Getenv("HOLDFAST_TEST_BROKER"); address != "" {
		if extra != nil && !slices.Equal(extra, withMirrors()) {
			t.Skip("needs a store with settings of its own")
		}
		test(t, &target{name: "external", address: address})
		return
	}
	t.Run("embedded", func(t *testing.T) { test(t, startEmbedded(t, extra...)) })
	t.Run("mosquitto", func(t *testing.T) { test(t, startBehindMosquitto(t, extra...)) })
}

// holdfast runs a client command and returns what it printed and its exit code.
func holdfast(t testing.TB, address, stdin string, arguments ...string) (string, int) {
	t.Helper()
	output, errors, code := holdfastWith(t, address, stdin, arguments...)
	if errors != "" {
		t.Logf("holdfast %s: %s", strings.Join(arguments, " "), strings.TrimSpace(errors))
	}
	return output, code
}

// holdfastWith is holdfast, but also returns what the command wrote to standard error.
func holdfastWith(t testing.TB, address, stdin string, arguments ...string) (printed, faults string,
	code int,
) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, binary, arguments...)
	command.Env = append(os.Environ(), "HOLDFAST_BROKER=mqtt://"+address)
	command.Stdin = strings.NewReader(stdin)
	var errors bytes.Buffer
	command.Stderr = &errors
	output, _ := command.Output() // the exit code is what counts
	return string(output), errors.String(), command.ProcessState.ExitCode()
}

// flip changes one bit in the middle of a file.
func flip(t testing.TB, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
