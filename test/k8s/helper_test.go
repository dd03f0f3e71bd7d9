package k8s

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// chart is the folder of the chart.
const chart = "../../helm/holdfast"

// binaries returns the folder of the programs that build.sh has built. If a named one is missing,
// the test is skipped, or fails in CI.
func binaries(t testing.TB, names ...string) string {
	t.Helper()
	output, err := exec.Command("./build.sh", "folder").Output()
	if err != nil {
		t.Fatal(err)
	}
	folder := strings.TrimSpace(string(output))
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is missing: run test/k8s/build.sh", name)
			}
			t.Skipf("%s is missing: run test/k8s/build.sh", name)
		}
	}
	return folder
}

// run runs a command and returns its standard output; what it said on the standard error output is
// in the error.
func run(ctx context.Context, name string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	command.WaitDelay = 5 * time.Second
	var output, complaint bytes.Buffer
	command.Stdout, command.Stderr = &output, &complaint
	if err := command.Run(); err != nil {
		return output.String(),
			fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(arguments, " "), err,
				complaint.String())
	}
	return output.String(), nil
}

// object is any Kubernetes object.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name        string            `json:"name"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	text []byte
}

// release is a rendered chart.
type release struct{ objects []object }

// template renders the chart as helm would install it.
func template(t testing.TB, arguments ...string) (*release, error) {
	t.Helper()
	text, err := run(t.Context(), filepath.Join(binaries(t, "helm"), "helm"),
		append([]string{
			"template", "store", chart, "--namespace", "plant", "--kube-version",
			"1.36.3",
		}, arguments...)...)
	if err != nil {
		return nil, err
	}
	r := &release{}
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		o := object{text: []byte(document)}
		if err := yaml.Unmarshal(o.text, &o); err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		if o.Kind != "" {
			r.objects = append(r.objects, o)
		}
	}
	return r, nil
}

// render renders the chart with values that must be valid, or fails the test.
func render(t testing.TB, values ...string) *release {
	t.Helper()
	var arguments []string
	for _, value := range values {
		arguments = append(arguments, "--set", value)
	}
	r, err := template(t, arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// find returns an object, or nil.
func (r *release) find(kind, name string) *object {
	for i := range r.objects {
		if r.objects[i].Kind == kind && r.objects[i].Metadata.Name == name {
			return &r.objects[i]
		}
	}
	return nil
}

// get reads an object into its type, strictly: a field that the type does not have is an error.
func get[T any](t testing.TB, r *release, kind, name string) *T {
	t.Helper()
	o := r.find(kind, name)
	if o == nil {
		t.Fatalf("there is no %s %s", kind, name)
	}
	into := new(T)
	if err := yaml.UnmarshalStrict(o.text, into); err != nil {
		t.Fatalf("%s %s: %v", kind, name, err)
	}
	return into
}

// jsonOf turns YAML into JSON.
func jsonOf(t testing.TB, text string) string {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
