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
	name      string
	workloads []workload
	start     func(ctx context.Context, env *environment) (*deployment, error)
}

// workload is a mix of requests. With a system it is a series in the plots, and a row in the tables.
type workload struct {
	name string
	gets int // of 100 requests
}

func sets() workload  { return workload{"SET", 0} }
func reads() workload { return workload{"GET", 100} }
func mixed() workload { return workload{"80:20", 80} }

// environment is where systems run.
type environment struct {
	dir      string // for this system in this round, on the disk that is measured
	self     string // this program
	holdfast string // the binary under test
	nodes    int
	ports    ports
}

// startTime bounds how long a system takes until it serves.
const startTime = time.Minute

// deployment is a started system.
type deployment struct {
	kind      string   // of the load: see newLoadRole
	addresses []string // that the load connects to
	broker    string   // address of the MQTT broker for the nodes
	authority string   // file of the certificate authority for mqtts addresses
	processes []*process
	raft      string   // URL of the leader of a bare raft; empty for other systems
	health    []string // addresses of the nodes' health endpoints
	admin     []string // addresses of the nodes' admin API
}

func (d *deployment) stop() {
	for _, p := range d.processes {
		p.kill()
	}
}

func (d *deployment) add(env *environment, name, program string, arguments ...string) error {
	p, err := startProcess(env.dir, name, program, arguments...)
	if err == nil {
		d.processes = append(d.processes, p)
	}
	return err
}

// settled waits for a condition. It fails at the limit, or if a process has ended.
func (d *deployment) settled(ctx context.Context, what string, limit time.Duration, condition func() bool) error {
	err := until(ctx, what, limit, func() bool { return condition() || d.ended() != nil })
	if p := d.ended(); p != nil {
		text, _ := os.ReadFile(p.log) // what there is
		return fmt.Errorf("%s ended early: %s", p.name, lastLines(string(text), 5))
	}
	return err
}

func (d *deployment) ended() *process {
	for _, p := range d.processes {
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
func (d *deployment) mosquitto(ctx context.Context, env *environment, links links) error {
	program, err := find("mosquitto")
	if err != nil {
		return err
	}
	const traversable = 0o755 // mosquitto gives up root before it reads its certificate
	if err := os.Chmod(env.dir, traversable); err != nil {
		return err
	}
	certificates, err := testcert.NewIssuer(env.dir)
	if err != nil {
		return err
	}
	if err := certificates.Issue("broker", "127.0.0.1"); err != nil {
		return err
	}
	d.authority = certificates.File("ca.crt")
	plain, secure := env.ports.take(), env.ports.take()
	listener := func(address string) string {
		host, number, _ := strings.Cut(address, ":")
		return fmt.Sprintf("listener %s %s\n", number, host)
	}
	config := filepath.Join(env.dir, "mosquitto.conf")
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
	d.addresses, d.broker = []string{address(links.clientsTLS)}, address(links.nodesTLS)
	if err := d.add(env, "broker", program, "-c", config); err != nil {
		return err
	}
	return d.settled(ctx, "mosquitto listens", startTime, func() bool { return listens(plain) && listens(secure) })
}

// links says which connections to the broker use TLS.
type links struct{ nodesTLS, clientsTLS bool }

// holdfastSystem is Holdfast with a number of nodes, and with settings beyond its defaults.
func holdfastSystem(name string, nodes int, workloads []workload, settings ...string) system {
	return linkedSystem(name, nodes, workloads, links{}, settings...)
}

// linkedSystem is holdfastSystem with a choice of TLS.
func linkedSystem(name string, nodes int, workloads []workload, links links, settings ...string) system {
	return system{name: name, workloads: workloads, start: func(ctx context.Context, env *environment) (*deployment, error) {
		d := &deployment{kind: "holdfast"}
		if err := d.mosquitto(ctx, env, links); err != nil {
			return d, err
		}
		settings := slices.Clone(settings)
		if links.nodesTLS {
			settings = append(settings, "--broker.tls.caFile", d.authority)
		}
		return d, d.holdfast(ctx, env, nodes, settings)
	}}
}

// holdfast starts nodes, and waits until each is ready: then there is a leader.
func (d *deployment) holdfast(ctx context.Context, env *environment, nodes int, settings []string) error {
	peers := make([]string, nodes)
	addresses := make([]string, nodes)
	for i := range peers {
		addresses[i] = env.ports.take()
		peers[i] = fmt.Sprintf("n%d=%s", i+1, addresses[i])
	}
	for i := range peers {
		d.health, d.admin = append(d.health, env.ports.take()), append(d.admin, env.ports.take())
		if err := d.node(env, i, addresses[i], peers, settings); err != nil {
			return err
		}
	}
	return d.settled(ctx, "the nodes are ready", startTime, func() bool {
		for _, health := range d.health {
			if !answers("http://" + health + "/readyz") {
				return false
			}
		}
		return true
	})
}

func (d *deployment) node(env *environment, i int, address string, peers, settings []string) error {
	id := fmt.Sprintf("n%d", i+1)
	arguments := append([]string{
		"server", "--node.id", id, "--node.dataDir", filepath.Join(env.dir, id), "--node.minFreeDisk", "0", "--log.level", "warn",
		"--broker.addresses", d.broker, "--health.listen", d.health[i], "--admin.listen", d.admin[i], "--admin.pprof",
	}, settings...)
	if len(peers) > 1 {
		arguments = append(arguments, "--cluster.listen", address, "--cluster.advertise", address, "--cluster.peers", strings.Join(peers, ","), "--cluster.tls.insecure")
	}
	return d.add(env, id, env.holdfast, arguments...)
}

func answers(url string) bool {
	response, err := http.Get(url)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// echoSystem measures the broker alone: a number of processes subscribe, and the first of them answers each request.
func echoSystem(name string, subscribers int, workloads []workload) system {
	return system{name: name, workloads: workloads, start: func(ctx context.Context, env *environment) (*deployment, error) {
		d := &deployment{kind: "echo"}
		if err := d.mosquitto(ctx, env, links{}); err != nil {
			return d, err
		}
		address := strings.TrimPrefix(d.broker, "mqtt://")
		for i := range subscribers {
			name := fmt.Sprintf("echo%d", i+1)
			if err := d.add(env, name, env.self, "role", "echo", "--broker", address, "--id", name, fmt.Sprintf("--answer=%v", i == 0)); err != nil {
				return d, err
			}
		}
		return d, d.settled(ctx, "the responders are ready", startTime, func() bool {
			for _, p := range d.processes[1:] {
				if text, err := os.ReadFile(p.log); err != nil || !bytes.Contains(text, []byte("ready")) {
					return false
				}
			}
			return true
		})
	}}
}

// members starts a peer's processes, each with an address for clients and one for the others.
func (d *deployment) members(env *environment, role string, arguments func(name, listen, peer string, peers []string) []string) error {
	var listen, peers []string
	for range env.nodes {
		listen, peers = append(listen, env.ports.take()), append(peers, env.ports.take())
	}
	d.addresses = listen
	for i := range env.nodes {
		name := fmt.Sprintf("n%d", i+1)
		more := arguments(name, listen[i], peers[i], peers)
		if err := d.add(env, name, env.self, append([]string{"role", role, "--name", name, "--dir", filepath.Join(env.dir, name)}, more...)...); err != nil {
			return err
		}
	}
	return nil
}

func etcdSystem() system {
	return system{name: "etcd", workloads: []workload{sets(), reads()}, start: func(ctx context.Context, env *environment) (*deployment, error) {
		d := &deployment{kind: "etcd"}
		err := d.members(env, "etcd", func(_, listen, peer string, peers []string) []string {
			cluster := make([]string, len(peers))
			for i, address := range peers {
				cluster[i] = fmt.Sprintf("n%d=http://%s", i+1, address)
			}
			return []string{"--listen", listen, "--peer", peer, "--cluster", strings.Join(cluster, ",")}
		})
		if err != nil {
			return d, err
		}
		return d, d.settled(ctx, "etcd is ready", startTime, func() bool {
			for _, address := range d.addresses {
				if !answers("http://" + address + "/health") {
					return false
				}
			}
			return true
		})
	}}
}

func natsSystem() system {
	return system{name: "NATS KV", workloads: []workload{sets(), reads()}, start: func(ctx context.Context, env *environment) (*deployment, error) {
		d := &deployment{kind: "nats"}
		err := d.members(env, "nats", func(_, listen, peer string, peers []string) []string {
			return []string{"--listen", listen, "--peer", peer, "--routes", strings.Join(peers, ",")}
		})
		if err != nil {
			return d, err
		}
		return d, d.settled(ctx, "NATS is ready", startTime, func() bool {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			s, err := openNATS(ctx, d.addresses, 1)
			if err != nil {
				return false
			}
			s.Close()
			return true
		})
	}}
}

func raftSystem() system {
	return system{name: "bare raft", workloads: []workload{sets()}, start: func(ctx context.Context, env *environment) (*deployment, error) {
		d := &deployment{kind: "raft"}
		err := d.members(env, "raft", func(_, listen, peer string, peers []string) []string {
			return []string{"--listen", listen, "--peer", peer, "--peers", strings.Join(peers, ",")}
		})
		if err != nil {
			return d, err
		}
		return d, d.settled(ctx, "raft has a leader", startTime, func() bool {
			for _, address := range d.addresses {
				if answers("http://" + address) {
					d.raft = "http://" + address
					return true
				}
			}
			return false
		})
	}}
}

// measure puts load on a running system.
func (d *deployment) measure(ctx context.Context, env *environment, o loadOptions) (*measurement, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	before := d.cpu()
	var output []byte
	loader := &bytes.Buffer{}
	var loading time.Duration
	if d.raft != "" {
		output, err = post(ctx, d.raft, text)
	} else {
		command := exec.CommandContext(ctx, env.self, "role", "load", "--system", d.kind, "--addresses", strings.Join(d.addresses, ","), "--authority", d.authority, "--options", string(text))
		command.Stderr = loader
		output, err = command.Output()
		if command.ProcessState != nil {
			loading = command.ProcessState.UserTime() + command.ProcessState.SystemTime()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load: %w: %s", err, lastLines(loader.String(), 3))
	}
	if p := d.ended(); p != nil {
		return nil, fmt.Errorf("load: %s has ended", p.name)
	}
	m := &measurement{cpu: map[string]time.Duration{"load": loading}}
	if o.Fill {
		return m, nil
	}
	for name, after := range d.cpu() {
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

// perRequest divides a time by the number of requests, and returns microseconds. It assumes the measured rate for the warm-up, too.
func (m *measurement) perRequest(used time.Duration) float64 {
	return float64(used.Microseconds()) / (m.result.Rate * m.took.Seconds())
}

func (d *deployment) cpu() map[string]time.Duration {
	used := make(map[string]time.Duration)
	for _, p := range d.processes {
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
