package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/template"
	"time"

	"holdfast/test/chaos/record"
)

//go:embed docker-compose.yml.tmpl
var composeTemplate string

// options are what a run is asked for.
type options struct {
	seed     uint64
	nodes    int
	duration time.Duration
	folder   string // folder of the report
	mutant   string
	kinds    []string // kinds of faults to inject; all if it is empty
	smoke    bool
	keep     bool   // leave the containers as they are at the end
	command  string // command that repeats the run
}

// world is the cluster under test, and what surrounds it.
type world struct {
	options
	images   images
	random   *rand.Rand // draws the settings
	machines []*machine
	broker   container
	load     container
	compose  string // path of docker-compose.yml
	brokerIP string
	loadIP   string
	began    time.Time // when the load began
	tiny     bool      // the broker's queues are tiny

	// held from takeDisk until free is called: one fault at a time may empty or damage a disk
	diskLock   sync.Mutex
	clocks     sync.Mutex // held while a fault sets clocks wrong
	brokerLock sync.Mutex // held while a fault ends or pauses the broker, or pauses the clients

	mu  sync.Mutex
	run record.Run
	log *os.File
}

// machine is a container with a node.
type machine struct {
	container
	ID       string
	MemberIP string
	ClientIP string
	folder   string
	firewall *firewall

	life sync.Mutex // held while the harness checks whether the machine runs, and starts it
	body sync.Mutex // held by a fault of the machine, its node or its disk: one at a time
	net  sync.Mutex // held by a fault that sets the loss or the delay of its network

	mu      sync.Mutex
	pidText string // process id, on the host, of the container's first process
	holds   int    // calls of hold without a release: if there are any, it is not started
	damaged bool
	removed bool
	excused time.Time // until this time it is no failure if the node exits by itself
	trouble record.Trouble
	leads   bool
	term    uint64
	answers int // members that answered the node's last poll, itself included
}

func newWorld(ctx context.Context, o options, built images) (*world, error) {
	folder, err := filepath.Abs(o.folder)
	if err != nil {
		return nil, err
	}
	o.folder = folder
	random := rand.New(rand.NewPCG(o.seed, 1))
	project := fmt.Sprintf("chaos-%d", o.seed)
	members, clients, err := freeNetworks(ctx)
	if err != nil {
		return nil, err
	}
	w := &world{
		options: o, images: built, random: random, broker: container{project + "-broker"},
		load:    container{project + "-load"},
		compose: filepath.Join(folder, "docker-compose.yml"), brokerIP: clients + ".10",
		loadIP: clients + ".9",
		tiny:   !o.smoke && random.IntN(5) == 0,
	}
	for i := range o.nodes {
		id := fmt.Sprintf("n%d", i+1)
		m := &machine{
			container: container{project + "-" + id}, ID: id,
			MemberIP: fmt.Sprintf("%s.%d", members, 11+i),
			ClientIP: fmt.Sprintf("%s.%d", clients, 11+i),
			folder:   filepath.Join(folder, id), firewall: newFirewall(),
		}
		w.machines = append(w.machines, m)
	}
	w.run = record.Run{
		Seed: o.seed, Nodes: o.nodes, Duration: record.Duration(o.duration), Command: o.command,
		Mutant: o.mutant, Counters: map[string]float64{}, NotificationsComplete: !w.tiny,
	}
	if w.log, err = os.Create(filepath.Join(folder, "harness.log")); err != nil {
		// first: makeRoom knows the folder of a run by it
		return nil, err
	}
	if err := w.prepare(project, members, clients); err != nil {
		return nil, errors.Join(err, w.log.Close())
	}
	return w, nil
}

// freeNetworks returns the first three octets of two /24 networks in 198.18.0.0/16 that no network
// of Docker uses.
func freeNetworks(ctx context.Context) (members, clients string, err error) {
	list, err := docker(ctx, "network", "ls", "-q")
	if err != nil {
		return "", "", err
	}
	used, err := docker(ctx, append([]string{
		"network", "inspect", "-f",
		"{{range .IPAM.Config}}{{.Subnet}} {{end}}",
	}, strings.Fields(list)...)...)
	if err != nil {
		return "", "", err
	}
	for i := 0; i < 256; i += 2 {
		members, clients = fmt.Sprintf("198.18.%d", i), fmt.Sprintf("198.18.%d", i+1)
		if !strings.Contains(used, members+".0/") && !strings.Contains(used, clients+".0/") {
			return members, clients, nil
		}
	}
	return "", "", errors.New("all networks of 198.18.0.0/16 are in use")
}

// prepare draws the settings, makes the folders of the run, and writes the broker's configuration
// and the compose file.
func (w *world) prepare(project, members, clients string) error {
	for _, name := range []string{"broker/data", "history"} {
		if err := os.MkdirAll(filepath.Join(w.folder, name), 0o755); err != nil {
			return err
		}
	}
	// the part of the shipped configuration about message flow
	flow, err := os.ReadFile("../../deploy/mosquitto/conf.d/flow.conf")
	if err != nil {
		return err
	}
	config := string(flow) + "listener 1883 0.0.0.0\nallow_anonymous true\nlog_dest stderr\n" +
		"user root\npersistence true\npersistence_location /broker/data/\nautosave_interval 5\n"
	if w.tiny { // Mosquitto uses the last value of an option
		config += "max_inflight_messages 20\nmax_queued_messages 100\n"
	}
	if err := os.WriteFile(filepath.Join(w.folder, "broker/mosquitto.conf"), []byte(config),
		0o644); err != nil {
		return err
	}
	var peers []string
	for _, m := range w.machines {
		if err := os.MkdirAll(m.folder, 0o755); err != nil {
			return err
		}
		peers = append(peers, m.ID+"="+m.MemberIP+":7400")
	}
	pace := time.Duration(60+w.random.IntN(100)) * time.Millisecond
	lockTTL := time.Duration(1000+w.random.IntN(3000)) * time.Millisecond
	w.run.Settings = []string{
		fmt.Sprintf("a client's operations: each %v on average", pace),
		fmt.Sprintf("locks: %v", lockTTL), fmt.Sprintf("tiny queues in the broker: %v", w.tiny),
	}
	file, err := os.Create(w.compose)
	if err != nil {
		return err
	}
	err = template.Must(template.New("compose").Parse(composeTemplate)).Execute(file,
		map[string]any{
			"Project": project, "Folder": w.folder, "Machines": w.machines,
			"Peers": strings.Join(peers, ","), "Seed": w.seed,
			"BrokerIP": w.brokerIP, "LoadIP": w.loadIP, "Members": members, "Clients": clients,
			"Pace": pace, "LockTTL": lockTTL,
			"NodeImage": w.images.node, "LoadImage": w.images.load, "BrokerImage": w.images.broker,
		})
	return errors.Join(err, file.Close())
}

// say writes a line to harness.log.
func (w *world) say(format string, arguments ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Duration(0)
	if !w.began.IsZero() {
		at = time.Since(w.began)
	}
	fmt.Fprintf(w.log, "%s %9.3f %s\n", time.Now().UTC().Format("15:04:05.000"), at.Seconds(),
		fmt.Sprintf(format, arguments...))
}

// fail records the failure of a check that the harness itself makes.
func (w *world) fail(format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	w.say("FAILURE: %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run.Failures = append(w.run.Failures, text)
}

func (w *world) now() time.Duration { return time.Since(w.began) }

// composeDo calls docker-compose.
func (w *world) composeDo(ctx context.Context, arguments ...string) error {
	_, err := runProgram(ctx, "", "docker-compose",
		append([]string{"-p", fmt.Sprintf("chaos-%d", w.seed), "-f", w.compose}, arguments...)...)
	return err
}

// up starts the containers, waits until the cluster serves requests, and has the clients begin.
func (w *world) up(ctx context.Context) error {
	if err := w.composeDo(ctx, "up", "-d"); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		state, err := w.askLoad(ctx, http.MethodGet, "/state", nil, time.Second)
		if err == nil {
			var load record.Load
			if err := json.Unmarshal(state, &load); err != nil {
				return err
			}
			w.began = time.Now().Add(-time.Duration(load.Now))
			break
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("the load does not start: %w", err)
		}
	}
	if _, err := w.askLoad(ctx, http.MethodPost, "/probe", nil, 2*time.Minute); err != nil {
		return fmt.Errorf("the cluster does not serve: %w", err)
	}
	if err := w.awaitVersion(ctx); err != nil {
		return err
	}
	_, err := w.askLoad(ctx, http.MethodPost, "/start", nil, time.Minute)
	return err
}

// awaitVersion waits until the newest log version that all nodes know is in force on each node.
// Before that, nodes refuse the commands that need it, and the checks would report these refusals.
func (w *world) awaitVersion(ctx context.Context) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		known, inForce := w.versions(ctx)
		if known > 0 && !slices.ContainsFunc(inForce,
			func(version uint32) bool { return version != known }) {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("the nodes know version %d of the log, and in force are %v", known,
				inForce)
		}
	}
}

// versions returns the newest log version that all nodes know, or 0 if not all could be asked, and
// for each node the log version that is in force on it.
func (w *world) versions(ctx context.Context) (known uint32, inForce []uint32) {
	var health struct {
		Members []struct {
			Version uint32 `json:"version"`
		} `json:"members"`
	}
	output, err := w.machines[0].operate(ctx, "raft", "autopilot", "-o", "json")
	if err != nil || json.Unmarshal([]byte(output), &health) != nil ||
		len(health.Members) != len(w.machines) {
		return 0, nil
	}
	known = math.MaxUint32
	for _, m := range health.Members {
		known = min(known, m.Version)
	}
	inForce = make([]uint32, len(w.machines))
	for i, m := range w.machines {
		var status struct {
			LogVersion uint32 `json:"logVersion"`
		}
		if output, err := m.operate(ctx, "status", "-o", "json"); err == nil &&
			json.Unmarshal([]byte(output), &status) == nil {
			inForce[i] = status.LogVersion
		}
	}
	return known, inForce
}

// downAll removes all containers and networks of the run.
func (w *world) downAll(ctx context.Context) error {
	return w.composeDo(ctx, "down", "-v", "--timeout", "1")
}

// loadState asks the load for its state: its time and its counters.
func (w *world) loadState(ctx context.Context) (state record.Load, err error) {
	body, err := w.askLoad(ctx, http.MethodGet, "/state", nil, 5*time.Second)
	if err != nil {
		return state, err
	}
	return state, json.Unmarshal(body, &state)
}

func (w *world) askLoad(ctx context.Context, method, path string, form url.Values,
	limit time.Duration,
) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	target := "http://" + w.loadIP + ":8080" + path
	if form != nil {
		target += "?" + form.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // only read
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return body, err
}
