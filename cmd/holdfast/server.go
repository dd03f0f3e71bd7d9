package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"holdfast/cluster"
	"holdfast/cluster/raftlog"
	"holdfast/internal/mqttconn"
	"holdfast/internal/server/audit"
	"holdfast/internal/server/httpapi"
	"holdfast/internal/server/node"
	"holdfast/internal/server/settings"
	"holdfast/internal/tlsconfig"
	"holdfast/mqttfront"
	"holdfast/mqttfront/wire"
)

// closeTimeout bounds the graceful part of a stop.
const closeTimeout = 10 * time.Second

func newServer() *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:   "server",
		Short: "Run one node against an external MQTT broker",
		Long: `Runs one node. Every setting has one name: its path in the YAML file is also the flag, and in capitals, with underscores, the
environment variable: node.dataDir, --node.dataDir, HOLDFAST_NODE_DATADIR. A flag counts before the environment, that before the
file, that before the default. See ` + "`holdfast config show`.",
		Example: "  holdfast server --broker.addresses mqtt://127.0.0.1:1883 --node.dataDir /var/lib/holdfast\n  holdfast server --config /etc/holdfast.yaml",
		Args:    positional(cobra.NoArgs),
	}
	flags := addSettings(command, &file)
	command.RunE = func(command *cobra.Command, _ []string) error {
		s, err := flags.load(command, file)
		if err != nil {
			return err
		}
		return serve(command, &s)
	}
	return command
}

// settingFlags are the flags of all settings.
type settingFlags struct{ fields []settings.Field }

func addSettings(command *cobra.Command, file *string) *settingFlags {
	command.Flags().StringVar(file, "config", "", "YAML `file` with settings")
	defaults := settings.Default()
	f := &settingFlags{fields: defaults.Fields()}
	for i := range f.fields {
		field := &f.fields[i]
		flag := command.Flags().VarPF(field.Value, field.Path, "", field.Help)
		if field.IsBool {
			flag.NoOptDefVal = "true"
		}
	}
	return f
}

// load returns the settings from the file, the environment and the flags.
func (f *settingFlags) load(command *cobra.Command, file string) (settings.Settings, error) {
	given := map[string]string{}
	for i := range f.fields {
		if path := f.fields[i].Path; command.Flags().Changed(path) {
			given[path] = f.fields[i].Value.String()
		}
	}
	s, warnings, err := settings.Load(file, os.Environ(), given)
	for _, warning := range warnings {
		// a failure to write to standard error cannot be reported
		_, _ = fmt.Fprintln(command.ErrOrStderr(), "holdfast: warning:", warning)
	}
	return s, err
}

// newLog returns a logger with the format and the level of the settings. The caller may change the
// level later through the returned LevelVar.
func newLog(out io.Writer, s *settings.Settings) (*slog.Logger, *slog.LevelVar) {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo,
		"warn": slog.LevelWarn, "error": slog.LevelError,
	}
	level := &slog.LevelVar{}
	level.Set(levels[s.Log.Level])
	options := &slog.HandlerOptions{Level: level}
	if s.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(out, options)), level
	}
	return slog.New(slog.NewTextHandler(out, options)), level
}

// serve runs a node until it is told to stop.
func serve(command *cobra.Command, s *settings.Settings) error {
	log, _, lines := newQueuedLog(command.ErrOrStderr(), s)
	defer lines.Close()
	log = log.With("node", s.Node.ID)
	node.LimitMemory()
	config, err := serverConfig(s, log)
	if err != nil {
		return err
	}
	registerLog(config.Registry, lines)
	certificates := watchCertificates(s, &config)
	var working sync.WaitGroup
	watching, stop := context.WithCancel(command.Context())
	defer func() {
		stop()
		working.Wait()
	}()
	working.Go(func() { certificates.Run(watching, log) })
	config.Exit = func(err error) {
		log.Error("stopping at once", "error", err)
		lines.Close()
		if errors.Is(err, cluster.ErrRemoved) {
			os.Exit(exitRemoved)
		}
		os.Exit(exitError)
	}
	identity, err := node.Identify(s.Node.DataDir, s.Cluster.Name, s.Node.ID)
	if err != nil {
		return err
	}
	memberLinks, err := newLinks(s, identity, config.Timing, log)
	if err != nil {
		return err
	}
	config.Links = memberLinks.Links
	config.Notes = func() []string {
		return slices.Concat(logNotes(lines), certificates.Notes(), memberLinks.notes())
	}
	source := &healthSource{waiting: memberLinks.waiting, notes: config.Notes}
	servers, err := listenHealth(s, source, config.Registry, log)
	if err != nil {
		return errors.Join(err, closeLinks(memberLinks))
	}
	// before the node is ready: readiness can need other members, which systemd may start only
	// after this one
	notifySystemd(log, systemdReady)
	running, err := node.Start(command.Context(), config, identity, memberLinks.assemble)
	if err == nil {
		source.setRunning(running)
		var more []*httpapi.Server
		more, err = listenAdmin(s, running, memberLinks, log)
		servers = append(servers, more...)
		if err == nil {
			log.Info("started", "version", version, "id", identity.RaftID(), "brokers",
				s.Broker.Addresses, "data", s.Node.DataDir)
			<-command.Context().Done()
			log.Info("stopping")
		}
	} else if command.Context().Err() != nil {
		err = nil // told to stop while it waited for the others
	}
	notifySystemd(log, systemdStopping)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err = errors.Join(err, closeServers(servers))
	if running == nil {
		return errors.Join(err, closeLinks(memberLinks))
	}
	return errors.Join(err, running.Close(ctx))
}

// closeServers stops all HTTP servers at the same time. It does not wait for answers that take
// long: the leadership transfer that follows needs the time.
func closeServers(servers []*httpapi.Server) error {
	const patience = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	faults := make([]error, len(servers))
	var closing sync.WaitGroup
	for i, server := range servers {
		closing.Go(func() {
			if err := server.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
				faults[i] = err
			}
		})
	}
	closing.Wait()
	return errors.Join(faults...)
}

// healthSource has the answers of the health port. It is used already before the node is started.
// Its methods are safe for concurrent use.
type healthSource struct {
	running atomic.Pointer[node.Node]
	waiting func() string
	notes   func() []string // while nothing runs
}

func (s *healthSource) setRunning(running *node.Node) { s.running.Store(running) }

func (s *healthSource) ready() error {
	if running := s.running.Load(); running != nil {
		return running.Ready()
	}
	if waiting := s.waiting(); waiting != "" {
		return fmt.Errorf("cluster: waiting for the other members: %s", waiting)
	}
	return errors.New("cluster: this node has not started yet")
}

func (s *healthSource) warnings() []string {
	if running := s.running.Load(); running != nil {
		return running.Warnings()
	}
	return s.notes()
}

func closeLinks(l *links) error {
	closer, ok := l.Raft.(io.Closer)
	if !ok {
		return nil
	}
	return closer.Close()
}

// serverConfig returns the configuration of a node, without Exit and Links. It reads the
// certificates, the secrets and the policy.
func serverConfig(s *settings.Settings, log *slog.Logger) (node.Config, error) {
	front := mqttfront.DefaultConfig()
	for _, text := range s.Broker.Addresses {
		address, err := mqttconn.ParseAddress(text)
		if err != nil {
			return node.Config{}, &usageError{err}
		}
		front.Addresses = append(front.Addresses, address)
	}
	files := tlsconfig.Files{
		CA: s.Broker.TLS.CAFile, Certificate: s.Broker.TLS.CertFile,
		Key: s.Broker.TLS.KeyFile, ServerName: s.Broker.TLS.ServerName,
	}
	if _, err := files.Client(); err != nil {
		return node.Config{}, &usageError{fmt.Errorf("broker.tls: %w", err)}
	}
	// These files are read again where they are used. Reading them here lets `config check` find
	// errors, and keeps a node from starting in part.
	for _, one := range []struct {
		path string
		tls  *settings.TLS
	}{{"cluster.tls", &s.Cluster.TLS}, {"admin.tls", &s.Admin.TLS}} {
		if one.tls.CertFile == "" {
			continue
		}
		files := tlsconfig.Files{
			CA: one.tls.CAFile, Certificate: one.tls.CertFile,
			Key: one.tls.KeyFile,
		}
		if _, err := tlsconfig.NewMutual(files, slog.New(slog.DiscardHandler)); err != nil {
			return node.Config{}, &usageError{fmt.Errorf("%s: %w", one.path, err)}
		}
	}
	front.Username = s.Broker.Username
	if s.Broker.PasswordFile != "" {
		password, err := followSecret(s.Broker.PasswordFile, log)
		if err != nil {
			return node.Config{},
				&usageError{fmt.Errorf("broker.passwordFile is %q: %w", s.Broker.PasswordFile, err)}
		}
		front.Password = password
	}
	front.RequestsPerClient = int(s.Limits.RequestsPerClient)
	front.Identity = wire.Identity{
		ClientIDProperty:    s.Identity.ClientIDProperty,
		UsernameProperty:    s.Identity.UsernameProperty,
		AttributeProperties: s.Identity.AttributeProperties, OwnResponses: true,
	}
	offer, err := node.NewOffer(s)
	if err != nil {
		return node.Config{}, &usageError{fmt.Errorf("policyFile is %q: %w", s.PolicyFile, err)}
	}
	timing := timingOf(&s.Cluster)
	check := cluster.DefaultConfig()
	check.ID, check.Timing = "check", timing
	if err := check.Validate(); err != nil {
		return node.Config{}, &usageError{fmt.Errorf("cluster.heartbeat and its like: %w", err)}
	}
	dialer := &mqttconn.Dialer{
		Addresses: front.Addresses, Renew: files.Client,
		Timeout: front.ConnectTimeout,
	}
	driver, err := newDriver(s, &front, dialer, log)
	if err != nil {
		return node.Config{}, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return node.Config{
		Cluster: s.Cluster.Name, Name: s.Node.ID, DataDir: s.Node.DataDir,
		LogStore: raftlog.Kind(s.Cluster.LogStore), MinFreeDisk: int64(s.Node.MinFreeDisk),
		Timing: timing, Offer: offer, PolicyFile: s.FollowedPolicy(), Front: front, Driver: driver,
		Dialer:         dialer,
		MaxClockOffset: s.Cluster.MaxClockOffset, Log: log, Registry: registry,
		Audit: audit.Config{
			File: s.Audit.File, MaxBytes: int64(s.Audit.MaxBytes),
			Files: int(s.Audit.Files),
		},
	}, nil
}

// timingOf returns the timing of the profile (LAN or edge). Settings of single times override it.
func timingOf(c *settings.Cluster) cluster.Timing {
	timing := cluster.LAN()
	if c.Profile == "edge" {
		timing = cluster.Edge()
	}
	for _, single := range []struct {
		set time.Duration
		of  *time.Duration
	}{
		{c.Heartbeat, &timing.Heartbeat},
		{c.Election, &timing.Election},
		{c.LeaderLease, &timing.LeaderLease},
		{c.DiskDeadline, &timing.DiskDeadline},
	} {
		if single.set > 0 {
			*single.of = single.set
		}
	}
	return timing
}

// listenHealth starts the server of the health port.
func listenHealth(s *settings.Settings, source *healthSource, metrics prometheus.Gatherer,
	log *slog.Logger,
) ([]*httpapi.Server, error) {
	if s.Health.Listen == "" {
		return nil, nil
	}
	handler := httpapi.Health(source.ready, source.warnings, metrics)
	if httpapi.IsLoopback(s.Health.Listen) {
		// elsewhere probes and scrapers come by names, and no browser is on this machine
		handler = httpapi.Local(handler)
	}
	server, err := httpapi.Listen(s.Health.Listen, handler, nil, log)
	if err != nil {
		return nil, err
	}
	log.Info("listening", "what", "health", "address", server.Address())
	return []*httpapi.Server{server}, nil
}

// listenAdmin starts the admin API for the other members and, if admin.listen is set, for
// operators. After an error, too, it returns the servers that it has started: the caller closes
// them.
func listenAdmin(s *settings.Settings, running *node.Node, memberLinks *links,
	log *slog.Logger,
) ([]*httpapi.Server, error) {
	handler := httpapi.Admin(httpapi.AdminConfig{
		Name: s.Node.ID, Node: running.Cluster, Ready: running.Ready, Notes: running.Warnings,
		Dial: memberLinks.dialHTTP, Pprof: s.Admin.Pprof, Log: log,
		Metrics: running.Registry(), Version: version, Mirrors: running.Front.Mirror(),
	})
	servers := []*httpapi.Server{httpapi.Serve(memberLinks.http, handler, log)}
	if s.Admin.Listen == "" {
		return servers, nil
	}
	var secure *tlsconfig.Mutual
	if tls := s.Admin.TLS; tls != (settings.TLS{}) {
		var err error
		if secure, err = tlsconfig.NewMutual(tlsconfig.Files{
			CA:          tls.CAFile,
			Certificate: tls.CertFile, Key: tls.KeyFile,
		}, log); err != nil {
			return servers, &usageError{fmt.Errorf("admin.tls: %w", err)}
		}
	}
	if secure == nil {
		handler = httpapi.Local(handler)
	}
	server, err := httpapi.Listen(s.Admin.Listen, handler, secure, log)
	if err != nil {
		return servers, err
	}
	log.Info("listening", "what", "admin", "address", server.Address(), "tls", secure != nil)
	return append(servers, server), nil
}
