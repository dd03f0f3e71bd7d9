package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// system is a system under test, or one to compare with.
type system struct {
	name      string
	workloads []workload
	start     func(ctx context.Context, env *environment) (*deployment, error)
}

// workload is a mix of SETs and GETs. Each pair of a system and a workload is one series in the
// plots and one row in the tables.
type workload struct {
	name string
	gets int // number of GETs in 100 requests; the others are SETs
}

func sets() workload  { return workload{"SET", 0} }
func reads() workload { return workload{"GET", 100} }
func mixed() workload { return workload{"80:20", 80} }

// environment has what a system is started with.
type environment struct {
	// folder for the data of this system in this round; its disk is part of what is measured
	dir      string
	self     string // path of this program
	holdfast string // path of the holdfast binary under test
	nodes    int    // members of etcd, NATS and bare raft clusters
	ports    ports
}

// echoSystem is the broker and a process that subscribes to the requests and answers each at once.
// So its rate is the most that any system behind this broker can reach.
func echoSystem(name string, workloads []workload) system {
	return system{
		name: name, workloads: workloads,
		start: func(ctx context.Context, env *environment) (*deployment, error) {
			d := &deployment{kind: "echo"}
			if err := d.mosquitto(ctx, env, links{}); err != nil {
				return d, err
			}
			address := strings.TrimPrefix(d.broker, "mqtt://")
			if err := d.add(env, "echo1", env.self, "role", "echo", "--broker", address, "--id",
				"echo1"); err != nil {
				return d, err
			}
			return d, d.waitFor(ctx, "the responder is ready", startTime, func() bool {
				for _, p := range d.processes[1:] {
					if text, err := os.ReadFile(p.log); err != nil ||
						!bytes.Contains(text, []byte("ready")) {
						return false
					}
				}
				return true
			})
		},
	}
}

func etcdSystem() system {
	return system{
		name: "etcd", workloads: []workload{sets(), reads()},
		start: func(ctx context.Context, env *environment) (*deployment, error) {
			d := &deployment{kind: "etcd"}
			err := d.members(env, "etcd", func(_, listen, peer string, peers []string) []string {
				cluster := make([]string, len(peers))
				for i, address := range peers {
					cluster[i] = fmt.Sprintf("n%d=http://%s", i+1, address)
				}
				return []string{
					"--listen", listen, "--peer", peer, "--cluster",
					strings.Join(cluster, ","),
				}
			})
			if err != nil {
				return d, err
			}
			return d, d.waitFor(ctx, "etcd is ready", startTime, func() bool {
				for _, address := range d.addresses {
					if !answers(ctx, "http://"+address+"/health") {
						return false
					}
				}
				return true
			})
		},
	}
}

func natsSystem() system {
	return system{
		name: "NATS KV", workloads: []workload{sets(), reads()},
		start: func(ctx context.Context, env *environment) (*deployment, error) {
			d := &deployment{kind: "nats"}
			err := d.members(env, "nats", func(_, listen, peer string, peers []string) []string {
				return []string{
					"--listen", listen, "--peer", peer, "--routes",
					strings.Join(peers, ","),
				}
			})
			if err != nil {
				return d, err
			}
			return d, d.waitFor(ctx, "NATS is ready", startTime, func() bool {
				ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
				defer cancel()
				s, err := openNATS(ctx, d.addresses, 1)
				if err != nil {
					return false
				}
				s.Close()
				return true
			})
		},
	}
}

func raftSystem() system {
	return system{
		name: "bare raft", workloads: []workload{sets()},
		start: func(ctx context.Context, env *environment) (*deployment, error) {
			d := &deployment{kind: "raft"}
			err := d.members(env, "raft", func(_, listen, peer string, peers []string) []string {
				return []string{
					"--listen", listen, "--peer", peer, "--peers",
					strings.Join(peers, ","),
				}
			})
			if err != nil {
				return d, err
			}
			return d, d.waitFor(ctx, "raft has a leader", startTime, func() bool {
				for _, address := range d.addresses {
					if answers(ctx, "http://"+address) {
						d.raft = "http://" + address
						return true
					}
				}
				return false
			})
		},
	}
}

// members starts the members of a system that this program contains (see role_*.go). arguments
// returns the command-line arguments of one member: listen is its address for clients, peer its
// address for the other members, and peers has the peer addresses of all members.
func (d *deployment) members(env *environment, role string,
	arguments func(name, listen, peer string, peers []string) []string,
) error {
	var listen, peers []string
	for range env.nodes {
		listen, peers = append(listen, env.ports.take()), append(peers, env.ports.take())
	}
	d.addresses = listen
	for i := range env.nodes {
		name := fmt.Sprintf("n%d", i+1)
		more := arguments(name, listen[i], peers[i], peers)
		if err := d.add(env, name, env.self,
			append([]string{"role", role, "--name", name, "--dir", filepath.Join(env.dir, name)},
				more...)...); err != nil {
			return err
		}
	}
	return nil
}

// answers reports whether a GET of a URL is answered with 200 within five seconds.
func answers(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}
