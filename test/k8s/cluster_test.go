package k8s

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"

	"holdfast/internal/testwait"
)

// The release under test. Its broker is a Mosquitto outside of Kubernetes, at the address of the
// first node, as in many plants.
const (
	namespace  = "plant"
	name       = "store-holdfast"
	mosquitto  = "mqtt://198.18.0.1:1883"
	volumes    = 24
	runFolder  = "/var/tmp/holdfast-k8s" // the running cluster's folder: RUN in cluster.sh
	imagesFile = "../../report/k8s/images.tar"
)

// kubernetes is a real cluster; see cluster/cluster.sh.
type kubernetes struct {
	chart, holdfast string
}

func startKubernetes(t *testing.T) *kubernetes {
	t.Helper()
	binaries(t, "kubelet", "coredns", "helm")
	k := &kubernetes{
		chart:    absolute(t, chart),
		holdfast: absolute(t, "../../bin/linux-"+runtime.GOARCH+"/holdfast"),
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs are kept in %s", k.keepLogs())
		}
		if output, err := exec.Command("cluster/cluster.sh", "down").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, output)
		}
	})
	if output, err := exec.CommandContext(t.Context(), "cluster/cluster.sh", "up",
		absolute(t, imagesFile)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	k.startMosquitto(t)
	k.makeVolumes(t)
	for _, name := range []string{namespace, "second"} {
		k.must(t, "kubectl", "create", "namespace", name)
		k.must(t, "kubectl", "label", "namespace", name,
			"pod-security.kubernetes.io/enforce=restricted")
	}
	return k
}

func absolute(t testing.TB, path string) string {
	t.Helper()
	full, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// keepLogs copies the logs of the cluster's programs to a folder that outlives the cluster, and
// returns that folder.
func (k *kubernetes) keepLogs() string {
	const folder = "../../report/k8s/logs"
	if output, err := exec.Command("cp", "-rT", runFolder+"/logs",
		folder).CombinedOutput(); err != nil {
		return fmt.Sprintf("nowhere: %v: %s", err, output)
	}
	return folder
}

// command prepares a command that runs inside the cluster.
func (k *kubernetes) command(t testing.TB, arguments ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), "cluster/cluster.sh",
		append([]string{"exec"}, arguments...)...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = 5 * time.Second
	return command
}

// try runs a command inside the cluster.
func (k *kubernetes) try(t testing.TB, arguments ...string) (string, error) {
	t.Helper()
	var output, complaint bytes.Buffer
	command := k.command(t, arguments...)
	command.Stdout, command.Stderr = &output, &complaint
	if err := command.Run(); err != nil {
		return output.String(), fmt.Errorf("%s: %w: %s%s", strings.Join(arguments, " "), err,
			complaint.String(), output.String())
	}
	return output.String(), nil
}

func (k *kubernetes) must(t testing.TB, arguments ...string) string {
	t.Helper()
	output, err := k.try(t, arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

func (k *kubernetes) startMosquitto(t *testing.T) {
	t.Helper()
	config := filepath.Join(runFolder, "mosquitto.conf")
	lines := "listener 1883 0.0.0.0\nallow_anonymous true\nuser root\nset_tcp_nodelay true\nmax_inflight_messages 20000\nmax_queued_messages 1000000\n"
	if err := os.WriteFile(config, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	command := k.command(t, "/usr/sbin/mosquitto", "-c", config)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Cancel() // it may have ended
		_ = command.Wait()   // it was killed
	})
}

// makeVolumes makes volumes that every node reaches: folders of this machine.
func (k *kubernetes) makeVolumes(t *testing.T) {
	t.Helper()
	text := ""
	for i := range volumes {
		folder := filepath.Join(runFolder, "volumes", fmt.Sprint(i))
		if err := os.MkdirAll(folder, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(folder, 0o777); err != nil {
			// the ownership of such a volume is not changed by Kubernetes
			t.Fatal(err)
		}
		text += fmt.Sprintf("---\n{apiVersion: v1, kind: PersistentVolume, metadata: {name: volume-%d}, spec: {capacity: {storage: 8Gi}, accessModes: [ReadWriteOnce], "+
			"persistentVolumeReclaimPolicy: Retain, hostPath: {path: %s}}}\n", i, folder)
	}
	k.must(t, "kubectl", "apply", "-f", write(t, t.TempDir(), "volumes.yaml", []byte(text)))
}

// pods returns the members' pods.
func (k *kubernetes) pods(t testing.TB) []core.Pod {
	t.Helper()
	var list core.PodList
	text := k.must(t, "kubectl", "-n", namespace, "get", "pods", "-l",
		"app.kubernetes.io/component=node", "-o", "json")
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (k *kubernetes) pod(t testing.TB, name string) *core.Pod {
	t.Helper()
	pods := k.pods(t)
	i := slices.IndexFunc(pods, func(p core.Pod) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &pods[i]
}

func ready(pod *core.Pod) bool {
	return pod != nil && pod.DeletionTimestamp == nil &&
		slices.ContainsFunc(pod.Status.Conditions, func(c core.PodCondition) bool {
			return c.Type == core.PodReady && c.Status == core.ConditionTrue
		})
}

// operate runs a command of the product in a pod, as an operator would.
func (k *kubernetes) operate(t testing.TB, pod string, arguments ...string) (string, error) {
	t.Helper()
	return k.try(t, append([]string{"kubectl", "-n", namespace, "exec", pod, "--", "/holdfast"},
		arguments...)...)
}

// member is one of the cluster's, as `raft list-peers` lists it.
type member struct {
	Node, ID, State string
	Voter           bool
	TrailsLeaderBy  uint64
}

func (k *kubernetes) members(t testing.TB) (list []member) {
	t.Helper()
	for _, pod := range k.pods(t) {
		if text, err := k.operate(t, pod.Name, "raft", "list-peers", "-o", "json"); err == nil {
			if err := json.Unmarshal([]byte(text), &list); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			return list
		}
	}
	return nil
}

func (k *kubernetes) leader(t testing.TB) (leader string) {
	t.Helper()
	testwait.Within(t, 30*time.Second, "somebody leads", func() bool {
		for _, m := range k.members(t) {
			if m.State == "leader" {
				leader = m.Node
				return true
			}
		}
		return false
	})
	return leader
}

// lead makes a member the leader.
func (k *kubernetes) lead(t testing.TB, node string) {
	t.Helper()
	testwait.Within(t, 30*time.Second, node+" leads", func() bool {
		if k.leader(t) == node {
			return true
		}
		// after a failure, eventually asks again
		_, _ = k.operate(t, name+"-0", "raft", "transfer-leader", node)
		return false
	})
}

// awaitAllReady waits until the cluster has size members. Each of them votes, answers, trails the
// leader by at most 100 entries, and has a ready pod.
func (k *kubernetes) awaitAllReady(t testing.TB, size int) {
	t.Helper()
	testwait.Within(t, 2*time.Minute, fmt.Sprintf("%d members vote", size), func() bool {
		list := k.members(t)
		return len(list) == size && !slices.ContainsFunc(list, func(m member) bool {
			return !m.Voter || m.State == "unreachable" || m.TrailsLeaderBy > 100 ||
				!ready(k.pod(t, m.Node))
		})
	})
}

// patience is how long a request of the load waits for its answer.
const patience = 8 * time.Second

// loadResult is what `holdfast bench` reports.
type loadResult struct {
	Requests, Errors, Unknown int
	Max                       int64 // microseconds
}

// load is `holdfast bench` in an open loop: each delay counts from when a request was due.
type load struct {
	command *exec.Cmd
	output  bytes.Buffer
	said    *bufio.Scanner // its progress, one line a second
	drained chan struct{}
}

func (k *kubernetes) startLoad(t testing.TB) *load {
	t.Helper()
	l := &load{command: k.command(t, k.holdfast, "bench", "--broker", mosquitto, "--rate", "200",
		"--outstanding", "1000", "--ratio", "50:50", "--duration", "1h", "--timeout",
		patience.String(), "-o", "json")}
	l.command.Stdout = &l.output
	progress, err := l.command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.command.Start(); err != nil {
		t.Fatal(err)
	}
	l.said, l.drained = bufio.NewScanner(progress), make(chan struct{})
	for range 2 { // after two lines the load is steady
		if !l.said.Scan() {
			t.Fatalf("the load has ended: %v", l.command.Wait())
		}
	}
	go func() {
		defer close(l.drained)
		for l.said.Scan() {
		}
	}()
	return l
}

// stop ends the load. Before that, it waits until each request that is under way has been answered
// or has timed out.
func (l *load) stop(t testing.TB) (result loadResult) {
	t.Helper()
	time.Sleep(patience + time.Second) // the interrupt forgets what is under way
	if err := syscall.Kill(-l.command.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-l.drained
	// often an error: the interrupt also ends the parent processes. Only a result counts
	ended := l.command.Wait()
	if err := json.Unmarshal(l.output.Bytes(), &result); err != nil {
		t.Fatalf("%v, %v: %s%s", ended, err, l.output.String(), l.said.Text())
	}
	return result
}

// pipe runs a command inside the cluster with an input.
func (k *kubernetes) pipe(t testing.TB, input io.Reader, arguments ...string) string {
	t.Helper()
	command := k.command(t, arguments...)
	command.Stdin = input
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(arguments, " "), err, output)
	}
	return string(output)
}
