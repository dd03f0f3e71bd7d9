package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a process that bench has started. Its output goes to the file log.
type process struct {
	name    string
	command *exec.Cmd
	log     string
	exited  chan struct{}
}

func startProcess(dir, name, program string, arguments ...string) (*process, error) {
	p := &process{
		name: name, command: exec.Command(program, arguments...),
		log: filepath.Join(dir, name+".log"), exited: make(chan struct{}),
	}
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // the child has a descriptor of its own
	p.command.Stdout, p.command.Stderr, p.command.Dir = file, file, dir
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.command.Wait() // that it has ended is what counts
		close(p.exited)
	}()
	return p, nil
}

func (p *process) kill() {
	_ = p.command.Process.Kill() // it may have ended already
	<-p.exited
}

// cpu returns the processor time that the process has used.
func (p *process) cpu() time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.command.Process.Pid))
	if err != nil {
		return 0
	}
	// skip the name: it may hold spaces, but none of ours holds ") "
	_, rest, _ := bytes.Cut(data, []byte(") "))
	fields := strings.Fields(string(rest))
	const userTime, systemTime, tick = 11, 12, 10 * time.Millisecond
	if len(fields) <= systemTime {
		return 0
	}
	user, _ := strconv.Atoi(fields[userTime]) // always numbers
	system, _ := strconv.Atoi(fields[systemTime])
	return time.Duration(user+system) * tick
}

// memory returns the anonymous memory of the process in bytes.
func (p *process) memory() int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(text)[0], 10, 64) // always a number
			return kib << 10
		}
	}
	return 0
}

// until waits for a condition.
func until(ctx context.Context, what string, limit time.Duration, condition func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !condition() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func listens(address string) bool {
	conn, err := net.Dial("tcp", address)
	return err == nil && conn.Close() == nil
}

// ports hands out loopback addresses with free ports, below the range of ephemeral ports.
type ports struct{ next int }

func (p *ports) take() string {
	const first, count = 20_000, 12_000
	for {
		p.next++
		address := loopbackAddress(first + (os.Getpid()*97+p.next)%count)
		listener, err := net.Listen("tcp", address)
		if err == nil {
			_ = listener.Close()
			return address
		}
	}
}

// median returns the middle of the values, of which there is at least one.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

var errNoProgram = errors.New("program not found")

// find returns the path of a program. It also looks into /usr/sbin, where Debian keeps programs for
// root.
func find(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	path := filepath.Join("/usr/sbin", program)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: %s: install the Debian package of that name", errNoProgram,
			program)
	}
	return path, nil
}
