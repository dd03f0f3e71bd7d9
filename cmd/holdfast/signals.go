package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// exitInterrupted is the exit code after a second Ctrl-C, as a shell reports a process that SIGINT has ended.
const exitInterrupted = 128 + int(syscall.SIGINT)

// lastActionKey is the context key of an atomic.Pointer to what runs before a second Ctrl-C ends the process.
type lastActionKey struct{}

// untilStopped returns a context that ends when the process is told to stop. A second Ctrl-C then ends the process at once, whatever it still waits for.
func untilStopped(parent context.Context) (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signals = append(signals, syscall.SIGHUP)
	}
	last := new(atomic.Pointer[func()])
	ctx, stop := signal.NotifyContext(context.WithValue(parent, lastActionKey{}, last), signals...)
	context.AfterFunc(ctx, func() {
		again := make(chan os.Signal, 1)
		signal.Notify(again, os.Interrupt)
		<-again
		if action := last.Load(); action != nil {
			(*action)()
		}
		os.Exit(exitInterrupted)
	})
	return ctx, stop
}

// beforeSecondInterrupt sets what runs before a second Ctrl-C ends the process. The context is that of untilStopped, or a child of it.
func beforeSecondInterrupt(ctx context.Context, action func()) {
	if last, ok := ctx.Value(lastActionKey{}).(*atomic.Pointer[func()]); ok {
		last.Store(&action)
	}
}
