package k8s

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"holdfast/internal/server/settings"
)

const broker = "broker.addresses={mqtt://mosquitto:1883}"

// combinations are the files with values that the chart is tested with.
func combinations(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chart, "ci", "*.yaml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files with values, %v", len(files), err)
	}
	return files
}

func TestChartPassesLint(t *testing.T) {
	for _, file := range combinations(t) {
		if _, err := run(t.Context(), filepath.Join(binaries(t, "helm"), "helm"), "lint",
			"--strict", chart, "--values", file); err != nil {
			t.Error(err)
		}
	}
}

// Every object of every combination is read strictly into its type, so that a misspelt field is
// found; those of cert-manager are checked against their schemas by
// TestChartInstallsUpgradesAndRollsBackWithoutWarnings.
func TestEveryObjectHasItsType(t *testing.T) {
	for _, file := range combinations(t) {
		r, err := template(t, "--values", file)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range r.objects {
			if err := yaml.UnmarshalStrict(o.text, typed(t, &o)); err != nil {
				t.Errorf("%s: %s %s: %v", filepath.Base(file), o.Kind, o.Metadata.Name, err)
			}
			if o.Metadata.Labels["app.kubernetes.io/instance"] != "store" ||
				o.Metadata.Labels["app.kubernetes.io/component"] == "" {
				t.Errorf("%s: %s %s has the labels %v", filepath.Base(file), o.Kind,
					o.Metadata.Name, o.Metadata.Labels)
			}
		}
	}
}

func typed(t *testing.T, o *object) any {
	t.Helper()
	switch o.Kind {
	case "StatefulSet":
		return &apps.StatefulSet{}
	case "Deployment":
		return &apps.Deployment{}
	case "Job":
		return &batch.Job{}
	case "CronJob":
		return &batch.CronJob{}
	case "Pod":
		return &core.Pod{}
	case "Service":
		return &core.Service{}
	case "ServiceAccount":
		return &core.ServiceAccount{}
	case "ConfigMap":
		return &core.ConfigMap{}
	case "Secret":
		return &core.Secret{}
	case "PersistentVolumeClaim":
		return &core.PersistentVolumeClaim{}
	case "NetworkPolicy":
		return &networking.NetworkPolicy{}
	case "PodDisruptionBudget":
		return &policy.PodDisruptionBudget{}
	case "ServiceMonitor":
		return &monitoring.ServiceMonitor{}
	case "PrometheusRule":
		return &monitoring.PrometheusRule{}
	case "Issuer", "Certificate":
		return &map[string]any{}
	default:
		t.Fatalf("no type is known for a %s", o.Kind)
		return nil
	}
}

// The node accepts the rendered configuration with the rendered environment, without warnings. The
// rendered peers agree with both.
func TestConfigurationIsValid(t *testing.T) {
	for _, file := range combinations(t) {
		r, err := template(t, "--values", file)
		if err != nil {
			t.Fatal(err)
		}
		set := statefulSet(t, r)
		config := get[core.ConfigMap](t, r, "ConfigMap", set.Name).Data["holdfast.yaml"]
		name := filepath.Join(t.TempDir(), "holdfast.yaml")
		if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		environment := []string{"HOLDFAST_NODE_ID=" + set.Name + "-0"}
		for _, variable := range set.Spec.Template.Spec.Containers[0].Env {
			if variable.Value != "" {
				environment = append(environment, variable.Name+"="+
					strings.ReplaceAll(variable.Value, "$(HOLDFAST_NODE_ID)", set.Name+"-0"))
			}
		}
		s, warnings, err := settings.Load(name, environment, nil)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v, %v in:\n%s", filepath.Base(file), err, warnings, config)
		}
		list := get[core.ConfigMap](t, r, "ConfigMap", set.Name+"-peers").Data["peers"]
		peers, err := settings.ParsePeers(strings.Fields(list))
		if err != nil || len(peers) != int(*set.Spec.Replicas) || peers[0].ID != s.Node.ID ||
			peers[0].Address != s.Cluster.Advertise {
			t.Errorf("%s: peers %v, %v; the first node is %s at %s", filepath.Base(file), peers,
				err, s.Node.ID, s.Cluster.Advertise)
		}
	}
}

// The schema of `config` has all settings of a node, except those that the chart sets itself.
func TestConfigSchemaKnowsAllSettings(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Config struct {
				Properties map[string]any `json:"properties"`
			} `json:"config"`
		} `json:"properties"`
	}
	if err := yaml.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	var known []string
	var walk func(path string, properties map[string]any)
	walk = func(path string, properties map[string]any) {
		for name, content := range properties {
			section, _ := content.(map[string]any)
			if nested, ok := section["properties"].(map[string]any); ok {
				walk(path+name+".", nested)
			} else {
				known = append(known, path+name)
			}
		}
	}
	walk("", schema.Properties.Config.Properties)
	own := []string{
		"node.id", "node.dataDir", "cluster.name", "cluster.listen", "cluster.advertise",
		"cluster.peers", "cluster.peersFile", "cluster.tls.*",
		"broker.addresses", "broker.username", "broker.passwordFile", "broker.tls.*",
		"admin.listen", "admin.tls.*", "health.listen", "policyFile",
	}
	s := settings.Default()
	var settable []string
	for _, field := range s.Fields() {
		if !slices.ContainsFunc(own,
			func(pattern string) bool { ok, _ := filepath.Match(pattern, field.Path); return ok }) {
			settable = append(settable, field.Path)
		}
	}
	slices.Sort(known)
	slices.Sort(settable)
	if !slices.Equal(known, settable) {
		t.Errorf("the schema knows\n%v\nand the node\n%v", known, settable)
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	for value, reason := range map[string]string{
		"replicas=4":                                       "replicas",
		"replica=3":                                        "replica",
		"config.node.id=x":                                 "id",
		"config.limits.keybytes=1":                         "keybytes",
		"tls.source=none":                                  "source",
		"antiAffinity=strict":                              "antiAffinity",
		"broker.addresses={tcp://x:1}":                     "addresses",
		"broker.addresses={mqtt://a:b@x:1}":                "addresses",
		"tls.source=existingSecret":                        "tls.existingSecret is missing",
		"terminationGracePeriodSeconds=1":                  "terminationGracePeriodSeconds",
		"persistence.retention.whenScaled=x":               "whenScaled",
		"backup.keep=0":                                    "keep",
		"image.digest=latest":                              "digest",
		"broker.addresses={mqtts://x:1}":                   "broker.tls.ca",
		"broker.tls.ca=x":                                  "has no effect",
		"backup.enabled=true,backup.volume.ephemeral=true": "backup.upload.image",
		"broker.addresses={mqtts://x:1},broker.tls.ca=x,broker.tls.clientCertificate=true": "broker.tls.existingSecret",
	} {
		t.Run(value, func(t *testing.T) {
			_, err := template(t, "--set", broker, "--set", value)
			if err == nil || !strings.Contains(strings.NewReplacer(value, "", broker,
				"").Replace(err.Error()), reason) {
				// the arguments are in the error
				t.Errorf("%v", err)
			}
		})
	}
	if _, err := template(t); err == nil ||
		!strings.Contains(err.Error(), "broker.addresses is empty") {
		t.Errorf("without a broker: %v", err)
	}
}

func statefulSet(t testing.TB, r *release) *apps.StatefulSet {
	t.Helper()
	for _, o := range r.objects {
		if o.Kind == "StatefulSet" {
			return get[apps.StatefulSet](t, r, o.Kind, o.Metadata.Name)
		}
	}
	t.Fatal("there is no StatefulSet")
	return nil
}

func TestDisruptionBudgetKeepsAQuorum(t *testing.T) {
	for replicas, want := range map[int]bool{1: false, 3: true, 5: true} {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			r := render(t, broker, fmt.Sprintf("replicas=%d", replicas))
			if got := r.find("PodDisruptionBudget", "store-holdfast") != nil; got != want {
				t.Errorf("%d replicas: a budget %v, want %v", replicas, got, want)
			}
		})
	}
	budget := get[policy.PodDisruptionBudget](t, render(t, broker), "PodDisruptionBudget",
		"store-holdfast")
	if budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%v may be away", budget.Spec.MaxUnavailable)
	}
}

// A change of the settings restarts the nodes; one of the peers or of the policy does not.
func TestOnlyChangedSettingsRestartNodes(t *testing.T) {
	checksum := func(values ...string) string {
		template := statefulSet(t, render(t, append(values, broker)...)).Spec.Template
		text, err := yaml.Marshal(template)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := checksum("policy.rules[0].x=1")
	for _, value := range []string{
		"replicas=5", "tls.selfSigned.revision=2",
		"monitoring.dashboard.enabled=true", "backup.enabled=true",
	} {
		t.Run(value, func(t *testing.T) {
			if checksum("policy.rules[0].x=1", value) != before {
				t.Errorf("%s restarts the nodes", value)
			}
		})
	}
	if checksum("policy.rules[0].x=2") != before {
		t.Error("another policy restarts the nodes")
	}
	if r := render(t, broker, "policy=none"); !strings.Contains(
		string(r.find("ConfigMap", "store-holdfast").text), "policyFile: none") {
		t.Error("authorization cannot be turned off")
	}
	if checksum("policy.rules[0].x=1", "config.limits.keys=5") == before {
		t.Error("another setting does not restart the nodes")
	}
}

func TestNodesAreSpreadOverHosts(t *testing.T) {
	for mode, want := range map[string][2]int{"hard": {1, 0}, "soft": {0, 1}} {
		t.Run(mode, func(t *testing.T) {
			apart := statefulSet(t,
				render(t, broker, "antiAffinity="+mode)).Spec.Template.Spec.Affinity.PodAntiAffinity
			got := [2]int{
				len(apart.RequiredDuringSchedulingIgnoredDuringExecution),
				len(apart.PreferredDuringSchedulingIgnoredDuringExecution),
			}
			if got != want {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
	if affinity := statefulSet(t,
		render(t, broker, "antiAffinity=none")).Spec.Template.Spec.Affinity; affinity != nil {
		t.Errorf("none: %v", affinity)
	}
	both := statefulSet(t, render(t, broker,
		"affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone")).Spec.Template.Spec.Affinity
	if both.PodAffinity == nil || both.PodAntiAffinity == nil {
		t.Errorf("an affinity of one's own: %v", both)
	}
	apart := statefulSet(t, render(t, broker,
		"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=rack")).Spec.Template.Spec.Affinity.PodAntiAffinity
	if terms := apart.RequiredDuringSchedulingIgnoredDuringExecution; len(terms) != 2 {
		t.Errorf("an anti-affinity of one's own: %v", terms)
	}
}

// Liveness and startup probes ask only whether the process runs. A lost quorum or an unreachable
// broker must not get a node killed.
func TestProbesAskOnlyWhetherTheProcessRuns(t *testing.T) {
	container := statefulSet(t, render(t, broker)).Spec.Template.Spec.Containers[0]
	for what, probe := range map[string]*core.Probe{
		"/livez":  container.LivenessProbe,
		"/livez ": container.StartupProbe, "/readyz": container.ReadinessProbe,
	} {
		t.Run(what, func(t *testing.T) {
			if probe == nil || probe.HTTPGet == nil ||
				probe.HTTPGet.Path != strings.TrimSpace(what) {
				t.Errorf("%v", probe)
			}
		})
	}
}

// The job that removes members runs before any object of its revision exists, so it must not need
// one of them.
func TestScaleDownJobNeedsNothingOfItsRevision(t *testing.T) {
	job := get[batch.Job](t, render(t, broker), "Job", "store-holdfast-scale-down")
	if hooks := job.Annotations["helm.sh/hook"]; hooks != "pre-upgrade,pre-rollback" {
		t.Errorf("hooks %q", hooks)
	}
	if pod := job.Spec.Template.Spec; pod.ServiceAccountName != "" ||
		!*pod.Volumes[0].Secret.Optional {
		t.Errorf("it needs what may not be there: %+v", pod)
	}
	arguments := job.Spec.Template.Spec.Containers[0].Args
	if kept := arguments[len(arguments)-3:]; !slices.Equal(kept,
		[]string{"store-holdfast-0", "store-holdfast-1", "store-holdfast-2"}) {
		t.Errorf("%v are kept", kept)
	}
	if render(t, broker, "scaleDown.enabled=false").find("Job",
		"store-holdfast-scale-down") != nil {
		t.Error("it is switched off, and there")
	}
}

func TestSelfSignedCertificatesAreValid(t *testing.T) {
	r := render(t, broker)
	authority := get[core.Secret](t, r, "Secret", "store-holdfast-ca")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.Data["tls.crt"])
	for name, hosts := range map[string][]string{
		"store-holdfast-tls": {
			"store-holdfast-0", "store-holdfast-8",
			"store-holdfast-4.store-holdfast-headless.plant.svc.cluster.local",
			"store-holdfast-admin.plant.svc.cluster.local", "localhost",
		},
		"store-holdfast-admin-tls": {"store-holdfast-administrator"},
	} {
		t.Run(name, func(t *testing.T) {
			secret := get[core.Secret](t, r, "Secret", name)
			block, _ := pem.Decode(secret.Data["tls.crt"])
			certificate, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			for _, usage := range []x509.ExtKeyUsage{
				x509.ExtKeyUsageServerAuth,
				x509.ExtKeyUsageClientAuth,
			} {
				if _, err := certificate.Verify(x509.VerifyOptions{
					Roots:     pool,
					KeyUsages: []x509.ExtKeyUsage{usage},
				}); err != nil {
					t.Errorf("%v", err)
				}
			}
			for _, host := range hosts {
				if err := certificate.VerifyHostname(host); err != nil {
					t.Errorf("%v", err)
				}
			}
			if string(secret.Data["ca.crt"]) != string(authority.Data["tls.crt"]) {
				t.Errorf("%s has another authority", name)
			}
		})
	}
	for _, o := range r.objects {
		if o.Kind != "Secret" && strings.Contains(string(o.text), "store-holdfast-ca") {
			t.Errorf("%s %s uses the key of the authority", o.Kind, o.Metadata.Name)
		}
	}
}

// Only members, jobs of the release and pods that the operator names reach Raft and the admin API.
func TestNetworkPolicyAdmitsMembersAndOperatorsOnly(t *testing.T) {
	rules := get[networking.NetworkPolicy](t, render(t, broker), "NetworkPolicy",
		"store-holdfast").Spec.Ingress
	if len(rules) == 0 {
		t.Error("there is no rule, so nobody is admitted")
	}
	for _, rule := range rules {
		if len(rule.Ports) == 0 {
			t.Errorf("a rule admits to all ports: %+v", rule)
		}
		for _, port := range rule.Ports {
			name := port.Port.String()
			if name != "health" && len(rule.From) == 0 {
				t.Errorf("everybody reaches %s", name)
			}
			for _, from := range rule.From {
				component := from.PodSelector.MatchLabels["app.kubernetes.io/component"]
				if name == "raft" && component != "node" || name == "admin" &&
					component != "node" && component != "job" {
					t.Errorf("%s reaches %s", component, name)
				}
			}
		}
	}
}

// Every pod satisfies the level `restricted` of the Pod Security Standards.
// TestChartInstallsUpgradesAndRollsBackWithoutWarnings also lets the API server judge that.
func TestEveryPodIsRestricted(t *testing.T) {
	r, err := template(t, "--values", filepath.Join(chart, "ci", "full-values.yaml"), "--set",
		"demoBroker.enabled=true")
	if err != nil {
		t.Fatal(err)
	}
	job := get[batch.Job](t, r, "Job", "store-scale-down")
	backup := get[batch.CronJob](t, r, "CronJob", "store-backup")
	demo := get[apps.Deployment](t, r, "Deployment", "store-broker")
	for name, pod := range map[string]core.PodSpec{
		"node": statefulSet(t, r).Spec.Template.Spec, "job": job.Spec.Template.Spec,
		"backup": backup.Spec.JobTemplate.Spec.Template.Spec,
		"broker": demo.Spec.Template.Spec, "test": get[core.Pod](t, r, "Pod", "store-test").Spec,
	} {
		t.Run(name, func(t *testing.T) {
			if pod.SecurityContext.RunAsNonRoot == nil || !*pod.SecurityContext.RunAsNonRoot ||
				*pod.AutomountServiceAccountToken || *pod.EnableServiceLinks {
				t.Errorf("%+v", pod)
			}
			for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
				c := container.SecurityContext
				if *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem ||
					!slices.Equal(c.Capabilities.Drop, []core.Capability{"ALL"}) {
					t.Errorf("%s: %+v", container.Name, c)
				}
				if container.Resources.Limits.Memory().IsZero() {
					t.Errorf("%s has no limit of memory", container.Name)
				}
			}
		})
	}
}

// Labels in the values are added to those of the chart, and replace none that a selector needs.
func TestOwnLabelsReplaceNoneOfTheChart(t *testing.T) {
	set := statefulSet(t, render(t, broker, "commonLabels.team=plant",
		`commonLabels.app\.kubernetes\.io/component=x`, `podLabels.app\.kubernetes\.io/instance=x`,
		"podLabels.rack=seven"))
	labels := set.Spec.Template.Labels
	if labels["team"] != "plant" || labels["rack"] != "seven" {
		t.Errorf("labels of the pods: %v", labels)
	}
	for key, value := range set.Spec.Selector.MatchLabels {
		if labels[key] != value {
			t.Errorf("the selector wants %s=%s, the pods have %s", key, value, labels[key])
		}
	}
}
