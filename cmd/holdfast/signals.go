package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// exitInterrupted is the exit code after a second Ctrl-C where SIGINT does not end the process, as that of a container with the number 1.
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
		signal.Reset(os.Interrupt)
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT) // so that a shell ends its script, too
		time.Sleep(100 * time.Millisecond)
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
