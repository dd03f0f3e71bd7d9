package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	mathrand "math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/load"
)

// benchOptions are the flags of `holdfast bench`.
type benchOptions struct {
	connection  // the flags and the dialling that all client commands share
	clients     int
	outstanding int
	ratio       string
	valueSize   int
	keys        int
	fill        bool
	rate        float64
	warmup      time.Duration
	duration    time.Duration
	histogram   string
	quiet       bool

	gets, sets int // the two numbers of ratio; validate sets them
}

func newBench() *cobra.Command {
	var o benchOptions
	command := &cobra.Command{
		Use:   "bench",
		Short: "Put load on the store and measure it",
		Long: `Puts load on the store, through the broker, and measures it. Only load brokers and clusters that are yours. The keys that it
writes begin with holdfast-bench/, and are left there.

Without --rate it runs a closed loop: each of --outstanding requests, spread over --clients connections, is followed by the next
as soon as it is answered. That finds how much is possible. With --rate it runs an open loop: requests are due at that rate
whatever the answers do, at most --outstanding are under way, and the latency of each counts from when it was due (no coordinated
omission). That finds what clients feel at that load.`,
		Example: `  holdfast bench --outstanding 64 --duration 10s
  holdfast bench --clients 8 --outstanding 256 --ratio 80:20 --fill --value-size 1000 -o json
  holdfast bench --rate 2000 --outstanding 256 --histogram latency.hgrm`,
		Args: positional(cobra.NoArgs),
	}
	o.addFlags(command)
	flags := command.Flags()
	flags.IntVar(&o.clients, "clients", 4, "number of connections")
	flags.IntVar(&o.outstanding, "outstanding", 64,
		"requests under way at once, over all connections")
	flags.StringVar(&o.ratio, "ratio", "0:100", "`GET:SET` ratio, such as 80:20")
	flags.IntVar(&o.valueSize, "value-size", 100, "size of a value in `bytes`")
	flags.IntVar(&o.keys, "keys", 1000, "number of keys")
	flags.BoolVar(&o.fill, "fill", false, "write each key once before measuring")
	flags.Float64Var(&o.rate, "rate", 0,
		"requests that are due per second, in an open loop; all of them are sent, so a store that is too slow takes longer than --duration (default: a closed loop)")
	flags.DurationVar(&o.warmup, "warmup", 0, "how long to put on load before measuring")
	flags.DurationVar(&o.duration, "duration", 10*time.Second, "how long to measure")
	flags.StringVar(&o.histogram, "histogram", "",
		"`file` for the latencies as a percentile distribution of HdrHistogram (.hgrm)")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "no line per second on the standard error output")
	command.RunE = func(command *cobra.Command, _ []string) error { return o.run(command) }
	return command
}

// maxValueSize is more than any store accepts.
const maxValueSize = 64 << 20

func (o *benchOptions) validate() error {
	const most = 1_000_000
	if n, err := fmt.Sscanf(o.ratio, "%d:%d", &o.gets, &o.sets); n != 2 || err != nil ||
		o.ratio != fmt.Sprintf("%d:%d", o.gets, o.sets) ||
		o.gets < 0 || o.sets < 0 || o.gets+o.sets == 0 || max(o.gets, o.sets) > most {
		return usagef("--ratio is %q: want GET:SET, such as 80:20, each at most %d", o.ratio, most)
	}
	if o.clients < 1 || o.outstanding < 1 || o.rate < 0 || o.rate > most || math.IsNaN(o.rate) ||
		o.warmup < 0 || o.keys < 1 || o.valueSize < 0 || o.valueSize > maxValueSize ||
		o.duration <= 0 {
		return usagef("--clients, --outstanding, --keys and --duration must be positive, --warmup not negative, --rate from 0 to %d, and --value-size from 0 to %d", most, maxValueSize)
	}
	if o.clientID != "" && o.clients > 1 {
		return usagef("--client-id is for one connection: say --clients 1")
	}
	o.clients = min(o.clients, o.outstanding)
	return nil
}

func (o *benchOptions) run(command *cobra.Command) (failure error) {
	if err := o.validate(); err != nil {
		return err
	}
	ctx := command.Context()
	b := &bench{
		options: o, value: make([]byte, o.valueSize),
		digits: max(5, len(fmt.Sprint(o.keys-1))),
	}
	_, _ = rand.Read(b.value) // never fails
	defer b.close()
	for range o.clients {
		c, err := o.open(ctx, command)
		if err != nil {
			return err
		}
		b.clients = append(b.clients, c)
	}
	if o.fill {
		if err := b.fill(ctx); err != nil {
			return err
		}
	}
	options := load.Options{
		Outstanding: o.outstanding, Rate: o.rate, Warmup: o.warmup,
		Duration: o.duration,
	}
	if !o.quiet {
		options.Progress = func(i load.Interval) { printProgress(command.ErrOrStderr(), i) }
	}
	result, err := load.Run(ctx, options, b.request)
	if err != nil {
		return err
	}
	err = o.report(command.OutOrStdout(), result)
	if o.histogram != "" {
		err = errors.Join(err, writeHistogram(o.histogram, result))
	}
	if result.Requests == 0 && result.Last != nil {
		err = errors.Join(err, fmt.Errorf("no request succeeded: %w", result.Last))
	}
	return err
}

// bench makes requests of the store.
type bench struct {
	options *benchOptions
	clients []*client.Client
	value   []byte
	digits  int // width of the number in a key
}

func (b *bench) close() {
	for _, c := range b.clients {
		_ = c.Close() // everything is answered, or given up
	}
}

func (b *bench) key(n int) string { return fmt.Sprintf("holdfast-bench/%0*d", b.digits, n) }

// request makes one request.
func (b *bench) request(ctx context.Context, worker int) (err error) {
	c, key := b.clients[worker%len(b.clients)], b.key(mathrand.IntN(b.options.keys))
	if mathrand.IntN(b.options.gets+b.options.sets) < b.options.gets {
		if _, _, err = c.Get(ctx, key); errors.Is(err, client.ErrNotFound) {
			err = nil
		}
	} else {
		_, err = c.Set(ctx, key, b.value)
	}
	if errors.Is(err, client.ErrOutcomeUnknown) || errors.Is(err, client.ErrProtocol) {
		err = fmt.Errorf("%w: %w", load.ErrUnknown, err)
	}
	return err
}

// fill writes each key once.
func (b *bench) fill(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for i := range b.options.outstanding {
		workers.Go(func() {
			for n := int(next.Add(1)) - 1; n < b.options.keys &&
				ctx.Err() == nil; n = int(next.Add(1)) - 1 {
				if _, err := b.clients[i%len(b.clients)].Set(ctx, b.key(n), b.value); err != nil {
					cancel(fmt.Errorf("fill: %w", err))
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

func printProgress(w io.Writer, i load.Interval) {
	// a failed write loses a progress line only
	_, _ = fmt.Fprintf(w, "%5.0f s  %8.0f/s  p50 %6.2f ms  p99 %7.2f ms  %d errors\n",
		i.At.Seconds(), i.Rate,
		ms(i.P50.Microseconds()), ms(i.P99.Microseconds()), i.Failed)
}

func writeHistogram(name string, result *load.Result) (err error) {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return result.WriteHistogram(file)
}

func (o *benchOptions) report(w io.Writer, r *load.Result) error {
	if o.output == "json" {
		return printJSON(w, struct {
			Clients int `json:"clients"`
			*load.Result
		}{o.clients, r})
	}
	loop := "closed loop"
	if o.rate > 0 {
		loop = fmt.Sprintf("open loop at %.0f/s", o.rate)
	}
	_, err := fmt.Fprintf(w, "%.0f requests/s (%d in %.1f s, %s, %d clients, %d outstanding, %d errors, %d unknown)\n",
		r.Rate, r.Requests, r.Seconds, loop, o.clients, o.outstanding, r.Errors, r.Unknown)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	// Flush returns the error
	_, _ = fmt.Fprintf(table, "latency\tp50\tp90\tp99\tp99.9\tmax\t\nms\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", ms(r.P50), ms(r.P90), ms(r.P99), ms(r.P999), ms(r.Max))
	if err := table.Flush(); err != nil {
		return err
	}
	if isDelayedAck(r.P50) {
		_, err = fmt.Fprintln(w,
			"the median is that of Nagle's algorithm with delayed acknowledgements: if the broker is Mosquitto, it needs the line `set_tcp_nodelay true`")
	}
	return err
}

// isDelayedAck reports whether a time is about the 40 ms by which Linux delays a TCP
// acknowledgement.
func isDelayedAck(microseconds int64) bool {
	return microseconds >= 38_000 &&
		microseconds <= 48_000
}

func ms(microseconds int64) float64 { return float64(microseconds) / 1000 }
