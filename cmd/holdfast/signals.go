package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// exitInterrupted is the exit code after a second Ctrl-C if SIGINT cannot end the process. That is
// so if SIGINT was ignored when the process started, or if the process is process 1 of a container.
const exitInterrupted = 128 + int(syscall.SIGINT)

// lastActionKey is the context key of an atomic.Pointer to what runs before a second Ctrl-C ends
// the process.
type lastActionKey struct{}

// untilStopped returns a context that ends with SIGINT, SIGTERM or SIGHUP; SIGHUP does not count
// under nohup. A Ctrl-C after that ends the process at once, whatever it still waits for. A further
// SIGTERM or SIGHUP does nothing.
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
		if pid := os.Getpid(); pid != 1 {
			// the kernel would not end process 1, and Go's runtime would exit with code 2
			_ = syscall.Kill(pid, syscall.SIGINT) // so that a shell ends its script, too
			time.Sleep(100 * time.Millisecond)
		}
		os.Exit(exitInterrupted)
	})
	return ctx, stop
}

// beforeSecondInterrupt sets what runs before a second Ctrl-C ends the process. The context is that
// of untilStopped, or a child of it.
func beforeSecondInterrupt(ctx context.Context, action func()) {
	if last, ok := ctx.Value(lastActionKey{}).(*atomic.Pointer[func()]); ok {
		last.Store(&action)
	}
}
