package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// growth holds the options of the command growth.
type growth struct {
	compareOptions
	largest int // the largest number of keys
}

func newGrowth() *cobra.Command {
	g := growth{}
	command := &cobra.Command{
		Use: "growth", Short: "What grows with keys, values, members, watchers and clients, and how fast",
		RunE: func(command *cobra.Command, _ []string) error { return g.run(command.Context()) },
	}
	g.add(command)
	command.Flags().StringArrayVar(&g.only, "only", nil,
		"`what` to measure, keys, members, watchers, clients or busy clients, may be repeated (default: all)")
	command.Flags().IntVar(&g.largest, "keys", 1_000_000, "the largest number of keys, on one node")
	return command
}

// growthPoint is what was measured at one size.
type growthPoint struct {
	What   string  `json:"what"`
	Size   int     `json:"size"`
	Detail string  `json:"detail"`
	Rate   float64 `json:"requestsPerSecond"`
	P50    float64 `json:"p50"` // milliseconds
	P99    float64 `json:"p99"`
	P999   float64 `json:"p99.9"`
	// resident anonymous memory of one node; for keys, after the restart
	Memory float64 `json:"mebibytes,omitempty"`
	// memory for each key beyond key and value
	BytesPerKey float64 `json:"overheadPerKey,omitempty"`
	// time until the node is ready again, after kill -9
	Restart float64 `json:"restartSeconds,omitempty"`
	// p99.9 in milliseconds, while snapshots are taken
	WhileSaving float64 `json:"p99.9whileSaving,omitempty"`
	// how long the longest snapshot under load took
	Snapshot float64 `json:"snapshotSeconds,omitempty"`
	Filled   float64 `json:"fillKeysPerSecond,omitempty"` // how fast the keys were written
}

func (g *growth) run(ctx context.Context) error {
	env, clean, err := g.environment()
	if err != nil {
		return err
	}
	defer clean()
	var all []*growthPoint
	note := func(m *growthPoint, err error) error {
		if err != nil {
			return err
		}
		all = append(all, m)
		fmt.Printf("%-20s %9d %-22s %7.0f/s  p50 %6.2f ms  p99 %7.2f ms  p99.9 %7.2f ms  %6.0f MiB  %5.0f B/key  restart %5.2f s  saving: p99.9 %7.2f ms in %.1f s\n",
			m.What, m.Size, m.Detail, m.Rate, m.P50, m.P99, m.P999, m.Memory, m.BytesPerKey,
			m.Restart, m.WhileSaving, m.Snapshot)
		return nil
	}
	axes := []growthAxis{
		{"keys", func() error { return g.allKeys(ctx, env, note) }},
		{"members", each(ctx, env, note, g.members, 1, 3, 5)},
		{"watchers", each(ctx, env, note, g.watchers, 0, 1_000, 10_000)},
		{"clients", each(ctx, env, note, g.clients, 10, 100, 1_000, 5_000)},
		{busyClients, each(ctx, env, note, g.busyClients, 10, 100, 1_000, 5_000)},
	}
	for _, name := range g.only {
		if !slices.ContainsFunc(axes, func(axis growthAxis) bool { return axis.name == name }) {
			return fmt.Errorf("--only: there is no %q", name)
		}
	}
	for _, axis := range axes {
		if len(g.only) > 0 && !slices.Contains(g.only, axis.name) {
			continue
		}
		if err := axis.measure(); err != nil {
			// what was measured before
			return errors.Join(fmt.Errorf("%s: %w", axis.name, err), g.write(all))
		}
	}
	return g.write(all)
}

// growthAxis is one quantity that grows, for instance the number of keys. measure measures all its
// sizes.
type growthAxis struct {
	name    string
	measure func() error
}

// each returns a function that measures one size after the other, until one fails.
func each(ctx context.Context, env *environment, note func(*growthPoint, error) error,
	measure func(context.Context, *environment, int) (*growthPoint, error),
	sizes ...int,
) func() error {
	return func() error {
		for _, size := range sizes {
			if err := note(measure(ctx, env, size)); err != nil {
				return fmt.Errorf("%d: %w", size, err)
			}
		}
		return nil
	}
}

// allKeys measures numbers of keys with small and with large values.
func (g *growth) allKeys(ctx context.Context, env *environment,
	note func(*growthPoint, error) error,
) error {
	const smallest = 10_000
	if g.largest < smallest {
		return fmt.Errorf("--keys is %d: must be at least %d", g.largest, smallest)
	}
	for keys := smallest; keys <= g.largest; {
		if err := note(g.keys(ctx, env, keys, valueSize)); err != nil {
			return fmt.Errorf("%d keys: %w", keys, err)
		}
		switch {
		case keys < g.largest && keys*10 > g.largest:
			keys = g.largest
		default:
			keys *= 10
		}
	}
	for _, keys := range []int{2_000, 20_000, 200_000} {
		if keys > g.largest/5 {
			// 200,000 of these keys have two gigabytes of values, and take long: a smaller --keys
			// leaves them out
			continue
		}
		if err := note(g.keys(ctx, env, keys, 10<<10)); err != nil {
			return fmt.Errorf("%d keys of 10 KiB: %w", keys, err)
		}
	}
	return nil
}

// plain returns a Holdfast cluster of some nodes with default settings.
func plain(nodes int) system { return holdfastSystem(fmt.Sprintf("%d nodes", nodes), nodes, nil) }

const (
	growthOutstanding = 64
	setsUnderWay      = "SET, 64 under way"
)

func (g *growth) load(keys, size int) loadOptions {
	return loadOptions{
		ValueSize: size, Keys: keys, Connections: connections,
		Outstanding: growthOutstanding, GETs: 50, Warmup: g.warmup, Duration: g.duration,
	}
}

func (m *growthPoint) copyFrom(x *measurement) {
	m.Rate, m.P50, m.P99, m.P999 = x.result.Rate, float64(x.result.P50)/1000,
		float64(x.result.P99)/1000, float64(x.result.P999)/1000
}

// keys measures one node with a number of keys: half of the requests read, half write.
func (g *growth) keys(ctx context.Context, env *environment, keys, size int) (*growthPoint, error) {
	m := &growthPoint{What: "keys", Size: keys, Detail: fmt.Sprintf("values of %d bytes", size)}
	return m, withSystem(ctx, env, plain(1), func(env *environment, d *deployment) error {
		options := g.load(keys, size)
		filling := options
		filling.Fill, filling.Outstanding = true, 256
		began := time.Now()
		if _, err := d.measure(ctx, env, filling); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
		m.Filled = float64(keys) / time.Since(began).Seconds()
		measured, err := d.measure(ctx, env, options)
		if err != nil {
			return err
		}
		m.copyFrom(measured)
		if err := g.whileSaving(ctx, env, d, options, m); err != nil {
			return err
		}
		return g.restart(ctx, d, m, keys*(20+size))
	})
}

// whileSaving puts load on the node while it takes one snapshot after the other.
func (g *growth) whileSaving(ctx context.Context, env *environment, d *deployment,
	options loadOptions, m *growthPoint,
) error {
	saving, stop := context.WithCancel(ctx)
	defer stop()
	taken := make(chan error, 1)
	var longest time.Duration
	go func() {
		for saving.Err() == nil {
			began := time.Now()
			_, err := post(saving, "http://"+d.admin[0]+"/v1/snapshot/take", nil)
			if saving.Err() != nil {
				break // it was interrupted
			}
			if err != nil {
				taken <- err
				return
			}
			longest = max(longest, time.Since(began))
		}
		taken <- nil
	}()
	measured, err := d.measure(ctx, env, options)
	stop()
	if err = errors.Join(err, <-taken); err != nil {
		return fmt.Errorf("while a snapshot is taken: %w", err)
	}
	m.WhileSaving, m.Snapshot = float64(measured.result.P999)/1000, longest.Seconds()
	return nil
}

// restart kills the node and starts it again. It measures how long that takes, and the memory of
// the new process. bytes is the size of all keys and values.
func (g *growth) restart(ctx context.Context, d *deployment, m *growthPoint, bytes int) error {
	old := d.processes[len(d.processes)-1]
	old.kill()
	began := time.Now()
	again, err := startProcess(old.command.Dir, old.name, old.command.Path, old.command.Args[1:]...)
	if err != nil {
		return err
	}
	d.processes[len(d.processes)-1] = again
	if err := d.waitFor(ctx, "the restarted node is ready", 5*time.Minute,
		func() bool { return answers(ctx, "http://"+d.health[0]+"/readyz") }); err != nil {
		return err
	}
	m.Restart = time.Since(began).Seconds()
	m.Memory = float64(again.memory()) / (1 << 20)
	m.BytesPerKey = (float64(again.memory()) - float64(bytes)) / float64(m.Size)
	return nil
}

// sets measures SETs on a cluster of a number of nodes. change adjusts the options of the load.
func (g *growth) sets(ctx context.Context, env *environment, m *growthPoint, nodes int,
	change func(*loadOptions),
) (*growthPoint, error) {
	return m, withSystem(ctx, env, plain(nodes), func(env *environment, d *deployment) error {
		options := g.load(benchKeys, valueSize)
		options.GETs = 0
		change(&options)
		measured, err := d.measure(ctx, env, options)
		if err == nil {
			m.copyFrom(measured)
			m.Memory = float64(d.processes[1].memory()) / (1 << 20)
		}
		return err
	})
}

// members measures SETs on a cluster of a number of members.
func (g *growth) members(ctx context.Context, env *environment, members int) (*growthPoint, error) {
	return g.sets(ctx, env, &growthPoint{What: "members", Size: members, Detail: setsUnderWay},
		members, func(*loadOptions) {})
}

// watchers measures SETs of benchKeys keys. The given number of these keys has one watcher each.
func (g *growth) watchers(ctx context.Context, env *environment, watchers int) (*growthPoint,
	error,
) {
	return g.sets(ctx, env, &growthPoint{What: "watchers", Size: watchers, Detail: setsUnderWay}, 3,
		func(o *loadOptions) { o.Watchers = watchers })
}

// clients measures a number of clients, each with its own connection. The requests under way are
// spread over all of them at random.
func (g *growth) clients(ctx context.Context, env *environment, clients int) (*growthPoint, error) {
	return g.sets(ctx, env, &growthPoint{What: "clients", Size: clients, Detail: setsUnderWay}, 3,
		func(o *loadOptions) { o.Spread, o.Connections = true, clients; o.extendWarmup() })
}

// busyClients measures a number of clients, each with its own connection and a request under way.
func (g *growth) busyClients(ctx context.Context, env *environment, clients int) (*growthPoint,
	error,
) {
	return g.sets(ctx, env, &growthPoint{
		What: busyClients, Size: clients,
		Detail: "SET, one of each client under way",
	}, 3, func(o *loadOptions) {
		o.Outstanding, o.Connections = clients, clients
		o.extendWarmup()
	})
}

// extendWarmup adds time to the warm-up for the work that new connections cost.
func (o *loadOptions) extendWarmup() {
	o.Warmup += time.Duration(o.Connections) * 2 * time.Millisecond
}

// busyClients names the axis on which each client has one request under way.
const busyClients = "busy clients"

func (g *growth) write(all []*growthPoint) error {
	data, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s. %d requests under way (with busy clients: one of each client), one run of %v each.\n\n", describeMachine(), growthOutstanding, g.duration)
	b.WriteString("| what | size | details | requests/s | p50 ms | p99 ms | p99.9 ms | MiB | bytes per key beyond key and value | restart s | p99.9 ms while snapshots are taken | snapshot s |\n|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	rates, memory := map[string]*series{}, map[string]*series{}
	var order []string
	for _, m := range all {
		fmt.Fprintf(&b, "| %s | %d | %s | %.0f | %.2f | %.2f | %.2f | %.0f | %.0f | %.2f | %.2f | %.2f |\n",
			m.What, m.Size, m.Detail, m.Rate, m.P50, m.P99, m.P999, m.Memory, m.BytesPerKey,
			m.Restart, m.WhileSaving, m.Snapshot)
		if m.What != "keys" {
			continue
		}
		if rates[m.Detail] == nil {
			rates[m.Detail], memory[m.Detail] = &series{name: "requests/s, " + m.Detail},
				&series{name: "MiB, " + m.Detail}
			order = append(order, m.Detail)
		}
		rates[m.Detail].add(float64(m.Size), m.Rate)
		memory[m.Detail].add(float64(m.Size), max(m.Memory, 1))
	}
	drawn := chart{
		title: "One node: throughput and memory with the number of keys", x: "keys",
		y: "requests per second; MiB",
	}
	for _, detail := range order {
		drawn.series = append(drawn.series, *rates[detail], *memory[detail])
	}
	fmt.Print("\n", b.String())
	return errors.Join(
		g.saveChart(all, "members"), g.saveChart(all, "watchers"), g.saveChart(all, "clients"),
		os.WriteFile(filepath.Join(g.output, "growth.json"), append(data, '\n'), 0o644),
		os.WriteFile(filepath.Join(g.output, "growth.md"), []byte(b.String()), 0o644),
		saveUnlessEmpty(&drawn, filepath.Join(g.output, "growth.svg")),
	)
}

// saveChart draws the points of one axis into a file that has the name of the axis. Without points
// it writes no file.
func (g *growth) saveChart(all []*growthPoint, what string) error {
	return saveUnlessEmpty(growthChart(all, what), filepath.Join(g.output, what+".svg"))
}

func saveUnlessEmpty(c *chart, file string) error {
	if len(c.series) == 0 || len(c.series[0].points) == 0 {
		return nil
	}
	return c.save(file)
}

// growthChart draws throughput and p99 latency against the size on one axis of growth. Size 0 is
// drawn at 1, because the scale is logarithmic.
func growthChart(all []*growthPoint, what string) *chart {
	rate, p99 := series{name: "requests/s"}, series{name: "p99, milliseconds"}
	for _, m := range all {
		if m.What == what {
			rate.add(float64(max(m.Size, 1)), m.Rate)
			p99.add(float64(max(m.Size, 1)), m.P99)
		}
	}
	return &chart{
		"SET, 64 under way, with the number of " + what, what,
		"requests per second; milliseconds",
		[]series{rate, p99},
	}
}
