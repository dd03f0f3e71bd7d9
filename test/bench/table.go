package main

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// byProcess says how much processor time each process used for a request, in microseconds.
func byProcess(m *measurement) string {
	var parts []string
	for _, name := range sortedKeys(m.cpu) {
		parts = append(parts, fmt.Sprintf("%s %.0f", name, m.perRequest(m.cpu[name])))
	}
	return strings.Join(parts, " ")
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// table returns the medians in Markdown: processor time, rates, latencies, and ratios between
// systems.
func (c *comparison) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s. %d members each; medians of %d interleaved rounds of %v; values of %d bytes, keys of 20, %d keys, %d connections; every write synced to disk.\n",
		c.Machine, c.Nodes, c.Rounds, c.Duration.Round(time.Millisecond), valueSize, benchKeys,
		connections)
	c.figures(&b, "Processor time of the members for a request, microseconds", "%.1f",
		func(p *point) float64 { return median(p.members()) })
	c.figures(&b, "Requests per second", "%.0f", func(p *point) float64 { return median(p.Rates) })
	c.figures(&b, "p50, milliseconds", "%.2f", func(p *point) float64 { return median(p.P50) })
	c.figures(&b, "p99, milliseconds", "%.2f", func(p *point) float64 { return median(p.P99) })
	c.ratios(&b)
	c.processors(&b)
	return b.String()
}

func (c *comparison) outstanding() (all []int) {
	for _, p := range c.Points {
		if !slices.Contains(all, p.Outstanding) {
			all = append(all, p.Outstanding)
		}
	}
	return all
}

// series returns the system and the workload of each table row and plot line, in the order in which
// they were first measured.
func (c *comparison) series() (all [][2]string) {
	for _, p := range c.Points {
		if name := [2]string{p.System, p.Workload}; !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

func header(b *strings.Builder, title string, columns []int) {
	fmt.Fprintf(b, "\n| %s, by requests under way |", title)
	for _, n := range columns {
		fmt.Fprintf(b, " %d |", n)
	}
	b.WriteString("\n|---|")
	b.WriteString(strings.Repeat("---:|", len(columns)))
	b.WriteString("\n")
}

func (c *comparison) figures(b *strings.Builder, title, format string, value func(*point) float64) {
	header(b, title, c.outstanding())
	for _, name := range c.series() {
		fmt.Fprintf(b, "| %s, %s |", name[0], name[1])
		for _, n := range c.outstanding() {
			if p := c.points[pointKey{name[0], name[1], n}]; p != nil {
				fmt.Fprintf(b, " "+format+" |", value(p))
			} else {
				b.WriteString(" – |")
			}
		}
		b.WriteString("\n")
	}
}

// ratio is a row of the table of ratios: one system's values divided by those of another one, the
// base, round by round.
type ratio struct {
	title, system, workload, base, baseWorkload string
	values                                      func(*point) []float64
}

func (c *comparison) ratios(b *strings.Builder) {
	rate := func(p *point) []float64 { return p.Rates }
	p50 := func(p *point) []float64 { return p.P50 }
	const echoes = "echo"
	header(b, "Ratios (the lowest and the highest of a round)", c.outstanding())
	for _, r := range []ratio{
		{"SET/s, of the echo ceiling", "Holdfast", "SET", echoes, "SET", rate},
		{"GET/s, of the echo ceiling", "Holdfast", "GET", echoes, "GET", rate},
		{"SET/s, of etcd", "Holdfast", "SET", "etcd", "SET", rate},
		{"GET/s, of etcd", "Holdfast", "GET", "etcd", "GET", rate},
		{"SET/s, of NATS KV", "Holdfast", "SET", "NATS KV", "SET", rate},
		{"SET p50, of etcd", "Holdfast", "SET", "etcd", "SET", p50},
		{
			"processor time of the members for a SET, of etcd", "Holdfast", "SET", "etcd", "SET",
			(*point).members,
		},
		{
			"SET/s with logStore: boltdb, of that with wal", "Holdfast, logStore: boltdb", "SET",
			"Holdfast", "SET", rate,
		},
		{"SET/s, of bare raft", "Holdfast", "SET", "bare raft", "SET", rate},
	} {
		fmt.Fprintf(b, "| %s |", r.title)
		for _, n := range c.outstanding() {
			p, base := c.points[pointKey{r.system, r.workload, n}],
				c.points[pointKey{r.base, r.baseWorkload, n}]
			if p == nil || base == nil {
				b.WriteString(" – |")
				continue
			}
			b.WriteString(" " + medianAndSpread(quotients(r.values(p), r.values(base))) + " |")
		}
		b.WriteString("\n")
	}
}

// medianAndSpread returns the median, and the lowest and the highest in brackets.
func medianAndSpread(values []float64) string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", median(values), slices.Min(values),
		slices.Max(values))
}

// members returns the processor time per request of all members together, in microseconds, by
// round.
func (p *point) members() []float64 { return p.processorWithout("broker", "load") }

// processorWithout returns the processor time per request of all processes together but the named
// ones, in microseconds, by round.
func (p *point) processorWithout(names ...string) []float64 {
	sums := make([]float64, len(p.Rates))
	for name, rounds := range p.Processor {
		if slices.Contains(names, name) {
			continue
		}
		for i := range rounds {
			sums[i] += rounds[i]
		}
	}
	return sums
}

// processors writes how much processor time each process used. The number of requests under way is
// the largest measured one up to 256, or the smallest one if all are larger.
func (c *comparison) processors(b *strings.Builder) {
	chosen := slices.Min(c.outstanding())
	for _, n := range c.outstanding() {
		if n <= 256 {
			chosen = max(chosen, n)
		}
	}
	fmt.Fprintf(b, "\n| Processor time for a request at %d requests under way, microseconds | by process |\n|---|---|\n", chosen)
	for _, name := range c.series() {
		p := c.points[pointKey{name[0], name[1], chosen}]
		if p == nil {
			continue
		}
		var parts []string
		for _, process := range sortedKeys(p.Processor) {
			parts = append(parts, fmt.Sprintf("%s %.1f", process, median(p.Processor[process])))
		}
		fmt.Fprintf(b, "| %s, %s | %s |\n", name[0], name[1], strings.Join(parts, ", "))
	}
}

// describeMachine returns the processor, the platform and the Go version, as the origin of the
// figures.
func describeMachine() string {
	name := "unknown processor"
	if file, err := os.Open("/proc/cpuinfo"); err == nil {
		for scanner := bufio.NewScanner(file); scanner.Scan(); {
			if key, value, ok := strings.Cut(scanner.Text(), ":"); ok &&
				strings.TrimSpace(key) == "model name" {
				name = strings.TrimSpace(value)
				break
			}
		}
		_ = file.Close() // it was read
	}
	return fmt.Sprintf("%s, %d cores, %s/%s, %s", name, runtime.NumCPU(), runtime.GOOS,
		runtime.GOARCH, runtime.Version())
}
