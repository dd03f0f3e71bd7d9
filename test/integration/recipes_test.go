package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The blocks of docs/recipes.md run in bash as they stand, and print what they say.
func TestRecipesWorkWhenPasted(t *testing.T) {
	page, err := os.ReadFile("../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	recipes := regexp.MustCompile("(?s)\n## ([^\n]+)\n.*?```sh\n(.*?)```").FindAllStringSubmatch(
		string(page), -1)
	if sections := strings.Count(string(page), "\n## "); sections == 0 || len(recipes) != sections {
		t.Fatalf("%d recipes in %d sections", len(recipes), sections)
	}
	need(t, "mosquitto_sub")
	target := startEmbedded(t, "--mirrors", "*=mirror/") // as make dev does
	for _, recipe := range recipes {
		t.Run(recipe[1], func(t *testing.T) {
			checkRecipe(t, target, recipe[2])
			checkRecipe(t, target, recipe[2]) // pasted once more
		})
	}
}

// checkRecipe runs a script and checks that it prints the lines of its comments "# prints: …", in
// this order.
func checkRecipe(t *testing.T, target *target, script string) {
	printed, err := runScript(t, t.TempDir(), "set -euo pipefail\n"+script,
		"HOLDFAST_BROKER=mqtt://"+target.address)
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	lines := strings.Split(printed, "\n")
	for _, want := range regexp.MustCompile(`# prints: (.*)`).FindAllStringSubmatch(script, -1) {
		for len(lines) > 0 && lines[0] != want[1] {
			lines = lines[1:]
		}
		if len(lines) == 0 {
			t.Fatalf("it does not print %q, or not in this place:\n%s", want[1], printed)
		}
		lines = lines[1:]
	}
}

// runScript runs a script in bash, in a folder, with the holdfast command in its path. It returns
// what was printed, and ends what was left in the background.
func runScript(t *testing.T, folder, script string, environment ...string) (printed string,
	failure error,
) {
	t.Helper()
	path := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(path, "holdfast")); err != nil {
		t.Fatal(err)
	}
	// a file: a pipe would be open as long as anything runs in the background
	output, err := os.Create(filepath.Join(path, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = output.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	bash := exec.CommandContext(ctx, need(t, "bash"), "-c", script)
	bash.Dir = folder
	bash.Env = append(append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH")), environment...)
	bash.Stdout, bash.Stderr = output, output
	bash.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := bash.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(-bash.Process.Pid, syscall.SIGKILL) }()
	failure = bash.Wait()
	all, err := os.ReadFile(output.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(all), failure
}
