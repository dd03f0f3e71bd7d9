package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// firewall is what a node's packets meet. It is lost when its container ends, and put up again when that starts.
type firewall struct {
	mu     sync.Mutex
	from   map[string]int // addresses whose packets are dropped, and how many faults want that
	to     map[string]int
	loss   int // per cent of what comes in
	slowed bool
}

func newFirewall() *firewall { return &firewall{from: make(map[string]int), to: make(map[string]int)} }

// set changes how many faults want packets from or to an address dropped.
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

// apply puts the firewall up in the container's network.
func (m *machine) apply(ctx context.Context) error {
	m.firewall.mu.Lock()
	defer m.firewall.mu.Unlock()
	pid, err := m.pid(ctx)
	if err != nil || pid == "0" {
		return err
	}
	m.mu.Lock()
	m.process = pid
	m.mu.Unlock()
	if _, err := tool(ctx, m.firewall.rules(), "nsenter", "-n", "-t", pid, "nft", "-f", "-"); err != nil {
		return err
	}
	for _, device := range []string{"eth0", "eth1"} {
		if m.firewall.slowed {
			_, err = tool(ctx, "", "nsenter", "-n", "-t", pid, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", "400kbit", "burst", "16kb", "latency", "300ms")
		} else {
			_, _ = tool(ctx, "", "nsenter", "-n", "-t", pid, "tc", "qdisc", "del", "dev", device, "root") // there may be none
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cut drops what one node sends to another between members, or heals that.
func (w *world) cut(from, to *machine, change int) { to.firewall.set(incoming, from.MemberIP, change) }

// cutBroker drops all between a node and the broker, or heals that.
func (w *world) cutBroker(m *machine, change int) {
	m.firewall.set(incoming, w.brokerIP, change)
	m.firewall.set(outgoing, w.brokerIP, change)
}

// applyAll puts all firewalls up.
func (w *world) applyAll(ctx context.Context) error {
	return all(w.machines, func(m *machine) error {
		for attempt := 0; ; attempt++ { // it may be started anew just then
			err := m.apply(ctx)
			if err == nil || attempt == 5 || !m.running(ctx) {
				return err
			}
			sleep(ctx, 200*time.Millisecond)
		}
	})
}

// heal puts all firewalls up, and has to succeed.
func (w *world) heal(ctx context.Context) {
	if err := w.applyAll(ctx); err != nil {
		w.say("healing: %v", err) // a machine that does not run gets its firewall when it starts
	}
}
