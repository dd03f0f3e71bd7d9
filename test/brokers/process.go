package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a program that runs, with its output in a file.
type process struct {
	command *exec.Cmd
	log     string
	exited  chan struct{}
}

func start(command *exec.Cmd, log string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // the child has its own
	command.Stdout, command.Stderr = file, file
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(command.Path), err)
	}
	p := &process{command: command, log: log, exited: make(chan struct{})}
	go func() {
		_ = command.Wait() // that it has ended is what counts
		close(p.exited)
	}()
	return p, nil
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

func (p *process) kill() {
	_ = p.command.Process.Kill() // it may have ended already
	<-p.exited
}

// stop ends a process by SIGTERM, as an operator would. Its descendants get the signal, too,
// because the first one may be a shell that waits for the broker. unshare, which made their
// namespace, does not get it.
func (p *process) stop() error {
	for _, pid := range descendants(p.command.Process.Pid) {
		if pid == p.command.Process.Pid && filepath.Base(p.command.Path) == "unshare" {
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGTERM) // it may have ended already
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(time.Minute):
		p.kill()
		return errors.New("SIGTERM does not end " + p.log)
	}
}

// descendants returns a process and all that it has started.
func descendants(pid int) []int {
	all := []int{pid}
	// the pattern is well-formed
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		if err != nil {
			continue // it has ended
		}
		for _, child := range strings.Fields(string(children)) {
			if number, err := strconv.Atoi(child); err == nil {
				all = append(all, descendants(number)...)
			}
		}
	}
	return all
}

// tail returns the end of what the process printed.
func (p *process) tail() string {
	text, _ := os.ReadFile(p.log) // the text is empty if there is none
	return last(string(text), 12)
}

// until waits for a condition, for at most limit. what names the condition in the error.
func until(what string, limit time.Duration, condition func() bool) error {
	for deadline := time.Now().Add(limit); !condition(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("did not happen within %v: %s", limit, what)
		}
	}
	return nil
}

func listens(address string) bool {
	conn, err := net.Dial("tcp", address)
	return err == nil && conn.Close() == nil
}

var nextPort = 20_000 + os.Getpid()%500*20

// freePort returns a port on which nothing listens. It is below the range of the kernel's ephemeral
// ports.
func freePort() int {
	for {
		nextPort++
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", nextPort))
		if err == nil && listener.Close() == nil {
			return nextPort
		}
	}
}
