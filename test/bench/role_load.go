package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/load"
	"holdfast/internal/tlsconfig"
)

// store is a system under load. Connections have numbers from 0.
type store interface {
	Set(ctx context.Context, connection int, key string, value []byte) error
	Get(ctx context.Context, connection int, key string) error
	Close()
}

// loadOptions are what the load on every system has in common.
type loadOptions struct {
	Outstanding int
	GETs        int // percentage of the requests; the rest are SETs
	ValueSize   int
	Keys        int
	Connections int
	Warmup      time.Duration
	Duration    time.Duration
	Fill        bool // write every key once, and measure nothing
	Watchers    int  // keys that are watched, each by one watcher; Holdfast only
	// Spread sends each request over a connection picked at random. Otherwise each worker keeps to
	// one, and there are no more connections than workers.
	Spread bool
}

func (o *loadOptions) load() load.Options {
	return load.Options{Outstanding: o.Outstanding, Warmup: o.Warmup, Duration: o.Duration}
}

// newLoadRole returns the command that puts load on a system and prints the result as JSON.
func newLoadRole() *cobra.Command {
	var kind, addresses, authority, text string
	command := &cobra.Command{Use: "load", RunE: func(command *cobra.Command, _ []string) error {
		var o loadOptions
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			return err
		}
		if !o.Spread {
			o.Connections = min(o.Connections, o.Outstanding)
		}
		open := map[string]func(context.Context, []string, int) (store, error){
			"holdfast": openOn(authority, ""), "echo": openOn(authority, echoTopic),
			"etcd": openEtcd, "nats": openNATS,
		}[kind]
		if open == nil {
			return fmt.Errorf("unknown system %q", kind)
		}
		s, err := open(command.Context(), strings.Split(addresses, ","), o.Connections)
		if err != nil {
			return err
		}
		defer s.Close()
		return putLoad(command.Context(), s, &o)
	}}
	flags := command.Flags()
	flags.StringVar(&kind, "system", "", "")
	flags.StringVar(&addresses, "addresses", "", "")
	flags.StringVar(&authority, "authority", "", "")
	flags.StringVar(&text, "options", "", "")
	return command
}

// key returns a key of 20 bytes.
func key(n int) string { return fmt.Sprintf("key-%016d", n) }

const requestTimeout = 30 * time.Second

func putLoad(ctx context.Context, s store, o *loadOptions) error {
	value := make([]byte, o.ValueSize)
	for i := range value {
		value[i] = byte('a' + rand.IntN(26))
	}
	if o.Fill {
		return fill(ctx, s, o, value)
	}
	if h, ok := s.(*holdfastStore); ok && o.Watchers > 0 {
		stop, err := h.watch(ctx, o.Watchers)
		if err != nil {
			return err
		}
		defer stop()
	}
	result, err := load.Run(ctx, o.load(), func(ctx context.Context, worker int) error {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		connection := worker % o.Connections
		if o.Spread {
			connection = rand.IntN(o.Connections)
		}
		if n := rand.IntN(o.Keys); rand.IntN(100) >= o.GETs {
			return s.Set(ctx, connection, key(n), value)
		} else {
			return s.Get(ctx, connection, key(n))
		}
	})
	if err != nil {
		return err
	}
	if result.Last != nil {
		fmt.Fprintln(os.Stderr, "last error:", result.Last)
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// forEach calls do for each n from 0 to count-1, from atOnce goroutines; worker is the number of
// the goroutine. It returns the first error, after which it begins no other call.
func forEach(ctx context.Context, count, atOnce int,
	do func(ctx context.Context, worker, n int) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for worker := range atOnce {
		workers.Go(func() {
			for n := int(next.Add(1)) - 1; n < count && ctx.Err() == nil; n = int(next.Add(1)) - 1 {
				if err := do(ctx, worker, n); err != nil {
					cancel(err)
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// fill writes every key once.
func fill(ctx context.Context, s store, o *loadOptions, value []byte) error {
	return forEach(ctx, o.Keys, o.Outstanding, func(ctx context.Context, worker, n int) error {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		return s.Set(ctx, worker%o.Connections, key(n), value)
	})
}

type holdfastStore struct{ clients []*client.Client }

// openOn returns a function that opens connections to the store if topic is empty, else to the echo
// that receives requests on topic. authority is the path of the CA certificate for brokers with
// TLS.
func openOn(authority, topic string) func(ctx context.Context, addresses []string,
	connections int) (store, error) {
	return func(ctx context.Context, addresses []string, connections int) (store, error) {
		config, err := tlsconfig.Files{CA: authority}.Client()
		if err != nil {
			return nil, err
		}
		s := &holdfastStore{clients: make([]*client.Client, connections)}
		const atOnce = 16
		err = forEach(ctx, connections, atOnce, func(_ context.Context, _, n int) (err error) {
			s.clients[n], err = client.Connect(ctx,
				client.Config{
					Addresses: addresses, TLS: config, InvokeTopic: topic,
					Timeout: requestTimeout,
				})
			return err
		})
		return s, err // after an error the process ends, so nothing is closed
	}
}

func (s *holdfastStore) Set(ctx context.Context, connection int, key string, value []byte) error {
	_, err := s.clients[connection].Set(ctx, key, value)
	return err
}

func (s *holdfastStore) Get(ctx context.Context, connection int, key string) error {
	_, _, err := s.clients[connection].Get(ctx, key)
	if errors.Is(err, client.ErrNotFound) {
		return nil
	}
	return err
}

// watch watches the first count keys, spread over all connections, and discards the events. stop
// ends the reading.
func (s *holdfastStore) watch(ctx context.Context, count int) (stop func(), err error) {
	const atOnce = 64
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	err = forEach(ctx, count, atOnce, func(_ context.Context, _, n int) error {
		watcher, err := s.clients[n%len(s.clients)].Watch(ctx, key(n))
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		reading.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case _, open := <-watcher.Events():
					if !open {
						return
					}
				}
			}
		})
		return nil
	})
	stop = func() {
		cancel()
		reading.Wait()
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

func (s *holdfastStore) Close() {
	for _, c := range s.clients {
		_ = c.Close() // everything is answered
	}
}
