package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"holdfast/client"
)

func newLock() *cobra.Command {
	var c connection
	var ttl, wait, grace time.Duration
	command := &cobra.Command{
		Use:   "lock NAME -- COMMAND [ARGUMENT...]",
		Short: "Run a command while holding a lock",
		Long: `Takes the lock, runs the command with the fencing token in HOLDFAST_FENCING_TOKEN, renews the lock while the command runs, and
releases it. When the lock is lost, or holdfast is interrupted, the command's process group gets SIGTERM, and SIGKILL after --grace.
So do processes of the group that the command leaves behind, before the lock is released. Ctrl-Z does nothing: a command that is
stopped would keep the lock.

A lock alone cannot stop a process that was paused for too long. Pass the token to every write
(` + "`holdfast set … --fence \"$HOLDFAST_FENCING_TOKEN\"`" + `): the store refuses writes with an older token.

Exits with the command's code, 5 when the lock could not be acquired, 6 when it was lost; otherwise as every command:
2 usage, 3 error, 4 the outcome is unknown.`,
		Example: "  holdfast lock lines/7/master -- sh -c 'echo \"the token is $HOLDFAST_FENCING_TOKEN\"'\n" +
			"  holdfast lock nightly-report --ttl 30s --wait 0s -- date   # only one of many machines",
		Args: positional(cobra.MinimumNArgs(2)),
	}
	c.addFlags(command)
	flags := command.Flags()
	flags.DurationVar(&ttl, "ttl", 10*time.Second,
		"time after which the lock expires if its holder stops renewing it")
	flags.DurationVar(&wait, "wait", -1,
		"how long to wait for the lock; 0s tries once (default: no limit)")
	flags.Lookup("wait").DefValue = ""
	flags.DurationVar(&grace, "grace", 5*time.Second,
		"time between SIGTERM and SIGKILL when the lock is lost or holdfast is interrupted")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		if ttl < 100*time.Millisecond {
			return usagef("--ttl is %v: must be at least 100ms", ttl)
		}
		if wait < 0 && flags.Changed("wait") || grace < 0 {
			return usagef("--wait and --grace must not be negative")
		}
		if dash := command.ArgsLenAtDash(); dash != 1 {
			return usagef("want NAME -- COMMAND; see `holdfast lock --help`")
		}
		store, err := c.open(command.Context(), command)
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }() // the lock is released or lost by now
		lock, err := c.acquireLock(command.Context(), store, arguments[0], ttl, wait)
		if err != nil {
			return err
		}
		code, err := runLocked(command, lock, arguments[1:], grace)
		releaseCtx, cancel := context.WithTimeout(context.Background(), c.timeout)
		defer cancel()
		unlockErr := lock.Unlock(releaseCtx)
		switch {
		case err != nil:
			return err
		case errors.Is(unlockErr, client.ErrLockLost):
			return &codeError{exitLockLost, "the lock was lost"}
		case unlockErr != nil:
			_, _ = fmt.Fprintln(command.ErrOrStderr(),
				"holdfast: releasing the lock failed, it expires by itself:", unlockErr)
		}
		if code != 0 {
			return &codeError{code: code}
		}
		return nil
	}
	return command
}

// acquireLock acquires the lock within wait: 0 is one attempt, and a negative time is no limit. The
// error is a codeError if another holder has the lock.
func (c *connection) acquireLock(ctx context.Context, store *client.Client, name string, ttl,
	wait time.Duration,
) (*client.Lock, error) {
	switch {
	case wait == 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	case wait > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	var lock *client.Lock
	var err error
	if wait == 0 {
		// two commands may have the same client id
		lock, err = store.TryLock(ctx, name, []byte(store.ID()+":"+rand.Text()), ttl)
	} else {
		lock, err = store.Lock(ctx, name, ttl)
	}
	if errors.Is(err, client.ErrNotApplied) {
		return nil, &codeError{
			exitNoLock,
			fmt.Sprintf("could not acquire the lock %q%s", name, c.holder(store, name)),
		}
	}
	return lock, err
}

// holder returns who holds a lock, for an error; empty if that is not known.
func (c *connection) holder(store *client.Client, name string) string {
	ctx, cancel := context.WithTimeout(context.Background(), impatience)
	defer cancel()
	value, _, err := store.Get(ctx, name)
	if err != nil {
		return ""
	}
	return ": " + printableValue(value) + " holds it"
}

// runLocked runs the command and returns its exit code. It terminates the command when the lock is
// lost or the context ends, and does not start it if the lock is lost already.
func runLocked(command *cobra.Command, lock *client.Lock, arguments []string,
	grace time.Duration,
) (int, error) {
	select {
	case <-lock.Lost(): // the store's answer came after the time to live
		return 0, &codeError{exitLockLost, "the lock was lost before the command was started"}
	default:
	}
	child := exec.Command(arguments[0], arguments[1:]...)
	child.Env = append(os.Environ(), "HOLDFAST_FENCING_TOKEN="+lock.Token().String())
	attributes, giveBack := ownGroup(command.InOrStdin())
	defer func() { giveBack(child.Process) }()
	child.SysProcAttr = attributes
	child.Stdin, child.Stdout, child.Stderr = command.InOrStdin(), command.OutOrStdout(),
		command.ErrOrStderr()
	signal.Ignore(syscall.SIGTSTP) // Ctrl-Z; the command inherits that the signal is ignored
	if err := child.Start(); err != nil {
		return 0, &usageError{fmt.Errorf("run the command: %w", err)}
	}
	beforeSecondInterrupt(command.Context(), func() {
		// the command must not go on without the lock
		_ = syscall.Kill(-child.Process.Pid, syscall.SIGKILL)
		giveBack(child.Process)
	})
	defer beforeSecondInterrupt(command.Context(), func() {})
	exited := make(chan error, 1)
	go func() { exited <- child.Wait() }()
	select {
	case err := <-exited:
		// what the command has left behind must not go on without the lock
		endGroup(-child.Process.Pid, grace)
		return childCode(err)
	case <-lock.Lost():
		_ = terminate(child, exited, grace) // how it ended does not matter
		return 0, &codeError{exitLockLost, "the lock was lost; the command was terminated"}
	case <-command.Context().Done(): // told to stop
		return childCode(terminate(child, exited, grace))
	}
}

// ownGroup puts the command into its own process group, so that terminate can signal all its
// processes. If this process is in the foreground group of a terminal, the command's group takes
// its place: the command can read input, and receives Ctrl-C instead of holdfast. giveBack makes
// this process's group the foreground group again, for what comes next in a script. It does nothing
// if another group that has processes is the foreground group by then. child is nil if the command
// was not started.
func ownGroup(stdin io.Reader) (attributes *syscall.SysProcAttr, giveBack func(child *os.Process)) {
	attributes = &syscall.SysProcAttr{Setpgid: true}
	file, ok := stdin.(*os.File)
	if !ok {
		return attributes, func(*os.Process) {}
	}
	terminal, group := int(file.Fd()), unix.Getpgrp()
	if foreground, err := unix.IoctlGetInt(terminal, unix.TIOCGPGRP); err != nil ||
		foreground != group {
		return attributes, func(*os.Process) {}
	}
	attributes.Foreground, attributes.Ctty = true, terminal
	return attributes, func(child *os.Process) {
		foreground, err := unix.IoctlGetInt(terminal, unix.TIOCGPGRP)
		isChild := child != nil && foreground == child.Pid
		if err != nil || !isChild && !errors.Is(syscall.Kill(-foreground, 0), syscall.ESRCH) {
			// a shell has taken it meanwhile
			return
		}
		// a background group would get SIGTTOU for the next call
		signal.Ignore(syscall.SIGTTOU)
		// without a terminal there is nothing to give back
		_ = unix.IoctlSetPointerInt(terminal, unix.TIOCSPGRP, group)
	}
}

// terminate ends the command and all processes of its group.
func terminate(child *exec.Cmd, exited <-chan error, grace time.Duration) error {
	group, deadline := -child.Process.Pid, time.Now().Add(grace)
	_ = syscall.Kill(group, syscall.SIGTERM) // it may have ended already
	// so that a suspended command receives the SIGTERM, too
	_ = syscall.Kill(group, syscall.SIGCONT)
	select {
	case err := <-exited:
		endGroup(group, time.Until(deadline)) // what it has left behind
		return err
	case <-time.After(grace):
		_ = syscall.Kill(group, syscall.SIGKILL)
		err := <-exited
		groupEnds(group, time.Second)
		return err
	}
}

// endGroup terminates the processes that are left in a process group, and waits until they have
// ended. After grace it sends SIGKILL. group is the negative of the group's id, as kill(2) takes
// it.
func endGroup(group int, grace time.Duration) {
	_ = syscall.Kill(group, syscall.SIGTERM) // there may be no process left
	_ = syscall.Kill(group, syscall.SIGCONT) // one that is stopped can clean up, too
	if !groupEnds(group, grace) {
		_ = syscall.Kill(group, syscall.SIGKILL)
		groupEnds(group, time.Second)
	}
}

// groupEnds reports whether a process group ends within a time.
func groupEnds(group int, within time.Duration) bool {
	for deadline := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		// as process 1 of a container, this process inherits what the command leaves behind
		_, _ = syscall.Wait4(group, nil, syscall.WNOHANG, nil)
		if errors.Is(syscall.Kill(group, 0), syscall.ESRCH) {
			return true
		}
		if !time.Now().Before(deadline) {
			return false
		}
	}
}

// childCode returns the exit code of a command. For a command that a signal has ended it is 128
// plus the signal's number, as in a shell.
func childCode(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return 0, err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
