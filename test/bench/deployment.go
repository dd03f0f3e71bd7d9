package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// startTime bounds how long a system takes until it serves.
const startTime = time.Minute

// deployment is a started system, and how the load reaches it.
type deployment struct {
	kind string // the --system of the load role, which chooses the client library
	// where the clients of the load connect: to the broker, or to the members if there is no broker
	addresses []string
	broker    string // address of the MQTT broker for the nodes; empty if there is no broker
	authority string // path of the CA certificate for mqtts addresses
	processes []*process
	// URL of the leader of a bare raft, which puts the load on itself; empty for other systems
	raft   string
	health []string // host:port of each Holdfast node's health endpoints
	admin  []string // host:port of each Holdfast node's admin API
}

func (d *deployment) stop() {
	for _, p := range d.processes {
		p.kill()
	}
}

// add starts a process of the deployment.
func (d *deployment) add(env *environment, name, program string, arguments ...string) error {
	p, err := startProcess(env.dir, name, program, arguments...)
	if err == nil {
		d.processes = append(d.processes, p)
	}
	return err
}

// waitFor waits for a condition. It fails at the limit, or if a process has ended.
func (d *deployment) waitFor(ctx context.Context, what string, limit time.Duration,
	condition func() bool,
) error {
	err := until(ctx, what, limit, func() bool { return condition() || d.ended() != nil })
	if p := d.ended(); p != nil {
		text, _ := os.ReadFile(p.log) // the error has what could be read
		return fmt.Errorf("%s ended early: %s", p.name, lastLines(string(text), 5))
	}
	return err
}

// ended returns a process that has ended, or nil if all run.
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

// lastLines returns the last lines of a text, at most count.
func lastLines(text string, count int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// cpu returns the processor time that each process has used since its start, by name.
func (d *deployment) cpu() map[string]time.Duration {
	used := make(map[string]time.Duration)
	for _, p := range d.processes {
		used[p.name] = p.cpu()
	}
	return used
}
