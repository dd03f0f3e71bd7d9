package k8s

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// looseResources defines a kind of the Prometheus operator without a schema, because no Go module
// has its schema. templates_test.go checks the fields instead: it reads such objects into their Go
// types.
const looseResources = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: KINDs.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: TITLE, plural: KINDs, singular: KIND}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// certManager is the module whose resource definitions are installed.
const certManager = "github.com/cert-manager/cert-manager@v1.19.1"

// A real API server validates the chart strictly, rendered with each file of values. The namespace
// has the pod security level `restricted`, and a warning is a failure. Then the chart can be
// installed, upgraded and rolled back.
func TestChartInstallsUpgradesAndRollsBackWithoutWarnings(t *testing.T) {
	c := startControlPlane(t)
	c.resources(t)
	c.namespace(t, "plant")
	for _, file := range combinations(t) {
		t.Run(filepath.Base(file), func(t *testing.T) { c.accepts(t, file) })
	}
	t.Run("life", func(t *testing.T) { c.life(t) })
}

// resources installs the definitions of the custom resources that the chart uses.
func (c *controlPlane) resources(t *testing.T) {
	t.Helper()
	definitions := ""
	for _, title := range []string{"ServiceMonitor", "PrometheusRule"} {
		definitions += "---" + strings.NewReplacer("KIND", strings.ToLower(title), "TITLE",
			title).Replace(looseResources)
	}
	loose := write(t, t.TempDir(), "monitoring.yaml", []byte(definitions))
	text, err := run(t.Context(), "go", "mod", "download", "-json", certManager)
	if err != nil {
		t.Fatal(err)
	}
	var module struct{ Dir string }
	if err := yaml.Unmarshal([]byte(text), &module); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(module.Dir, "deploy", "crds")
	if _, err := c.kubectl(t, "apply", "--server-side", "-f", loose, "-f",
		filepath.Join(folder, "cert-manager.io_certificates.yaml"), "-f",
		filepath.Join(folder, "cert-manager.io_issuers.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.kubectl(t, "wait", "--for=condition=Established", "crd", "--all",
		"--timeout=30s"); err != nil {
		t.Fatal(err)
	}
}

func (c *controlPlane) namespace(t *testing.T, name string) {
	t.Helper()
	text := "{apiVersion: v1, kind: Namespace, metadata: {name: " + name +
		", labels: {pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/warn: restricted}}}"
	if _, err := c.kubectl(t, "apply", "-f",
		write(t, t.TempDir(), "namespace.yaml", []byte(text))); err != nil {
		t.Fatal(err)
	}
}

// accepts lets the API server validate everything that is rendered: unknown fields are errors, and
// a pod that `restricted` would not let in gives a warning.
func (c *controlPlane) accepts(t *testing.T, values string) {
	text, err := run(t.Context(), filepath.Join(c.binaries, "helm"), "template", "store", chart,
		"--namespace", "plant", "--values", values)
	if err != nil {
		t.Fatal(err)
	}
	rendered := write(t, t.TempDir(), "rendered.yaml", []byte(text))
	command := exec.CommandContext(t.Context(), filepath.Join(c.binaries, "kubectl"),
		"--kubeconfig", c.kubeconfig, "-n", "plant", "apply", "--server-side", "--validate=strict",
		"--dry-run=server", "-f", rendered)
	output, err := command.CombinedOutput()
	if err != nil || strings.Contains(string(output), "Warning") {
		t.Errorf("%v: %s", err, output)
	}
}

// life installs, upgrades, scales down and rolls back the chart. No pod runs here, so hooks are
// left out; TestChartServesThroughAllOperations runs them.
func (c *controlPlane) life(t *testing.T) {
	set := func() *apps.StatefulSet {
		return fetch[apps.StatefulSet](t, c, "statefulset",
			"store-holdfast")
	}
	certificate := func() string {
		return string(fetch[core.Secret](t, c, "secret", "store-holdfast-tls").Data["tls.crt"])
	}
	authority := func() string {
		return string(fetch[core.Secret](t, c, "secret", "store-holdfast-ca").Data["tls.crt"])
	}
	password := func() string {
		return string(fetch[core.Secret](t, c, "secret",
			"store-holdfast-broker-auth").Data["password"])
	}
	c.do(t, "install", "store", chart, "-n", "plant", "--set", "demoBroker.enabled=true")
	first, firstAuthority, firstPassword := certificate(), authority(), password()
	if len(firstPassword) != 32 {
		t.Errorf("the password is %q", firstPassword)
	}

	c.do(t, "upgrade", "store", chart, "-n", "plant", "--no-hooks", "--set",
		"demoBroker.enabled=true", "--set", "replicas=5", "--set-string", "image.tag=2")
	if s := set(); *s.Spec.Replicas != 5 ||
		!strings.HasSuffix(s.Spec.Template.Spec.Containers[0].Image, ":2") {
		t.Errorf("after the upgrade: %d replicas of %s", *s.Spec.Replicas,
			s.Spec.Template.Spec.Containers[0].Image)
	}
	if certificate() != first || authority() != firstAuthority || password() != firstPassword {
		t.Error("an upgrade has changed certificates or the password")
	}

	c.do(t, "upgrade", "store", chart, "-n", "plant", "--no-hooks", "--set",
		"demoBroker.enabled=true", "--set", "replicas=5", "--set", "tls.selfSigned.revision=2")
	if certificate() == first || authority() != firstAuthority {
		t.Error("another revision has to bring a new certificate of the same authority")
	}

	// The job that removes members accepts a cluster that does not run (--if-any), unless this
	// upgrade removes some.
	content := func() bool {
		hooks, err := c.helm(t, "get", "hooks", "store", "-n", "plant")
		if err != nil || !strings.Contains(hooks, "keep-peers") {
			t.Fatal(err, hooks)
		}
		return strings.Contains(hooks, "--if-any")
	}
	if !content() {
		t.Error("an upgrade that takes no member away needs a cluster that runs")
	}
	c.do(t, "upgrade", "store", chart, "-n", "plant", "--no-hooks", "--set",
		"demoBroker.enabled=true", "--set", "replicas=3", "--set", "tls.selfSigned.revision=2")
	if content() {
		t.Error("an upgrade that takes members away is content with a cluster that does not run")
	}

	if _, err := c.kubectl(t, "-n", "plant", "delete", "secret", "store-holdfast-ca"); err != nil {
		t.Fatal(err)
	}
	if output, err := c.helm(t, "upgrade", "store", chart, "-n", "plant", "--no-hooks", "--set",
		"demoBroker.enabled=true"); err == nil ||
		!strings.Contains(err.Error(), "would part the members") {
		t.Errorf("without the authority: %v: %s", err, output)
	}
	c.do(t, "rollback", "store", "1", "-n", "plant", "--no-hooks")
	if s := set(); *s.Spec.Replicas != 3 || authority() != firstAuthority {
		t.Errorf("after the rollback: %d replicas", *s.Spec.Replicas)
	}
	c.do(t, "uninstall", "store", "-n", "plant", "--no-hooks")
}

// do runs helm as its users do, with the validation of the server.
func (c *controlPlane) do(t *testing.T, arguments ...string) {
	t.Helper()
	if output, err := c.helm(t, arguments...); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
}

func fetch[T any](t *testing.T, c *controlPlane, kind, name string) *T {
	t.Helper()
	text, err := c.kubectl(t, "-n", "plant", "get", kind, name, "-o", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	into := new(T)
	if err := yaml.Unmarshal([]byte(text), into); err != nil {
		t.Fatal(err)
	}
	return into
}

// The chart's README is what helm-docs makes of values.yaml: `make chart-docs`.
func TestReadmeIsThatOfTheValues(t *testing.T) {
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t.Context(), filepath.Join(binaries(t, "helm-docs"), "helm-docs"),
		"--chart-search-root", folder); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(chart, "README.md"))
	if err != nil || string(got) != string(want) {
		t.Error("README.md is not what values.yaml says: run `make chart-docs`")
	}
}
