// Command machine is the first process of a container that stands for a machine: it mounts a disk
// that can lose what was not synced, puts a proxy in the path to the broker, and runs the node. A
// SIGKILL of this process stands for a power failure, one of the node alone for a crash.
//
// It reads the faults of the disk and of the path from a file that the harness writes.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"holdfast/test/chaos/disk"
	"holdfast/test/chaos/record"
)

// folder and troubleFile are on a volume that the harness shares. The node has its disk at
// mountPoint, and takes localBroker for the broker.
const (
	folder      = "/chaos/data"
	troubleFile = "/chaos/trouble.json"
	mountPoint  = "/data"
	program     = "/holdfast"
	localBroker = "127.0.0.1:1883"
)

func main() {
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		code = 1
	}
	os.Exit(code)
}

func run() (code int, err error) {
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return 0, err
	}
	d := disk.New()
	server, err := d.Mount(folder, mountPoint)
	if err != nil {
		return 0, fmt.Errorf("mount the disk: %w", err)
	}
	path, err := newDelayProxy(localBroker, os.Getenv("CHAOS_BROKER"))
	if err != nil {
		return 0, err
	}
	go watchTrouble(d, path) // until the process ends
	child := exec.Command(program, "server")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if err := child.Start(); err != nil {
		return 0, err
	}
	go func() {
		for s := range signals {
			_ = child.Process.Signal(s) // it may have ended
		}
	}()
	err = child.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	d.SetTrouble(disk.Trouble{})
	return code, errors.Join(err, d.WriteBack(), server.Unmount())
}

// watchTrouble polls troubleFile, and applies the faults that it names to the disk and the path.
func watchTrouble(d *disk.Disk, path *delayProxy) {
	last := ""
	for ; ; time.Sleep(50 * time.Millisecond) {
		text, err := os.ReadFile(troubleFile)
		if err != nil || string(text) == last {
			continue
		}
		var trouble record.Trouble
		if json.Unmarshal(text, &trouble) != nil {
			continue // it is being written
		}
		last = string(text)
		d.SetTrouble(disk.Trouble{
			SyncDelay: time.Duration(trouble.SyncDelay), FailSync: trouble.FailSync,
			Full: trouble.DiskFull, Hang: trouble.DiskHangs,
		})
		path.setDelay(time.Duration(trouble.BrokerDelay))
	}
}
