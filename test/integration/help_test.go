package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The examples of --help run in bash as they stand, in the order of this list, in one folder and against one store.
func TestExamplesOfTheHelpWorkWhenPasted(t *testing.T) {
	need(t, "mosquitto_sub")
	folder := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(folder, "holdfast")); err != nil {
		t.Fatal(err)
	}
	admin := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	target := startEmbedded(t, "--mirrors", "*=mirror/", "--admin.listen", admin)
	environment := append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"), "HOLDFAST_BROKER=mqtt://"+target.address, "HOLDFAST_ADMIN=http://"+admin)
	for _, name := range []string{
		"set", "get", "scan", "txn", "lock", "keys", "keys list", "keys count", "keys inspect", "keys export", "keys import", "mirror", "mirror list",
		"mirror resync", "mirror check", "watches", "watches list", "watches drop", "raft", "raft list-peers", "raft status", "raft autopilot", "raft verify",
		"raft snapshot", "raft snapshot save", "raft snapshot take", "raft snapshot inspect", "raft snapshot restore", "del", "vdel", "watch",
	} {
		t.Run(name, func(t *testing.T) {
			help, code := holdfast(t, target.address, "", append(strings.Fields(name), "--help")...)
			examples := regexp.MustCompile(`(?s)\nExamples:\n(.*?)\n\n`).FindStringSubmatch(help)
			if code != 0 || examples == nil {
				t.Fatalf("code %d, and no examples in\n%s", code, help)
			}
			script := "set -euo pipefail\n" + examples[1]
			if name == "watch" { // each example goes on until it is interrupted
				script = regexp.MustCompile(`(?m)^ *holdfast`).ReplaceAllString(script, "timeout --preserve-status -s INT 1 holdfast")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			bash := exec.CommandContext(ctx, need(t, "bash"), "-c", script)
			bash.Dir, bash.Env = folder, environment
			if output, err := bash.CombinedOutput(); err != nil {
				t.Errorf("%v of\n%s\n%s", err, script, output)
			}
		})
	}
}
