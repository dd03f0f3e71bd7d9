package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/internal/load"
	"holdfast/internal/testcert"
)

// system is a system under test, or one to compare with.
type system struct {
	name  string
	lines []line
	start func(ctx context.Context, w *world) (*running, error)
}

// line is one workload on a system: a line in the plot, and a column in the table.
type line struct {
	name string
	gets int // of 100 requests
}

func sets() line  { return line{"SET", 0} }
func reads() line { return line{"GET", 100} }
func mixed() line { return line{"80:20", 80} }

// world is where systems run.
type world struct {
	dir      string // for this system in this round, on the disk that is measured
	self     string // this program
	holdfast string // the binary under test
	nodes    int
	ports    ports
}

// running is a started system.
type running struct {
	kind      string   // of the load: see newLoadRole
	addresses []string // that the load connects to
	broker    string   // address of the MQTT broker for the nodes
	authority string   // file of the certificate authority for mqtts addresses
	processes []*process
	raft      string   // URL of the leader of a bare raft; empty for other systems
	health    []string // addresses of the nodes' health endpoints
	admin     []string // addresses of the nodes' admin API
}

func (r *running) stop() {
	for _, p := range r.processes {
		p.kill()
	}
}

func (r *running) add(w *world, name, program string, arguments ...string) error {
	p, err := startProcess(w.dir, name, program, arguments...)
	if err == nil {
		r.processes = append(r.processes, p)
	}
	return err
}

// settled waits for a condition. It fails after a minute, or if a process has ended.
func (r *running) settled(ctx context.Context, what string, condition func() bool) error {
	err := until(ctx, what, time.Minute, func() bool { return condition() || r.ended() != nil })
	if p := r.ended(); p != nil {
		text, _ := os.ReadFile(p.log) // what there is
		return fmt.Errorf("%s ended early: %s", p.name, lastLines(string(text), 5))
	}
	return err
}

func (r *running) ended() *process {
	for _, p := range r.processes {
		select {
		case <-p.exited:
			return p
		default:
		}
	}
	return nil
}

func lastLines(text string, count int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// mosquitto starts the broker with the settings for throughput that docs/brokers/mosquitto.md gives. One listener is plain, one has TLS.
func (r *running) mosquitto(ctx context.Context, w *world, links links) error {
	program, err := find("mosquitto")
	if err != nil {
		return err
	}
	const traversable = 0o755 // mosquitto gives up root before it reads its certificate
	if err := os.Chmod(w.dir, traversable); err != nil {
		return err
	}
	certificates, err := testcert.NewIssuer(w.dir)
	if err != nil {
		return err
	}
	if err := certificates.Issue("broker", "127.0.0.1"); err != nil {
		return err
	}
	r.authority = certificates.File("ca.crt")
	plain, secure := w.ports.take(), w.ports.take()
	listener := func(address string) string {
		host, number, _ := strings.Cut(address, ":")
		return fmt.Sprintf("listener %s %s\n", number, host)
	}
	config := filepath.Join(w.dir, "mosquitto.conf")
	text := "allow_anonymous true\nset_tcp_nodelay true\nmax_inflight_messages 20000\nmax_queued_messages 0\n" + listener(plain) +
		listener(secure) + fmt.Sprintf("certfile %s\nkeyfile %s\n", certificates.File("broker.crt"), certificates.File("broker.key"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	address := func(tls bool) string {
		if tls {
			return "mqtts://" + secure
		}
		return "mqtt://" + plain
	}
	r.addresses, r.broker = []string{address(links.clientsTLS)}, address(links.nodesTLS)
	if err := r.add(w, "broker", program, "-c", config); err != nil {
		return err
	}
	return r.settled(ctx, "mosquitto listens", func() bool { return listens(plain) && listens(secure) })
}

// links says which connections to the broker use TLS.
type links struct{ nodesTLS, clientsTLS bool }

// holdfastSystem is Holdfast with a number of nodes, and with settings beyond its defaults.
func holdfastSystem(name string, nodes int, lines []line, settings ...string) system {
	return linkedSystem(name, nodes, lines, links{}, settings...)
}

// linkedSystem is holdfastSystem with a choice of TLS.
func linkedSystem(name string, nodes int, lines []line, links links, settings ...string) system {
	return system{name: name, lines: lines, start: func(ctx context.Context, w *world) (*running, error) {
		r := &running{kind: "holdfast"}
		if err := r.mosquitto(ctx, w, links); err != nil {
			return r, err
		}
		settings := slices.Clone(settings)
		if links.nodesTLS {
			settings = append(settings, "--broker.tls.caFile", r.authority)
		}
		return r, r.holdfast(ctx, w, nodes, settings)
	}}
}

// holdfast starts nodes, and waits until each is ready: then there is a leader.
func (r *running) holdfast(ctx context.Context, w *world, nodes int, settings []string) error {
	peers := make([]string, nodes)
	addresses := make([]string, nodes)
	for i := range peers {
		addresses[i] = w.ports.take()
		peers[i] = fmt.Sprintf("n%d=%s", i+1, addresses[i])
	}
	for i := range peers {
		r.health, r.admin = append(r.health, w.ports.take()), append(r.admin, w.ports.take())
		if err := r.node(w, i, addresses[i], peers, settings); err != nil {
			return err
		}
	}
	return r.settled(ctx, "the nodes are ready", func() bool {
		for _, health := range r.health {
			if !answers("http://" + health + "/readyz") {
				return false
			}
		}
		return true
	})
}

func (r *running) node(w *world, i int, address string, peers, settings []string) error {
	id := fmt.Sprintf("n%d", i+1)
	arguments := append([]string{
		"server", "--node.id", id, "--node.dataDir", filepath.Join(w.dir, id), "--node.minFreeDisk", "0", "--log.level", "warn",
		"--broker.addresses", r.broker, "--health.listen", r.health[i], "--admin.listen", r.admin[i], "--admin.pprof",
	}, settings...)
	if len(peers) > 1 {
		arguments = append(arguments, "--cluster.listen", address, "--cluster.advertise", address, "--cluster.peers", strings.Join(peers, ","), "--cluster.tls.insecure")
	}
	return r.add(w, id, w.holdfast, arguments...)
}

func answers(url string) bool {
	response, err := http.Get(url)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// echoSystem measures the broker alone: as many processes subscribe as a cluster has nodes, and one of them answers each request.
func echoSystem(name string, subscribers int, lines []line) system {
	return system{name: name, lines: lines, start: func(ctx context.Context, w *world) (*running, error) {
		r := &running{kind: "echo"}
		if err := r.mosquitto(ctx, w, links{}); err != nil {
			return r, err
		}
		address := strings.TrimPrefix(r.broker, "mqtt://")
		for i := range subscribers {
			name := fmt.Sprintf("echo%d", i+1)
			if err := r.add(w, name, w.self, "role", "echo", "--broker", address, "--id", name, fmt.Sprintf("--answer=%v", i == 0)); err != nil {
				return r, err
			}
		}
		return r, r.settled(ctx, "the responders are ready", func() bool {
			for _, p := range r.processes[1:] {
				if text, err := os.ReadFile(p.log); err != nil || !bytes.Contains(text, []byte("ready")) {
					return false
				}
			}
			return true
		})
	}}
}

// members starts a peer's processes, each with an address for clients and one for the others.
func (r *running) members(w *world, role string, arguments func(name, listen, peer string, peers []string) []string) error {
	var listen, peers []string
	for range w.nodes {
		listen, peers = append(listen, w.ports.take()), append(peers, w.ports.take())
	}
	r.addresses = listen
	for i := range w.nodes {
		name := fmt.Sprintf("n%d", i+1)
		more := arguments(name, listen[i], peers[i], peers)
		if err := r.add(w, name, w.self, append([]string{"role", role, "--name", name, "--dir", filepath.Join(w.dir, name)}, more...)...); err != nil {
			return err
		}
	}
	return nil
}

func etcdSystem() system {
	return system{name: "etcd", lines: []line{sets(), reads()}, start: func(ctx context.Context, w *world) (*running, error) {
		r := &running{kind: "etcd"}
		err := r.members(w, "etcd", func(_, listen, peer string, peers []string) []string {
			cluster := make([]string, len(peers))
			for i, address := range peers {
				cluster[i] = fmt.Sprintf("n%d=http://%s", i+1, address)
			}
			return []string{"--listen", listen, "--peer", peer, "--cluster", strings.Join(cluster, ",")}
		})
		if err != nil {
			return r, err
		}
		return r, r.settled(ctx, "etcd is ready", func() bool {
			for _, address := range r.addresses {
				if !answers("http://" + address + "/health") {
					return false
				}
			}
			return true
		})
	}}
}

func natsSystem() system {
	return system{name: "NATS KV", lines: []line{sets(), reads()}, start: func(ctx context.Context, w *world) (*running, error) {
		r := &running{kind: "nats"}
		err := r.members(w, "nats", func(_, listen, peer string, peers []string) []string {
			return []string{"--listen", listen, "--peer", peer, "--routes", strings.Join(peers, ",")}
		})
		if err != nil {
			return r, err
		}
		return r, r.settled(ctx, "NATS is ready", func() bool {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			s, err := openNATS(ctx, r.addresses, 1)
			if err != nil {
				return false
			}
			s.Close()
			return true
		})
	}}
}

func raftSystem() system {
	return system{name: "bare raft", lines: []line{sets()}, start: func(ctx context.Context, w *world) (*running, error) {
		r := &running{kind: "raft"}
		err := r.members(w, "raft", func(_, listen, peer string, peers []string) []string {
			return []string{"--listen", listen, "--peer", peer, "--peers", strings.Join(peers, ",")}
		})
		if err != nil {
			return r, err
		}
		return r, r.settled(ctx, "raft has a leader", func() bool {
			for _, address := range r.addresses {
				if answers("http://" + address) {
					r.raft = "http://" + address
					return true
				}
			}
			return false
		})
	}}
}

// measure puts load on a running system.
func (r *running) measure(ctx context.Context, w *world, o loadOptions) (*measurement, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	before := r.cpu()
	var output []byte
	loader := &bytes.Buffer{}
	var loading time.Duration
	if r.raft != "" {
		output, err = post(ctx, r.raft, text)
	} else {
		command := exec.CommandContext(ctx, w.self, "role", "load", "--system", r.kind, "--addresses", strings.Join(r.addresses, ","), "--authority", r.authority, "--options", string(text))
		command.Stderr = loader
		output, err = command.Output()
		if command.ProcessState != nil {
			loading = command.ProcessState.UserTime() + command.ProcessState.SystemTime()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load: %w: %s", err, lastLines(loader.String(), 3))
	}
	m := &measurement{cpu: map[string]time.Duration{"load": loading}}
	if o.Fill {
		return m, nil
	}
	for name, after := range r.cpu() {
		m.cpu[name] = after - before[name]
	}
	m.took = o.Warmup + o.Duration
	if err := json.Unmarshal(output, &m.result); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	if m.result.Errors+m.result.Unknown > 0 {
		return m, fmt.Errorf("load: %d errors, %d unknown: %s", m.result.Errors, m.result.Unknown, lastLines(loader.String(), 3))
	}
	return m, nil
}

// measurement is what one load measured, and what the processes used meanwhile.
type measurement struct {
	result load.Result
	cpu    map[string]time.Duration
	took   time.Duration
}

// perRequest returns what a time is for each request, in microseconds. Load that is not measured has the same rate.
func (m *measurement) perRequest(used time.Duration) float64 {
	return float64(used.Microseconds()) / (m.result.Rate * m.took.Seconds())
}

func (r *running) cpu() map[string]time.Duration {
	used := make(map[string]time.Duration)
	for _, p := range r.processes {
		used[p.name] = p.cpu()
	}
	return used
}

func post(ctx context.Context, url string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it is read
	output, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, output)
	}
	return output, err
}
