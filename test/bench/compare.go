package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// compareOptions are the flags of all commands that measure, and the systems that the command
// measures.
type compareOptions struct {
	holdfast    string
	dir         string
	output      string
	only        []string
	outstanding []int
	rounds      int
	nodes       int
	warmup      time.Duration
	duration    time.Duration

	systems func(nodes int) []system
}

func newCompare() *cobra.Command {
	o := compareOptions{systems: compared}
	command := &cobra.Command{
		Use: "compare", Short: "The same load on Holdfast, etcd, NATS JetStream KV, bare raft and the broker alone, in one run",
		RunE: func(command *cobra.Command, _ []string) error {
			measured, err := o.run(command.Context())
			if len(measured.Points) > 0 { // also after an error
				err = errors.Join(err, measured.write(o.output))
			}
			return err
		},
	}
	o.add(command)
	flags := command.Flags()
	flags.StringArrayVar(&o.only, "only", nil,
		"`name` of a system to measure, may be repeated (default: all)")
	flags.IntSliceVar(&o.outstanding, "outstanding", []int{1, 16, 64, 256, 1024},
		"requests under way at once")
	flags.IntVar(&o.nodes, "nodes", 3, "members of each cluster")
	flags.IntVar(&o.rounds, "rounds", 3,
		"how often each is measured; medians are reported, and the spread of ratios")
	return command
}

func (o *compareOptions) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&o.holdfast, "holdfast", "bin/holdfast", "the `binary` under test")
	flags.StringVar(&o.dir, "dir", "",
		"`folder` for the data, on the disk that is to be measured (default: that of the results)")
	flags.StringVar(&o.output, "output", "report/bench", "`folder` for the results")
	flags.DurationVar(&o.warmup, "warmup", time.Second, "load before each measurement")
	flags.DurationVar(&o.duration, "duration", 3*time.Second, "length of each measurement")
}

// compared returns the systems of the command compare.
func compared(nodes int) []system {
	all := []workload{sets(), reads(), mixed()}
	return append([]system{
		echoSystem("echo", []workload{sets(), reads()}),
		holdfastSystem("Holdfast", nodes, all),
		etcdSystem(),
		natsSystem(),
		holdfastSystem("Holdfast, logStore: boltdb", nodes, []workload{sets()},
			"--cluster.logStore", "boltdb"),
		raftSystem(),
	}, secureSystems(nodes, []workload{sets()})...)
}

// point has the measured figures of one system and one workload, at one number of requests under
// way.
type point struct {
	System      string    `json:"system"`
	Workload    string    `json:"workload"`
	Outstanding int       `json:"outstanding"`
	Rates       []float64 `json:"rates"` // requests per second, by round
	P50         []float64 `json:"p50"`   // milliseconds, by round, as P99 and P999
	P99         []float64 `json:"p99"`
	P999        []float64 `json:"p99.9"`
	// Processor is the processor time per request in microseconds, by process and round, as the
	// kernel counts it.
	Processor map[string][]float64 `json:"processor"`
}

type pointKey struct {
	system, workload string
	outstanding      int
}

// run measures all systems in interleaved rounds. It returns what was measured, also with an error.
func (o *compareOptions) run(ctx context.Context) (*comparison, error) {
	measured := &comparison{
		Machine: describeMachine(), Nodes: o.nodes, Rounds: o.rounds,
		Duration: o.duration, points: map[pointKey]*point{},
	}
	if err := o.validate(); err != nil {
		return measured, err
	}
	env, clean, err := o.environment()
	if err != nil {
		return measured, err
	}
	defer clean()
	for round := range o.rounds {
		for _, s := range o.systems(o.nodes) {
			if len(o.only) > 0 && !slices.Contains(o.only, s.name) {
				continue
			}
			if err := o.measure(ctx, env, s, round, measured); err != nil {
				return measured, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return measured, nil
}

// validate reports the first flag that makes no sense.
func (o *compareOptions) validate() error {
	if o.rounds < 1 || len(o.outstanding) == 0 || slices.Min(o.outstanding) < 1 {
		return errors.New("--rounds and --outstanding must be positive")
	}
	for _, name := range o.only {
		if !slices.ContainsFunc(o.systems(o.nodes), func(s system) bool { return s.name == name }) {
			return fmt.Errorf("--only: there is no %q", name)
		}
	}
	return nil
}

// environment creates the folder of the results, and a temporary folder for the data. clean removes
// the data.
func (o *compareOptions) environment() (env *environment, clean func(), err error) {
	env = &environment{nodes: o.nodes}
	if env.self, err = os.Executable(); err != nil {
		return nil, nil, err
	}
	if env.holdfast, err = filepath.Abs(o.holdfast); err != nil {
		return nil, nil, err
	}
	if _, err := os.Stat(env.holdfast); err != nil {
		return nil, nil, fmt.Errorf("%w: make build", err)
	}
	if err := os.MkdirAll(o.output, 0o755); err != nil {
		return nil, nil, err
	}
	dir := o.dir
	if dir == "" {
		dir = o.output
	}
	if env.dir, err = os.MkdirTemp(dir, "holdfast-bench-"); err != nil {
		return nil, nil, err
	}
	if env.dir, err = filepath.Abs(env.dir); err != nil {
		return nil, nil, err
	}
	root := env.dir
	// mosquitto reads its configuration after it has given up root
	return env, func() { _ = os.RemoveAll(root) }, os.Chmod(root, 0o755)
}

// withSystem starts a system in a folder of its own, calls use, stops the system, and removes the
// folder.
func withSystem(ctx context.Context, env *environment, s system,
	use func(*environment, *deployment) error,
) error {
	inner := *env
	var err error
	if inner.dir, err = os.MkdirTemp(env.dir, "system-"); err != nil {
		return err
	}
	d, err := s.start(ctx, &inner)
	if err == nil {
		err = use(&inner, d)
	}
	d.stop()
	env.ports = inner.ports
	return errors.Join(err, os.RemoveAll(inner.dir))
}

const (
	connections = 4
	valueSize   = 100
	benchKeys   = 10_000
)

func (o *compareOptions) measure(ctx context.Context, env *environment, s system, round int,
	measured *comparison,
) error {
	return withSystem(ctx, env, s, func(env *environment, d *deployment) error {
		base := loadOptions{
			ValueSize: valueSize, Keys: benchKeys, Connections: connections,
			Warmup: o.warmup, Duration: o.duration,
		}
		if d.raft == "" {
			filling := base
			filling.Fill, filling.Outstanding = true, 256
			if _, err := d.measure(ctx, env, filling); err != nil {
				return fmt.Errorf("fill: %w", err)
			}
		}
		for _, outstanding := range o.outstanding {
			for _, l := range s.workloads {
				options := base
				options.GETs, options.Outstanding = l.gets, outstanding
				m, err := d.measure(ctx, env, options)
				if err != nil {
					return fmt.Errorf("%s at %d: %w", l.name, outstanding, err)
				}
				measured.add(s.name, l.name, outstanding, m)
				fmt.Printf("round %d  %-40s %-6s %5d: %8.0f/s  p50 %7.2f ms  p99 %7.2f ms  µs a request: %s\n", round+1, s.name, l.name, outstanding,
					m.result.Rate, float64(m.result.P50)/1000, float64(m.result.P99)/1000,
					byProcess(m))
			}
		}
		return nil
	})
}

// comparison gathers the points, in the order in which they were first measured.
type comparison struct {
	Machine  string        `json:"machine"`
	Nodes    int           `json:"nodes"`
	Rounds   int           `json:"rounds"`
	Duration time.Duration `json:"durationNanoseconds"`
	Points   []*point      `json:"points"`

	points map[pointKey]*point
}

func (c *comparison) add(system, workload string, outstanding int, m *measurement) {
	key := pointKey{system, workload, outstanding}
	p := c.points[key]
	if p == nil {
		p = &point{
			System: system, Workload: workload, Outstanding: outstanding,
			Processor: map[string][]float64{},
		}
		c.points[key] = p
		c.Points = append(c.Points, p)
	}
	p.Rates = append(p.Rates, m.result.Rate)
	p.P50 = append(p.P50, float64(m.result.P50)/1000)
	p.P99 = append(p.P99, float64(m.result.P99)/1000)
	p.P999 = append(p.P999, float64(m.result.P999)/1000)
	for name, used := range m.cpu {
		p.Processor[name] = append(p.Processor[name], m.perRequest(used))
	}
}

// write leaves the figures, a table and two plots in a folder.
func (c *comparison) write(dir string) error {
	data, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "compare.json"), append(data, '\n'),
		0o644); err != nil {
		return err
	}
	table := c.table()
	fmt.Print("\n", table)
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "compare.md"), []byte(table), 0o644),
		c.throughputChart().save(filepath.Join(dir, "compare.svg")),
		c.latencyChart().save(filepath.Join(dir, "latency.svg")),
	)
}
