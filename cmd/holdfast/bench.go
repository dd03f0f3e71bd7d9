package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"holdfast/client"
)

// benchOptions are the flags of `holdfast bench`.
type benchOptions struct {
	connection
	clients     int
	outstanding int
	ratio       string
	valueSize   int
	keys        int
	duration    time.Duration
}

// benchResult is what `holdfast bench` prints with -o json. Latencies are in microseconds.
type benchResult struct {
	Clients     int     `json:"clients"`
	Outstanding int     `json:"outstanding"`
	Seconds     float64 `json:"seconds"`
	Requests    int64   `json:"requests"`
	Errors      int64   `json:"errors"`
	Unknown     int64   `json:"unknown"`
	Rate        float64 `json:"requestsPerSecond"`
	P50         int64   `json:"p50"`
	P90         int64   `json:"p90"`
	P99         int64   `json:"p99"`
	P999        int64   `json:"p99.9"`
	Max         int64   `json:"max"`
}

func newBench() *cobra.Command {
	var o benchOptions
	command := &cobra.Command{
		Use:   "bench",
		Short: "Put load on the store and measure it",
		Long: `Runs a closed loop: each of --outstanding requests, spread over --clients connections, is followed by the next as soon as it is
answered. Only load brokers and clusters that are yours. The keys that it writes begin with holdfast-bench/.`,
		Example: "  holdfast bench --outstanding 64 --duration 10s\n  holdfast bench --clients 8 --outstanding 256 --ratio 80:20 --value-size 1000 -o json",
		Args:    positional(cobra.NoArgs),
	}
	o.add(command)
	flags := command.Flags()
	flags.IntVar(&o.clients, "clients", 4, "number of connections")
	flags.IntVar(&o.outstanding, "outstanding", 64, "requests under way at once, over all connections")
	flags.StringVar(&o.ratio, "ratio", "0:100", "`GET:SET` ratio, such as 80:20")
	flags.IntVar(&o.valueSize, "value-size", 100, "size of a value in `bytes`")
	flags.IntVar(&o.keys, "keys", 1000, "number of keys")
	flags.DurationVar(&o.duration, "duration", 10*time.Second, "how long to measure")
	command.RunE = func(command *cobra.Command, _ []string) error { return o.run(command) }
	return command
}

func (o *benchOptions) run(command *cobra.Command) error {
	var gets, sets int
	const most = 1_000_000
	if n, err := fmt.Sscanf(o.ratio, "%d:%d", &gets, &sets); n != 2 || err != nil || o.ratio != fmt.Sprintf("%d:%d", gets, sets) ||
		gets < 0 || sets < 0 || gets+sets == 0 || max(gets, sets) > most {
		return usagef("--ratio is %q: want GET:SET, such as 80:20", o.ratio)
	}
	if o.clients < 1 || o.outstanding < o.clients || o.keys < 1 || o.valueSize < 0 || o.valueSize > maxValueSize || o.duration <= 0 {
		return usagef("--clients, --keys and --duration must be positive, --outstanding not below --clients, and --value-size from 0 to %d", maxValueSize)
	}
	value := make([]byte, o.valueSize)
	_, _ = rand.Read(value) // never fails
	result := benchRecorder{histogram: hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 3)}
	ctx, cancel := context.WithCancel(command.Context())
	defer cancel()
	var connected []*client.Client
	defer func() {
		for _, c := range connected {
			_ = c.Close() // everything is answered, or given up
		}
	}()
	for range o.clients {
		c, err := o.open(ctx, command)
		if err != nil {
			return err
		}
		connected = append(connected, c)
	}
	start := time.Now()
	end := start.Add(o.duration)
	var workers sync.WaitGroup
	for i := range o.outstanding {
		workers.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				read := mathrand.IntN(gets+sets) < gets
				result.one(ctx, connected[i%o.clients], o, read, value)
			}
		})
	}
	workers.Wait()
	if err := o.report(command, result.summary(o, time.Since(start))); err != nil {
		return err
	}
	if result.histogram.TotalCount() == 0 && result.last != nil {
		return fmt.Errorf("nothing was answered: %w", result.last)
	}
	return nil
}

// maxValueSize is more than any store accepts.
const maxValueSize = 64 << 20

type benchRecorder struct {
	mu              sync.Mutex
	histogram       *hdrhistogram.Histogram
	errors, unknown int64
	last            error
}

// one makes one request and records it.
func (r *benchRecorder) one(ctx context.Context, c *client.Client, o *benchOptions, read bool, value []byte) {
	key := fmt.Sprintf("holdfast-bench/%05d", mathrand.IntN(o.keys))
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	start := time.Now()
	var err error
	if read {
		if _, _, err = c.Get(ctx, key); errors.Is(err, client.ErrNotFound) {
			err = nil
		}
	} else {
		_, err = c.Set(ctx, key, value)
	}
	took := time.Since(start)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, client.ErrOutcomeUnknown):
		r.unknown++
		r.last = err
	case err != nil:
		r.errors++
		r.last = err
	default:
		_ = r.histogram.RecordValue(took.Microseconds()) // what is out of range took longer than a minute, beyond any timeout
	}
}

func (r *benchRecorder) summary(o *benchOptions, took time.Duration) benchResult {
	h := r.histogram
	return benchResult{
		Clients: o.clients, Outstanding: o.outstanding, Seconds: took.Seconds(), Requests: h.TotalCount(), Errors: r.errors, Unknown: r.unknown,
		Rate: float64(h.TotalCount()) / took.Seconds(),
		P50:  h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90), P99: h.ValueAtQuantile(99), P999: h.ValueAtQuantile(99.9), Max: h.Max(),
	}
}

func (o *benchOptions) report(command *cobra.Command, r benchResult) error {
	if o.output == "json" {
		return printJSON(command.OutOrStdout(), r)
	}
	_, err := fmt.Fprintf(command.OutOrStdout(),
		"%.0f requests/s (%d in %.1f s, %d clients, %d outstanding, %d errors, %d unknown)\nlatency ms: p50 %.2f  p90 %.2f  p99 %.2f  p99.9 %.2f  max %.2f\n",
		r.Rate, r.Requests, r.Seconds, r.Clients, r.Outstanding, r.Errors, r.Unknown,
		ms(r.P50), ms(r.P90), ms(r.P99), ms(r.P999), ms(r.Max))
	if err == nil && delayed(r.P50) {
		_, err = fmt.Fprintln(command.OutOrStdout(), "half of the requests take 40 to 48 ms: the broker seems to leave Nagle's algorithm on; Mosquitto needs the line `set_tcp_nodelay true`")
	}
	return err
}

// delayed reports whether a time in microseconds is that of a delayed acknowledgement.
func delayed(microseconds int64) bool { return microseconds >= 38_000 && microseconds <= 48_000 }

func ms(microseconds int64) float64 { return float64(microseconds) / 1000 }
