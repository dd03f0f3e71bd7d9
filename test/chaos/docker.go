package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// composeTime bounds a call of docker-compose, which may pull an image; toolTime bounds a call of
// any other tool.
const (
	toolTime    = 60 * time.Second
	composeTime = 5 * time.Minute
	// waitDelay bounds the wait for the outputs of a program that has ended: a child of it may hold
	// them open.
	waitDelay = 5 * time.Second
)

// runProgram runs a program with input as its stdin, and returns its stdout. The error includes its
// stderr.
func runProgram(ctx context.Context, input, name string, arguments ...string) (string, error) {
	limit := toolTime
	if name == "docker-compose" {
		limit = composeTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	command := exec.CommandContext(ctx, name, arguments...)
	// Ctrl-C then reaches the harness only, which ends the faults and removes the containers
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.WaitDelay = waitDelay
	command.Stdin = strings.NewReader(input)
	var output, stderr bytes.Buffer
	command.Stdout, command.Stderr = &output, &stderr
	if err := command.Run(); err != nil {
		return output.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return output.String(), nil
}

func docker(ctx context.Context, arguments ...string) (string, error) {
	return runProgram(ctx, "", "docker", arguments...)
}

// container is a container of this run.
type container struct{ name string }

func (c container) do(ctx context.Context, verb string, arguments ...string) error {
	_, err := docker(ctx, append(append([]string{verb}, arguments...), c.name)...)
	return err
}

// pid returns the process id, on the host, of the container's first process, or "0" if the
// container does not run.
func (c container) pid(ctx context.Context) (string, error) {
	output, err := docker(ctx, "inspect", "-f", "{{.State.Pid}}", c.name)
	return strings.TrimSpace(output), err
}

// running reports whether the container runs. It is false also if Docker does not answer.
func (c container) running(ctx context.Context) bool {
	output, err := docker(ctx, "inspect", "-f", "{{.State.Running}}", c.name)
	return err == nil && strings.TrimSpace(output) == "true"
}

// exec runs a program in the container.
func (c container) exec(ctx context.Context, arguments ...string) (string, error) {
	return docker(ctx, append([]string{"exec", c.name}, arguments...)...)
}

// logs returns the last lines that the container printed on stdout and stderr, in order. If they
// cannot all be read, the error is at the end.
func (c container) logs(ctx context.Context, lines int) string {
	ctx, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	command := exec.CommandContext(ctx, "docker", "logs", "--tail", fmt.Sprint(lines), c.name)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.WaitDelay = waitDelay
	output, err := command.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s\n%v", output, err)
	}
	return string(output)
}
