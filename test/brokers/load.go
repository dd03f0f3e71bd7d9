package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/client"
)

const (
	loadClients = 16
	loadPause   = 10 * time.Millisecond // pause of each client between two requests
)

// loadGenerator is the load: clients, each of which writes a growing counter to a key of its own.
type loadGenerator struct {
	stop func()
	work sync.WaitGroup

	mu       sync.Mutex
	answered int
	failed   []error
	// longest time that an answered request took, since the last call of during
	longest      time.Duration
	acknowledged [loadClients]int // the last acknowledged counter of each client
	// number of requests of each client that have ended, failed ones included
	finished [loadClients]int
}

func connect(ctx context.Context, i *instance, id string) (*client.Client, error) {
	config := client.Config{Addresses: []string{"mqtt://" + i.address}, ClientID: id}
	if i.user != "" {
		config.Username, config.Password = i.user, []byte(i.user)
	}
	return client.Connect(ctx, config)
}

// requestTimeout is how long a request of the load may take. A broker that is restarted on a busy
// machine needs more than the client's 10 s to listen again: that is the broker's time, and the
// matrix shows it.
const requestTimeout = time.Minute

func loadKey(number int) string { return fmt.Sprintf("load/%d", number) }

func startLoad(ctx context.Context, i *instance) (*loadGenerator, error) {
	ctx, stop := context.WithCancel(ctx)
	l := &loadGenerator{stop: stop}
	for number := range loadClients {
		c, err := connect(ctx, i, fmt.Sprintf("load-%d", number))
		if err != nil {
			stop()
			return nil, err
		}
		l.work.Go(func() {
			defer func() { _ = c.Close() }()
			l.run(ctx, c, number)
		})
	}
	return l, nil
}

func (l *loadGenerator) run(ctx context.Context, c *client.Client, number int) {
	for counter := 1; ctx.Err() == nil; counter++ {
		began := time.Now()
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		_, err := c.Set(request, loadKey(number), fmt.Append(nil, counter))
		cancel()
		took := time.Since(began)
		l.mu.Lock()
		switch {
		case err == nil:
			l.answered++
			l.acknowledged[number] = counter
			l.longest = max(l.longest, took)
		case ctx.Err() == nil:
			l.failed = append(l.failed, err)
		}
		l.finished[number]++
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(loadPause):
		}
	}
}

// during runs the function do while the load runs, and then waits until requests are answered
// again. It returns the longest time that an answered request took meanwhile, and how many requests
// failed.
func (l *loadGenerator) during(what string, do func() error) (gap time.Duration, failed int,
	err error,
) {
	if err := l.progress(200); err != nil {
		return 0, 0, fmt.Errorf("before %s: %w", what, err)
	}
	l.mu.Lock()
	l.longest = 0
	before := len(l.failed)
	l.mu.Unlock()
	if err := do(); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", what, err)
	}
	if err := errors.Join(l.progress(400), l.everyClient()); err != nil {
		return 0, 0, fmt.Errorf("after %s: %w", what, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.longest, len(l.failed) - before, nil
}

// progress waits until more requests were answered.
func (l *loadGenerator) progress(more int) error {
	l.mu.Lock()
	goal := l.answered + more
	l.mu.Unlock()
	return until(fmt.Sprintf("%d more requests are answered", more), time.Minute, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.answered >= goal
	})
}

// everyClient waits until each client has finished a request that it began after everyClient was
// called. All requests that were under way at the call have then ended, and are counted.
func (l *loadGenerator) everyClient() error {
	l.mu.Lock()
	before := l.finished
	l.mu.Unlock()
	return until("every client has finished a request", time.Minute, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for number := range before {
			if l.finished[number] < before[number]+2 { // the first may have begun before
				return false
			}
		}
		return true
	})
}

// end stops the load and reports every acknowledged write that is lost.
func (l *loadGenerator) end(ctx context.Context, i *instance) error {
	l.stop()
	l.work.Wait()
	reader, err := connect(ctx, i, "load-reader")
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	var lost []error
	for number, counter := range l.acknowledged {
		if counter == 0 { // none of its writes was acknowledged
			continue
		}
		value, _, err := reader.Get(ctx, loadKey(number))
		if err != nil && !errors.Is(err, client.ErrNotFound) {
			return errors.Join(append(lost, fmt.Errorf("read %s: %w", loadKey(number), err))...)
		}
		var stored int
		if _, err := fmt.Sscan(string(value), &stored); err != nil || stored < counter {
			lost = append(lost, fmt.Errorf("%s is %q, and %d was acknowledged", loadKey(number),
				value, counter))
		}
	}
	return errors.Join(lost...)
}
