package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// hangs is the environment variable that makes the test binary a process that does not end after
// the first signal.
const hangs = "HOLDFAST_TEST_HANGS"

// After a first Ctrl-C or SIGTERM, a second Ctrl-C runs the last action and ends the process, even
// if the process hangs.
func TestSecondInterruptEndsTheProcess(t *testing.T) {
	if os.Getenv(hangs) != "" {
		ctx, stop := untilStopped(t.Context())
		defer stop()
		beforeSecondInterrupt(ctx, func() { fmt.Println("last") })
		fmt.Println("running")
		<-ctx.Done()
		fmt.Println("stopping")
		select {}
	}
	for name, first := range map[string]syscall.Signal{
		"Ctrl-C":  syscall.SIGINT,
		"SIGTERM": syscall.SIGTERM,
	} {
		t.Run(name, func(t *testing.T) {
			command := exec.CommandContext(t.Context(), os.Args[0], "-test.run",
				"^TestSecondInterruptEndsTheProcess$")
			command.Env = append(os.Environ(), hangs+"=1")
			output, err := command.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(output)
			send := func(sent syscall.Signal) {
				if err := command.Process.Signal(sent); err != nil &&
					!errors.Is(err, os.ErrProcessDone) {
					t.Error(err)
				}
			}
			for _, want := range []string{"running", "stopping"} {
				if !lines.Scan() || lines.Text() != want {
					t.Fatalf("it says %q, want %q", lines.Text(), want)
				}
				if want == "running" {
					send(first)
				}
			}
			ended := make(chan struct{})
			var sending sync.WaitGroup
			sending.Go(func() {
				for again := time.Tick(10 * time.Millisecond); ; {
					// the first one may come before the process is ready for it
					select {
					case <-again:
						send(syscall.SIGINT)
					case <-ended:
						return
					}
				}
			})
			if !lines.Scan() || lines.Text() != "last" {
				t.Errorf("it says %q, want the last action", lines.Text())
			}
			_ = command.Wait() // how it ended is in ProcessState
			close(ended)
			sending.Wait()
			status := command.ProcessState.Sys().(syscall.WaitStatus)
			if status.Signal() != syscall.SIGINT {
				t.Errorf("it ended by %v", command.ProcessState)
			}
		})
	}
}
