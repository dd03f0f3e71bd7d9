package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// node is a member of the cluster.
type node struct {
	id, health, admin string
	command           func() *exec.Cmd
	log               string
	process           *process
}

func (n *node) start() (err error) {
	n.process, err = start(n.command(), n.log)
	return err
}

func (n *node) ready() bool {
	response, err := http.Get("http://" + n.health + "/readyz")
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

// cluster is three nodes behind a broker.
type cluster []*node

func startCluster(ctx context.Context, t *tools, i *instance) (cluster, error) {
	folder := filepath.Join(i.folder, "nodes")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	secret := filepath.Join(folder, "password")
	if err := os.WriteFile(secret, []byte(i.user), 0o600); err != nil {
		return nil, err
	}
	const size = 3
	var c cluster
	var peers, listen []string
	for number := range size {
		listen = append(listen, fmt.Sprintf("127.0.0.1:%d", freePort()))
		peers = append(peers, fmt.Sprintf("n%d=%s", number+1, listen[number]))
	}
	for number := range size {
		n := &node{
			id: fmt.Sprintf("n%d", number+1), health: fmt.Sprintf("127.0.0.1:%d", freePort()),
			admin: fmt.Sprintf("127.0.0.1:%d", freePort()),
			log:   filepath.Join(t.output, fmt.Sprintf("%s-n%d.log", i.name, number+1)),
		}
		arguments := []string{
			"server", "--node.id", n.id, "--node.dataDir", filepath.Join(folder, n.id),
			"--node.minFreeDisk", "0", "--health.listen", n.health,
			"--admin.listen", n.admin, "--broker.addresses", "mqtt://" + i.address,
			"--cluster.tls.insecure",
			"--cluster.listen", listen[number], "--cluster.advertise", listen[number],
			"--cluster.peers", strings.Join(peers, ","),
			"--mirrors", "mirrored/*=mirror/",
		}
		if i.user != "" {
			arguments = append(arguments, "--broker.username", i.user, "--broker.passwordFile",
				secret)
		}
		if i.plugin {
			arguments = append(arguments, "--broker.driver", "mosquitto")
		}
		n.command = func() *exec.Cmd { return exec.CommandContext(ctx, t.holdfast, arguments...) }
		c = append(c, n)
		if err := n.start(); err != nil {
			return c, err
		}
	}
	return c, c.waitReady()
}

func (c cluster) close() {
	for _, n := range c {
		if n.process != nil {
			n.process.kill()
		}
	}
}

func (c cluster) waitReady() error {
	for _, n := range c {
		if err := until(n.id+" is ready", time.Minute, n.ready); err != nil {
			return fmt.Errorf("%w: %s", err, n.process.tail())
		}
	}
	return nil
}

// leader returns the running node that leads, according to the first node that names one.
func (c cluster) leader() (*node, error) {
	var found *node
	err := until("a node leads", 30*time.Second, func() bool {
		for _, asked := range c {
			var members []struct{ Node, State string }
			if get(asked, "/v1/members", &members) != nil {
				continue
			}
			for _, member := range members {
				for _, n := range c {
					if member.State == "leader" && member.Node == n.id && n.process.running() {
						found = n
						return true
					}
				}
			}
		}
		return false
	})
	return found, err
}

// watches returns how many keys a client watches.
func (c cluster) watches(client string) (int, error) {
	var answer struct{ Watches []struct{ Client string } }
	err := get(c[0], "/v1/watches?client="+client, &answer)
	return len(answer.Watches), err
}

func get(n *node, path string, into any) (err error) {
	response, err := http.Get("http://" + n.admin + path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	return json.NewDecoder(response.Body).Decode(into)
}
