package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/test/chaos/record"
)

// firewall is the packet filter and the delays of a node's network. They are lost when the
// container ends. machine.start applies them again.
type firewall struct {
	mu   sync.Mutex
	from map[string]int // by source address: how many faults want its packets dropped
	to   map[string]int // by destination address: the same
	loss int            // percentage of the incoming packets that is dropped
	// outgoing packets are delayed, or limited in rate where the kernel has no netem
	slowed bool
}

func newFirewall() *firewall {
	return &firewall{
		from: make(map[string]int),
		to:   make(map[string]int),
	}
}

// set adds change to the number of faults that want the packets of an address dropped. table is
// incoming (packets from it) or outgoing (packets to it).
func (f *firewall) set(table func(*firewall) map[string]int, address string, change int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := table(f)
	if t[address] += change; t[address] <= 0 {
		delete(t, address)
	}
}

func incoming(f *firewall) map[string]int { return f.from }
func outgoing(f *firewall) map[string]int { return f.to }

// rules returns the rule set for nft.
func (f *firewall) rules() string {
	var rules strings.Builder
	rules.WriteString("add table inet chaos\ndelete table inet chaos\ntable inet chaos {\n  chain input {\n    type filter hook input priority 0; policy accept;\n")
	for _, address := range slices.Sorted(maps.Keys(f.from)) {
		fmt.Fprintf(&rules, "    ip saddr %s drop\n", address)
	}
	if f.loss > 0 {
		fmt.Fprintf(&rules, "    iifname != \"lo\" numgen random mod 100 < %d drop\n", f.loss)
	}
	rules.WriteString("  }\n  chain output {\n    type filter hook output priority 0; policy accept;\n")
	for _, address := range slices.Sorted(maps.Keys(f.to)) {
		fmt.Fprintf(&rules, "    ip daddr %s drop\n", address)
	}
	rules.WriteString("  }\n}\n")
	return rules.String()
}

// apply makes the firewall effective in the container's network namespace. It does nothing if the
// container does not run.
func (m *machine) apply(ctx context.Context) error {
	m.firewall.mu.Lock()
	defer m.firewall.mu.Unlock()
	pid, err := m.pid(ctx)
	if err != nil || pid == "0" {
		return err
	}
	m.mu.Lock()
	m.pidText = pid
	m.mu.Unlock()
	if _, err := runProgram(ctx, m.firewall.rules(), "nsenter", "-n", "-t", pid, "nft", "-f",
		"-"); err != nil {
		return err
	}
	for _, device := range []string{"eth0", "eth1"} {
		qdisc := func(arguments ...string) error {
			_, err := runProgram(ctx, "", "nsenter",
				append([]string{"-n", "-t", pid, "tc", "qdisc"}, arguments...)...)
			return err
		}
		if !m.firewall.slowed {
			_ = qdisc("del", "dev", device, "root") // there may be none
			continue
		}
		if qdisc("replace", "dev", device, "root", "netem", "delay", "80ms", "40ms") == nil {
			continue
		}
		if err := qdisc("replace", "dev", device, "root", "tbf", "rate", "400kbit", "burst", "16kb",
			"latency", "300ms"); err != nil {
			return err
		}
	}
	return nil
}

// cut adds change to the number of faults that drop the packets from one member to another. apply
// puts it into effect.
func (w *world) cut(from, to *machine,
	change int,
) {
	to.firewall.set(incoming, from.MemberIP, change)
}

// cutBroker adds change to the number of faults that drop everything between a node and the broker.
// apply puts it into effect.
func (w *world) cutBroker(m *machine, change int) {
	m.firewall.set(incoming, w.brokerIP, change)
	m.firewall.set(outgoing, w.brokerIP, change)
}

// applyAll calls apply for all machines. It tries again for about a second after an error.
func (w *world) applyAll(ctx context.Context) error {
	return all(w.machines, func(m *machine) error {
		for attempt := 0; ; attempt++ { // the container may be stopped or started meanwhile
			err := m.apply(ctx)
			if err == nil || attempt == 5 {
				return err
			}
			sleep(ctx, 200*time.Millisecond)
		}
	})
}

// heal calls applyAll after a fault has undone its changes. It only logs an error: healAll tries
// again before the run is judged.
func (w *world) heal(ctx context.Context) {
	if err := w.applyAll(ctx); err != nil {
		w.say("healing: %v", err)
	}
}

// healAll undoes all that a fault may have left behind because a tool failed.
func (w *world) healAll(ctx context.Context) error {
	for _, c := range w.containers() {
		_ = c.do(ctx, "unpause") // an error is normal: hardly any container is paused
	}
	return all(w.machines, func(m *machine) error {
		m.firewall.mu.Lock()
		m.firewall.from, m.firewall.to, m.firewall.loss, m.firewall.slowed = map[string]int{},
			map[string]int{}, 0, false
		m.firewall.mu.Unlock()
		return errors.Join(m.setClock(0),
			m.setTrouble(func(t *record.Trouble) { *t = record.Trouble{} }), m.apply(ctx))
	})
}

// containers returns the containers of the broker, the load and the machines.
func (w *world) containers() []container {
	containers := []container{w.broker, w.load}
	for _, m := range w.machines {
		containers = append(containers, m.container)
	}
	return containers
}
