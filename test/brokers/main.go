// Command brokers runs Holdfast behind real brokers: conformance, watches, failures of the leader
// under load, and a restart of the broker under load. It prints one matrix, which docs/brokers.md
// shows. Brokers come from Debian's packages: of this machine, or of newer releases in folders that
// debootstrap makes. It needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	only := flag.String("only", "", "brokers to run, with commas between them (default: all)")
	output := flag.String("output", "report/brokers", "`folder` for logs and the matrix")
	repository := flag.String("repository", ".", "`folder` of the project")
	flag.Parse()
	if err := run(ctx, *repository, *output, *only); err != nil {
		fmt.Fprintln(os.Stderr, "brokers:", err)
		os.Exit(1)
	}
}

// pageName is the name, for --only, of the check that follows docs/brokers/mosquitto.md.
const pageName = "mosquitto-page"

// tools are the programs under test, and the folders of the project and of the results.
type tools struct {
	repository  string
	holdfast    string // the product
	integration string // the tests of test/integration
	output      string
}

func run(ctx context.Context, repository, output, only string) error {
	list, page := brokers(), true
	if only != "" {
		names := strings.Split(only, ",")
		page = slices.Contains(names, pageName)
		for _, name := range names {
			if name != pageName &&
				!slices.ContainsFunc(list, func(b broker) bool { return b.name == name }) {
				return fmt.Errorf("--only: there is no %q", name)
			}
		}
		list = slices.DeleteFunc(list,
			func(b broker) bool { return !slices.Contains(names, b.name) })
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root: brokers of newer Debian releases run in folders of their own")
	}
	t, err := build(ctx, repository, output)
	if err != nil {
		return err
	}
	var results []*result
	failed, leftOut := 0, 0
	if page {
		if err := followMosquittoPage(ctx, t); errors.Is(err, errNoRelease) && !required() {
			fmt.Println("docs/brokers/mosquitto.md: left out:", err)
			leftOut++
		} else if err != nil {
			fmt.Println("docs/brokers/mosquitto.md: FAILED:", err)
			failed++
		} else {
			fmt.Println("docs/brokers/mosquitto.md: its lines set up a broker in a clean Debian")
		}
	}
	for _, b := range list {
		r := check(ctx, t, b)
		results = append(results, r)
		for _, problem := range r.problems {
			fmt.Printf("%s: FAILED: %s\n", b.name, problem)
		}
		if len(r.problems) > 0 {
			failed++
		} else if r.skipped {
			leftOut++
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if len(results) > 0 {
		text := matrix(results) + "\n" + sessions(results)
		fmt.Printf("\n%s\n", text)
		if err := os.WriteFile(filepath.Join(t.output, "matrix.md"), []byte(text),
			0o644); err != nil {
			return err
		}
	}
	checks := len(results)
	if page {
		checks++
	}
	fmt.Printf("%d passed, %d failed, %d left out\n", checks-failed-leftOut, failed, leftOut)
	if failed > 0 {
		return fmt.Errorf("%d of %d failed", failed, checks)
	}
	return nil
}

// build builds the programs under test.
func build(ctx context.Context, repository, output string) (*tools, error) {
	t := &tools{}
	for path, into := range map[string]*string{repository: &t.repository, output: &t.output} {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		*into = absolute
	}
	if err := os.MkdirAll(t.output, 0o755); err != nil {
		return nil, err
	}
	t.holdfast, t.integration = filepath.Join(t.output, "holdfast"),
		filepath.Join(t.output, "integration.test")
	for _, arguments := range [][]string{
		{"build", "-o", t.holdfast, "./cmd/holdfast"},
		{"test", "-c", "-o", t.integration, "./test/integration"},
	} {
		command := exec.CommandContext(ctx, "go", arguments...)
		command.Dir = t.repository
		if text, err := command.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go %s: %w: %s", strings.Join(arguments, " "), err, text)
		}
	}
	return t, nil
}
