package k8s

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"

	"holdfast/internal/testwait"
)

// life is a release in a real cluster, and what was measured of it.
type life struct {
	*kubernetes
	figures []string
}

// TestChartServesThroughAllOperations takes the chart through its life in a real cluster of five
// nodes, from install to uninstall. No operation that runs under load may fail a request.
func TestChartServesThroughAllOperations(t *testing.T) {
	if os.Getenv("HOLDFAST_K8S") != "full" {
		t.Skip("a whole cluster is for `make k8s`")
	}
	l := &life{kubernetes: startKubernetes(t)}
	defer l.report(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"install", l.install},
		{"upgrade", l.upgrade},
		{"roll back", l.rollBack},
		{"scale to five", l.scaleUp},
		{"scale to three", l.scaleDown},
		{"scale to five and roll back", l.scaleAndRollBack},
		{"drain", l.drain},
		{"evict two", l.evictTwo},
		{"kill the leader", l.killLeader},
		{"lose a volume", l.loseVolume},
		{"renew certificates", l.renewCertificates},
		{"change the policy", l.changePolicy},
		{"back up and restore", l.backUp},
		{"lose the majority", l.loseMajority},
		{"mend what cannot start", l.mend},
		{"uninstall", l.uninstall},
	} {
		if !t.Run(step.name, step.run) {
			return
		}
	}
}

func (l *life) report(t *testing.T) {
	table := "| step | seconds | requests | failed | latest answer |\n|---|---:|---:|---:|---:|\n" +
		strings.Join(l.figures, "")
	t.Log("\n" + table)
	if err := os.WriteFile("../../report/k8s/figures.md", []byte(table), 0o600); err != nil {
		t.Error(err)
	}
}

// measured notes how long a step without load took.
func (l *life) measured(step string, began time.Time) {
	l.figures = append(l.figures,
		fmt.Sprintf("| %s | %.1f | | | |\n", step, time.Since(began).Seconds()))
}

// underLoad calls do under load. No request may fail.
func (l *life) underLoad(t *testing.T, step string, do func()) {
	t.Helper()
	load := l.startLoad(t)
	began := time.Now()
	do()
	took := time.Since(began)
	result := load.stop(t)
	l.figures = append(l.figures,
		fmt.Sprintf("| %s | %.0f | %d | %d | %d ms |\n", step, took.Seconds(), result.Requests,
			result.Errors+result.Unknown, result.Max/1000))
	if failed := result.Errors + result.Unknown; failed > 0 || result.Requests < 500 {
		t.Errorf("%s: %d requests, %d failed, %d of them with an unknown outcome", step,
			result.Requests, failed, result.Unknown)
	}
}

func (l *life) install(t *testing.T) {
	began := time.Now()
	l.must(t, "helm", "install", "store", l.chart, "-n", namespace, "--set", "broker.addresses={"+
		mosquitto+"}", "--set", "backup.enabled=true", "--wait", "--timeout", "3m")
	l.measured("install, three members", began)
	l.awaitAllReady(t, 3)
	hosts := map[string]bool{}
	for _, pod := range l.pods(t) {
		hosts[pod.Spec.NodeName] = true
	}
	if len(hosts) != 3 {
		t.Errorf("three members on %d hosts", len(hosts))
	}
	began = time.Now()
	l.must(t, "helm", "test", "store", "-n", namespace, "--timeout", "1m")
	l.measured("helm test", began)
}

// upgrade replaces every pod, the leader's first. The leader hands over to the member whose pod is
// replaced last.
func (l *life) upgrade(t *testing.T) {
	l.lead(t, name+"-2")
	l.underLoad(t, "rolling upgrade, the leader first in line", func() {
		upgraded := make(chan error, 1)
		go func() {
			_, err := l.try(t, "helm", "upgrade", "store", l.chart, "-n", namespace,
				"--reuse-values", "--set", "image.tag=0.1.1", "--wait", "--timeout", "5m")
			upgraded <- err
		}()
		leader := name + "-2"
		testwait.Within(t, time.Minute, "another one leads",
			func() bool { leader = l.leader(t); return leader != name+"-2" })
		if leader != name+"-0" {
			t.Errorf("%s leads: the last to be replaced has to", leader)
		}
		if err := <-upgraded; err != nil {
			t.Fatal(err)
		}
		l.awaitAllReady(t, 3)
	})
	l.expectImage(t, "holdfast:0.1.1")
}

func (l *life) rollBack(t *testing.T) {
	l.underLoad(t, "rollback", func() {
		l.must(t, "helm", "rollback", "store", "-n", namespace, "--wait", "--timeout", "5m")
		l.awaitAllReady(t, 3)
	})
	l.expectImage(t, "holdfast:0.1.0")
}

func (l *life) expectImage(t *testing.T, image string) {
	t.Helper()
	for _, pod := range l.pods(t) {
		if pod.Spec.Containers[0].Image != image || !ready(&pod) {
			t.Errorf("%s runs %s", pod.Name, pod.Spec.Containers[0].Image)
		}
	}
}

// identities returns the UID and the number of restarts of each pod, by name.
func (l *life) identities(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pod := range l.pods(t) {
		restarts := int32(0)
		for _, status := range pod.Status.ContainerStatuses {
			restarts += status.RestartCount
		}
		found[pod.Name] = fmt.Sprintf("%s, restarted %d times", pod.UID, restarts)
	}
	return found
}

func (l *life) scale(t *testing.T, replicas int) {
	t.Helper()
	l.must(t, "helm", "upgrade", "store", l.chart, "-n", namespace, "--reuse-values", "--set",
		fmt.Sprintf("replicas=%d", replicas), "--wait", "--timeout", "5m")
	l.awaitAllReady(t, replicas)
}

// scaleUp adds two members, and restarts no pod.
func (l *life) scaleUp(t *testing.T) {
	before := l.identities(t)
	l.underLoad(t, "three to five members", func() { l.scale(t, 5) })
	after := l.identities(t)
	maps.DeleteFunc(after, func(name, _ string) bool { return before[name] == "" })
	if !maps.Equal(before, after) {
		t.Errorf("the pods were %v and are %v", before, after)
	}
}

// scaleDown removes two members, the leader among them. It restarts no other pod, and the volumes
// of the removed members are deleted.
func (l *life) scaleDown(t *testing.T) {
	before := l.identities(t)
	l.lead(t, name+"-4")
	l.underLoad(t, "five to three members, the leader among those that go",
		func() { l.scale(t, 3) })
	after := l.identities(t)
	maps.DeleteFunc(before, func(name, _ string) bool {
		return strings.HasSuffix(name, "-3") ||
			strings.HasSuffix(name, "-4")
	})
	if !maps.Equal(before, after) {
		t.Errorf("the pods were %v and are %v", before, after)
	}
	l.expectClaims(t, 3)
}

func (l *life) expectClaims(t *testing.T, want int) {
	t.Helper()
	testwait.Within(t, time.Minute, fmt.Sprintf("there are %d volumes of members", want),
		func() bool {
			list := strings.Fields(l.must(t, "kubectl", "-n", namespace, "get", "pvc", "-l",
				"app.kubernetes.io/component=node", "-o", "name"))
			return len(list) == want
		})
}

// scaleAndRollBack: a rollback removes members as an upgrade does. A removed member that comes back
// under its old name is a new member.
func (l *life) scaleAndRollBack(t *testing.T) {
	ids := func() (ids []string) {
		for _, m := range l.members(t) {
			ids = append(ids, m.ID)
		}
		slices.Sort(ids)
		return ids
	}
	l.underLoad(t, "three to five members again, and rollback to three", func() {
		l.scale(t, 5)
		first := ids()
		l.must(t, "helm", "rollback", "store", "-n", namespace, "--wait", "--timeout", "5m")
		l.awaitAllReady(t, 3)
		l.expectClaims(t, 3)
		l.scale(t, 5)
		second := ids()
		if len(first) != 5 || len(second) != 5 || second[3] == first[3] || second[4] == first[4] {
			t.Errorf("a removed member is back with its old volume: %v, %v", first, second)
		}
		l.scale(t, 3)
	})
}

// drain empties the host of the leader: its pod goes elsewhere, with another address.
func (l *life) drain(t *testing.T) {
	pod := l.pod(t, l.leader(t))
	l.underLoad(t, "drain of the leader's host", func() {
		l.must(t, "kubectl", "drain", pod.Spec.NodeName, "--ignore-daemonsets",
			"--delete-emptydir-data", "--timeout=2m")
		l.awaitAllReady(t, 3)
	})
	moved := l.pod(t, pod.Name)
	if moved.Spec.NodeName == pod.Spec.NodeName || moved.Status.PodIP == pod.Status.PodIP {
		t.Errorf("it was on %s at %s, and is on %s at %s", pod.Spec.NodeName, pod.Status.PodIP,
			moved.Spec.NodeName, moved.Status.PodIP)
	}
	l.must(t, "kubectl", "uncordon", pod.Spec.NodeName)
}

// evictTwo: the disruption budget allows the eviction of one member at a time.
func (l *life) evictTwo(t *testing.T) {
	evict := func(pod string) error {
		text := fmt.Sprintf("{apiVersion: policy/v1, kind: Eviction, metadata: {name: %s, namespace: %s}}", pod, namespace)
		_, err := l.try(t, "kubectl", "create", "--raw", "/api/v1/namespaces/"+namespace+"/pods/"+
			pod+"/eviction", "-f", write(t, t.TempDir(), "eviction.json", []byte(jsonOf(t, text))))
		return err
	}
	l.underLoad(t, "two evictions at once, of which one is refused", func() {
		if err := evict(name + "-0"); err != nil {
			t.Error(err)
		}
		if err := evict(name + "-1"); err == nil ||
			!strings.Contains(err.Error(), "disruption budget") {
			t.Errorf("the second one: %v", err)
		}
		testwait.Within(t, time.Minute, "the first one is another pod",
			func() bool { return ready(l.pod(t, name+"-0")) })
		l.awaitAllReady(t, 3)
	})
}

// killLeader ends the leader's process as a crash does. Even that fails no request: every member
// keeps the requests that are not answered yet.
func (l *life) killLeader(t *testing.T) {
	for range 3 {
		leader := l.leader(t)
		l.underLoad(t, "kill -9 of the leader's process", func() {
			l.must(t, "bash", "-c",
				`for p in $(pgrep -f "^/holdfast server"); do if tr '\0' '\n' </proc/$p/environ | grep -qx "HOLDFAST_NODE_ID=`+leader+`"; then kill -9 $p; fi; done`)
			testwait.Within(t, 30*time.Second, "another one leads",
				func() bool { return l.leader(t) != leader })
			l.awaitAllReady(t, 3)
		})
	}
}

// loseVolume: a member that comes back without its disk is a new one, and its predecessor is
// removed.
func (l *life) loseVolume(t *testing.T) {
	lost := name + "-1"
	id := func() string {
		for _, m := range l.members(t) {
			if m.Node == lost {
				return m.ID
			}
		}
		return ""
	}
	before := id()
	l.underLoad(t, "a lost volume", func() {
		l.must(t, "kubectl", "-n", namespace, "delete", "pvc", "data-"+lost, "--wait=false")
		l.must(t, "kubectl", "-n", namespace, "delete", "pod", lost)
		testwait.Within(t, time.Minute, "it is a new member", func() bool {
			pod := l.pod(t, lost)
			if pod != nil && pod.Status.Phase == core.PodPending {
				if _, err := l.try(t, "kubectl", "-n", namespace, "get", "pvc", "data-"+
					lost); err != nil {
					// it was made before its old claim was gone
					l.must(t, "kubectl", "-n", namespace, "delete", "pod", lost)
				}
			}
			return ready(pod) && id() != before
		})
		l.awaitAllReady(t, 3)
	})
}

// renewCertificates: members use new certificates without a restart.
func (l *life) renewCertificates(t *testing.T) {
	serials := func() map[string]string {
		found := map[string]string{}
		for _, pod := range l.pods(t) {
			serial, err := l.try(t, "bash", "-c", "openssl s_client -connect "+pod.Status.PodIP+
				":7401 </dev/null 2>/dev/null | openssl x509 -noout -serial")
			if err != nil {
				t.Fatal(err)
			}
			found[pod.Name] = serial
		}
		return found
	}
	before, pods := serials(), l.identities(t)
	l.underLoad(t, "new certificates", func() {
		l.must(t, "helm", "upgrade", "store", l.chart, "-n", namespace, "--reuse-values", "--set",
			"tls.selfSigned.revision=2", "--wait", "--timeout", "2m")
		testwait.Within(t, 3*time.Minute, "every member shows its new certificate", func() bool {
			for pod, serial := range serials() {
				if serial == before[pod] {
					return false
				}
			}
			return true
		})
		l.awaitAllReady(t, 3)
	})
	if after := l.identities(t); !maps.Equal(pods, after) {
		t.Errorf("the pods were %v and are %v", pods, after)
	}
	l.must(t, "kubectl", "-n", namespace, "delete", "pod", name+"-2")
	l.awaitAllReady(t, 3)
}

// changePolicy: a first policy changes the settings, which restarts the members. A later change of
// its rules takes effect without a restart.
func (l *life) changePolicy(t *testing.T) {
	upgrade := func(values ...string) {
		l.must(t, append([]string{
			"helm", "upgrade", "store", l.chart, "-n", namespace,
			"--reuse-values", "--wait", "--timeout", "3m",
		}, values...)...)
	}
	allow := func(pattern string) []string {
		return []string{
			"--set-json",
			fmt.Sprintf(`policy={"rules": [{"principals": {"clientIds": ["*"]}, "stateStoreResources": [{"method": "ReadWrite", "keys": [%q, "holdfast-bench/*"]}]}]}`, pattern),
		}
	}
	allowed := func(key string) bool {
		_, err := l.try(t, l.holdfast, "set", key, "x", "--broker", mosquitto)
		if err != nil && !strings.Contains(err.Error(), "not authorized") {
			t.Error(err)
		}
		return err == nil
	}
	upgrade(allow("a/*")...)
	l.awaitAllReady(t, 3)
	testwait.Within(t, time.Minute, "the policy is in force",
		func() bool { return allowed("a/x") && !allowed("b/x") })
	before := l.identities(t)
	l.underLoad(t, "another policy", func() {
		upgrade(allow("b/*")...)
		testwait.Within(t, 3*time.Minute, "the policy is another",
			func() bool { return allowed("b/x") && !allowed("a/x") })
	})
	if after := l.identities(t); !maps.Equal(before, after) {
		t.Errorf("the pods were %v and are %v", before, after)
	}
	upgrade("--set", "policy=none")
	testwait.Within(t, time.Minute, "there is no policy",
		func() bool { return allowed("a/x") && allowed("c/x") })
	l.awaitAllReady(t, 3)
}

// backUp makes one backup by the CronJob's job, and one by hand. It restores the latter into a
// second release, with the demo broker.
func (l *life) backUp(t *testing.T) {
	began := time.Now()
	l.must(t, "kubectl", "-n", namespace, "create", "job", "now", "--from=cronjob/"+name+"-backup")
	l.must(t, "kubectl", "-n", namespace, "wait", "--for=condition=Complete", "job/now",
		"--timeout=1m")
	l.measured("backup job", began)
	if said := l.must(t, "kubectl", "-n", namespace, "logs", "job/now"); !strings.Contains(said,
		"/backup/holdfast-") {
		t.Errorf("the job said: %s", said)
	}
	saved := l.must(t, "kubectl", "-n", namespace, "exec", name+"-0", "--", "/holdfast", "raft",
		"snapshot", "save", "-")
	keys := l.countKeys(t)
	began = time.Now()
	l.must(t, "helm", "install", "copy", l.chart, "-n", "second", "--set",
		"demoBroker.enabled=true", "--wait", "--timeout", "3m")
	said := l.pipe(t, strings.NewReader(saved), "kubectl", "-n", "second", "exec", "-i",
		"copy-holdfast-0", "--", "/holdfast", "raft", "snapshot", "restore", "-", "--yes")
	l.measured("a new release with the demo broker, restored from the backup", began)
	if got := l.must(t, "kubectl", "-n", "second", "exec", "copy-holdfast-0", "--", "/holdfast",
		"keys", "count", "-o", "json"); got != keys {
		t.Errorf("%s: there are %s keys, there were %s", said, got, keys)
	}
	l.must(t, "helm", "test", "copy", "-n", "second", "--timeout", "1m")
}

// loseMajority recovers from the loss of two of three volumes, by the commands of
// docs/operations.md. One of these deletes the two volumes.
func (l *life) loseMajority(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "#### A majority is lost for good\n")
	section, _, _ = strings.Cut(section, "\n#### ")
	_, manifest, _ := strings.Cut(section, "```yaml\n")
	manifest, _, _ = strings.Cut(manifest, "```")
	manifest = strings.Replace(manifest, "registry.example/holdfast:0.1.0", "holdfast:0.1.0", 1)
	file := write(t, t.TempDir(), "recover.yaml", []byte(manifest))
	var script []string
	for line := range strings.Lines(section) {
		if command, isCommand := strings.CutPrefix(line, "    kubectl"); isCommand {
			script = append(script, "kubectl"+
				strings.Replace(strings.TrimRight(command, "\n"), "recover.yaml", file, 1))
		}
	}
	if len(script) != 9 {
		t.Fatalf("%d commands: %q", len(script), script)
	}
	keys := l.countKeys(t)
	began := time.Now()
	for _, command := range script {
		if said, err := l.try(t, "bash", "-ec", command); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
	}
	l.awaitAllReady(t, 3)
	l.measured("a majority lost for good, and recovered from one member", began)
	l.scale(t, 3) // Helm finds the set as it was
	if after := l.countKeys(t); after != keys {
		t.Errorf("there were %s keys, and are %s", keys, after)
	}
}

// mend: an upgrade repairs a release that cannot start, although no member answers the pre-upgrade
// job.
func (l *life) mend(t *testing.T) {
	l.must(t, "helm", "install", "broken", l.chart, "-n", "second", "--set", "replicas=1", "--set",
		"demoBroker.enabled=true", "--set", "antiAffinity=none", "--set",
		"persistence.enabled=false", "--set", "config.log.level=loud")
	began := time.Now()
	l.must(t, "helm", "upgrade", "broken", l.chart, "-n", "second", "--reuse-values", "--set",
		"config.log.level=info", "--timeout", "3m")
	l.measured("upgrade of a release that cannot start", began)
	// Kubernetes leaves a pod that does not start as it is: its documentation calls that forced
	// rollback.
	l.must(t, "kubectl", "-n", "second", "delete", "pod", "broken-holdfast-0")
	l.must(t, "kubectl", "-n", "second", "rollout", "status", "statefulset/broken-holdfast",
		"--timeout=1m")
}

func (l *life) countKeys(t *testing.T) string {
	t.Helper()
	return l.must(t, "kubectl", "-n", namespace, "exec", name+"-0", "--", "/holdfast", "keys",
		"count", "-o", "json")
}

// uninstall keeps the volumes: a later install of the same release finds the data again.
func (l *life) uninstall(t *testing.T) {
	before := l.countKeys(t)
	l.must(t, "helm", "uninstall", "store", "-n", namespace, "--wait", "--timeout", "2m")
	l.expectClaims(t, 3)
	testwait.Within(t, time.Minute, "no member is left", func() bool { return len(l.pods(t)) == 0 })
	l.must(t, "helm", "install", "store", l.chart, "-n", namespace, "--set", "broker.addresses={"+
		mosquitto+"}", "--wait", "--timeout", "3m")
	l.awaitAllReady(t, 3)
	if after := l.countKeys(t); after != before {
		t.Errorf("there were %s keys, and are %s", before, after)
	}
}
