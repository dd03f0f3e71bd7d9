package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"holdfast/internal/testcert"
)

// links says whose connections to the broker use TLS.
type links struct{ nodesTLS, clientsTLS bool }

// holdfastSystem is Holdfast with the given number of nodes behind Mosquitto, without TLS. settings
// are arguments of holdfast server.
func holdfastSystem(name string, nodes int, workloads []workload, settings ...string) system {
	return linkedSystem(name, nodes, workloads, links{}, settings...)
}

// linkedSystem is holdfastSystem with TLS on the given links.
func linkedSystem(name string, nodes int, workloads []workload, links links,
	settings ...string,
) system {
	return system{
		name: name, workloads: workloads,
		start: func(ctx context.Context, env *environment) (*deployment, error) {
			d := &deployment{kind: "holdfast"}
			if err := d.mosquitto(ctx, env, links); err != nil {
				return d, err
			}
			settings := slices.Clone(settings)
			if links.nodesTLS {
				settings = append(settings, "--broker.tls.caFile", d.authority)
			}
			return d, d.holdfast(ctx, env, nodes, settings)
		},
	}
}

// mosquitto starts the broker with the settings for throughput of docs/brokers/mosquitto.md, one
// listener without TLS and one with it. It sets the addresses of the deployment.
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
	text := "allow_anonymous true\nset_tcp_nodelay true\nmax_inflight_messages 20000\nmax_queued_messages 1000000\n" + listener(plain) +
		listener(secure) + fmt.Sprintf("certfile %s\nkeyfile %s\n", certificates.File("broker.crt"),
		certificates.File("broker.key"))
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
	return d.waitFor(ctx, "mosquitto listens", startTime,
		func() bool { return listens(plain) && listens(secure) })
}

// holdfast starts some nodes, and waits until all are ready, hence have a leader.
func (d *deployment) holdfast(ctx context.Context, env *environment, nodes int,
	settings []string,
) error {
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
	return d.waitFor(ctx, "the nodes are ready", startTime, func() bool {
		for _, health := range d.health {
			if !answers(ctx, "http://"+health+"/readyz") {
				return false
			}
		}
		return true
	})
}

// node starts the Holdfast node of an index. address is for the other members, and peers lists all
// members as <id>=<address>.
func (d *deployment) node(env *environment, i int, address string, peers, settings []string) error {
	id := fmt.Sprintf("n%d", i+1)
	arguments := append([]string{
		"server", "--node.id", id, "--node.dataDir", filepath.Join(env.dir, id),
		"--node.minFreeDisk", "0", "--log.level", "warn",
		"--broker.addresses", d.broker, "--health.listen", d.health[i], "--admin.listen",
		d.admin[i], "--admin.pprof",
	}, settings...)
	if len(peers) > 1 {
		arguments = append(arguments, "--cluster.listen", address, "--cluster.advertise", address,
			"--cluster.peers", strings.Join(peers, ","), "--cluster.tls.insecure")
	}
	return d.add(env, id, env.holdfast, arguments...)
}
