package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// broker is a broker to test.
type broker struct {
	name  string
	suite suite
	// prepare writes the configuration into a folder. It returns a function that makes the broker's
	// command, for each start a new one.
	prepare func(ctx context.Context, t *tools, root, folder string, port int) (func() *exec.Cmd,
		error)
	// version is a command that prints the broker's name and version.
	version []string
	// user is the user name, and password, that every client needs; empty is none.
	user string
	// watchesStay says that the broker sends no PUBACK 0x10 (no matching subscribers). The watches
	// of a disconnected client then end by watch.ttl.
	watchesStay bool
	// sticks is the check of `holdfast broker check` that the broker fails; its page says what to
	// do.
	sticks string
	// plugin says that the broker is Mosquitto: the plugin, the driver and all attacks are run as
	// well.
	plugin bool
}

func brokers() []broker {
	mosquitto := broker{
		prepare: prepareMosquitto,
		version: []string{"dpkg-query", "-W", "-f", "Mosquitto ${Version}", "mosquitto"},
		plugin:  true,
	}
	rabbitmq := broker{
		prepare: prepareRabbitMQ,
		version: []string{"dpkg-query", "-W", "-f", "RabbitMQ ${Version}", "rabbitmq-server"},
	}
	ejabberd := broker{
		prepare: prepareEjabberd,
		version: []string{"dpkg-query", "-W", "-f", "ejabberd ${Version}", "ejabberd"},
		user:    "plant",
		sticks:  "a message that is too large for the session holds nothing up",
	}
	named := func(b broker, name string, s suite) broker {
		b.name, b.suite = name, s
		return b
	}
	return []broker{
		{
			name: "embedded", prepare: prepareEmbedded,
			version: []string{"echo", "embedded: mochi 2.7.9"}, watchesStay: true,
		},
		named(mosquitto, "mosquitto-2.0.11", thisMachine),
		named(mosquitto, "mosquitto-2.0.21", debian13),
		named(mosquitto, "mosquitto-2.1", debianTesting),
		named(rabbitmq, "rabbitmq-4.0", debian13), named(rabbitmq, "rabbitmq-4.3", debianTesting),
		named(ejabberd, "ejabberd-23", thisMachine), named(ejabberd, "ejabberd-26", debianTesting),
	}
}

func prepareEmbedded(ctx context.Context, t *tools, _, _ string, port int) (func() *exec.Cmd,
	error,
) {
	return func() *exec.Cmd {
		return exec.CommandContext(ctx, t.holdfast, "broker", "--listen",
			fmt.Sprintf("127.0.0.1:%d", port))
	}, nil
}

// prepareMosquitto uses the part of the shipped configuration that is about message flow, and lets
// clients connect without a user.
func prepareMosquitto(ctx context.Context, t *tools, root, folder string,
	port int,
) (func() *exec.Cmd, error) {
	flow, err := os.ReadFile(filepath.Join(t.repository, "deploy/mosquitto/conf.d/flow.conf"))
	if err != nil {
		return nil, err
	}
	file := filepath.Join(folder, "mosquitto.conf")
	text := fmt.Sprintf("%s\nlistener %d 127.0.0.1\nallow_anonymous true\nuser root\nlog_dest stderr\npersistence true\npersistence_location %s/\n", flow, port, folder)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	return func() *exec.Cmd { return inside(ctx, root, "/usr/sbin/mosquitto", "-c", file) }, nil
}

func prepareRabbitMQ(ctx context.Context, _ *tools, root, folder string,
	port int,
) (func() *exec.Cmd, error) {
	config, plugins := filepath.Join(folder, "rabbitmq.conf"),
		filepath.Join(folder, "enabled_plugins")
	// With its default prefetch of 10, RabbitMQ delivers a quarter as much. It does not stamp
	// requests with client ids. Anonymous clients need a user of it.
	text := fmt.Sprintf(`listeners.tcp.default = 127.0.0.1:%d
mqtt.listeners.tcp.default = 127.0.0.1:%d
mqtt.prefetch = 1000
anonymous_login_user = guest
anonymous_login_pass = guest
`, freePort(), port)
	if err := errors.Join(os.WriteFile(config, []byte(text), 0o644),
		os.WriteFile(plugins, []byte("[rabbitmq_mqtt].\n"), 0o644)); err != nil {
		return nil, err
	}
	environment := []string{
		"HOME=" + folder, "RABBITMQ_NODENAME=r" + fmt.Sprint(port) + "@localhost",
		"RABBITMQ_CONFIG_FILE=" + config, "RABBITMQ_ENABLED_PLUGINS_FILE=" + plugins,
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(folder, "data"), "RABBITMQ_LOG_BASE=" + folder,
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", freePort()),
		fmt.Sprintf("ERL_EPMD_PORT=%d", freePort()), "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
	}
	return func() *exec.Cmd {
		return inside(ctx, root, "env",
			append(append([]string{}, environment...), "/usr/lib/rabbitmq/bin/rabbitmq-server")...)
	}, nil
}

func prepareEjabberd(ctx context.Context, _ *tools, root, folder string,
	port int,
) (func() *exec.Cmd, error) {
	config, control := filepath.Join(folder, "ejabberd.yml"),
		filepath.Join(folder, "ejabberdctl.cfg")
	text := fmt.Sprintf(`hosts: [localhost]
auth_method: [anonymous]
anonymous_protocol: login_anon
allow_multiple_connections: true
listen: [{port: %d, ip: "127.0.0.1", module: mod_mqtt, max_payload_size: 20000000}]
modules: {mod_mqtt: {max_queue: unlimited}}
`, port)
	settings := fmt.Sprintf("INET_DIST_INTERFACE=127.0.0.1\nERLANG_NODE=e%d@localhost\nexport ERL_EPMD_ADDRESS=127.0.0.1\nexport ERL_EPMD_PORT=%d\n", port, freePort())
	spool, logs := filepath.Join(folder, "spool"), filepath.Join(folder, "logs")
	const everybody = 0o777 // ejabberd gives up root, and has to write here
	if err := errors.Join(
		os.WriteFile(config, []byte(text), 0o644), os.WriteFile(control, []byte(settings), 0o644),
		os.Mkdir(spool, everybody), os.Mkdir(logs, everybody), os.Chmod(spool, everybody),
		os.Chmod(logs, everybody), os.Chmod(folder, everybody),
	); err != nil {
		return nil, err
	}
	return func() *exec.Cmd {
		return inside(ctx, root, "env", "HOME="+folder, "/usr/sbin/ejabberdctl", "--config", config,
			"--ctl-config", control, "--spool", spool, "--logs", logs, "foreground")
	}, nil
}

// instance is a broker that runs.
type instance struct {
	broker
	root    string
	version string
	address string
	folder  string
	command func() *exec.Cmd
	process *process
}

// launch starts a broker and waits until it listens. After an error nothing of it is left.
func launch(ctx context.Context, t *tools, b broker) (i *instance, err error) {
	i = &instance{broker: b}
	defer func() {
		if err != nil {
			i.close()
			i = nil
		}
	}()
	if i.root, err = root(ctx, b.suite); err != nil {
		return i, err
	}
	if i.folder, err = os.MkdirTemp("/tmp", "holdfast-brokers-"); err != nil {
		// each root has this machine's /tmp mounted
		return i, err
	}
	if err := os.Chmod(i.folder, 0o755); err != nil {
		return i, err
	}
	version, err := inside(ctx, i.root, b.version[0], b.version[1:]...).CombinedOutput()
	if err != nil {
		return i, fmt.Errorf("%s: %w: %s", b.version[0], err, version)
	}
	i.version, _, _ = strings.Cut(strings.TrimSpace(string(version)), "-")
	port := freePort()
	i.address = fmt.Sprintf("127.0.0.1:%d", port)
	if i.command, err = b.prepare(ctx, t, i.root, i.folder, port); err != nil {
		return i, err
	}
	return i, i.start(t)
}

func (i *instance) start(t *tools) (err error) {
	if i.process, err = start(i.command(), filepath.Join(t.output, i.name+".log")); err != nil {
		return err
	}
	if err := until("the broker listens", time.Minute,
		func() bool { return !i.process.running() || listens(i.address) }); err != nil ||
		!i.process.running() {
		return errors.Join(err, fmt.Errorf("%s: %s", i.name, i.process.tail()))
	}
	return nil
}

func (i *instance) close() {
	if i.process != nil {
		i.process.kill()
	}
	if i.folder != "" {
		_ = os.RemoveAll(i.folder) // what stays is in /tmp
	}
}
