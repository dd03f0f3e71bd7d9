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
	recipes := regexp.MustCompile("(?s)\n## ([^\n]+)\n.*?```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if sections := strings.Count(string(page), "\n## "); sections == 0 || len(recipes) != sections {
		t.Fatalf("%d recipes in %d sections", len(recipes), sections)
	}
	folder := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(folder, "holdfast")); err != nil {
		t.Fatal(err)
	}
	need(t, "mosquitto_sub")
	target := startEmbedded(t, "--mirrors", "*=mirror/") // as make dev does
	for _, recipe := range recipes {
		t.Run(recipe[1], func(t *testing.T) { runRecipe(t, folder, target.address, recipe[2]) })
	}
}

// runRecipe runs a script with the folder of the binary in its path.
func runRecipe(t *testing.T, folder, address, script string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	output, err := os.Create(filepath.Join(t.TempDir(), "output")) // a file: a pipe would be open as long as anything runs in the background
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = output.Close() }()
	bash := exec.CommandContext(ctx, need(t, "bash"), "-euo", "pipefail", "-c", script)
	bash.Dir = t.TempDir()
	bash.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"), "HOLDFAST_BROKER=mqtt://"+address)
	bash.Stdout, bash.Stderr = output, output
	bash.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := bash.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(-bash.Process.Pid, syscall.SIGKILL) }() // what it left in the background
	failure := bash.Wait()
	all, err := os.ReadFile(output.Name())
	if err != nil {
		t.Fatal(err)
	}
	if failure != nil {
		t.Fatalf("%v\n%s", failure, all)
	}
	lines := strings.Split(string(all), "\n")
	for _, want := range regexp.MustCompile(`# prints: (.*)`).FindAllStringSubmatch(script, -1) {
		for len(lines) > 0 && lines[0] != want[1] {
			lines = lines[1:]
		}
		if len(lines) == 0 {
			t.Fatalf("it does not print %q, or not in this place:\n%s", want[1], all)
		}
		lines = lines[1:]
	}
}
