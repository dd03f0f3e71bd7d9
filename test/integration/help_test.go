package integration

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// The examples of --help run in bash as they stand, in the order of this list, in one folder and
// against one store.
func TestExamplesOfTheHelpWorkWhenPasted(t *testing.T) {
	t.Parallel() // it mostly waits
	need(t, "mosquitto_sub")
	folder := t.TempDir()
	admin := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	target := startEmbedded(t, "--mirrors", "*=mirror/", "--admin.listen", admin)
	for _, name := range []string{
		"set", "get", "scan", "txn", "lock", "keys", "keys list", "keys count", "keys owners",
		"keys inspect",
		"keys export", "keys import", "mirror", "mirror list",
		"mirror resync", "mirror check", "watches", "watches list", "watches drop", "raft",
		"raft list-peers", "raft status", "raft autopilot", "raft verify",
		"raft snapshot", "raft snapshot save", "raft snapshot take", "raft snapshot inspect",
		"raft snapshot restore", "del", "vdel", "watch", "version", "tls", "tls ca", "tls node",
		"tls admin", "tls broker", "tls client", "tls renew", "tls show",
	} {
		t.Run(name, func(t *testing.T) {
			help, code := holdfast(t, target.address, "", append(strings.Fields(name), "--help")...)
			examples := regexp.MustCompile(`(?s)\nExamples:\n(.*?)\n\n`).FindStringSubmatch(help)
			if code != 0 || examples == nil {
				t.Fatalf("code %d, and no examples in\n%s", code, help)
			}
			script := "set -euo pipefail\n" + examples[1]
			// Each example of watch goes on until it is interrupted: once, and not a second time
			// with the group of its processes, which ends it without a word.
			if name == "watch" {
				script = regexp.MustCompile(`(?m)^ *holdfast`).ReplaceAllString(script,
					"timeout --foreground --preserve-status -s INT 4 holdfast")
			}
			if printed, err := runScript(t, folder, script, "HOLDFAST_BROKER=mqtt://"+
				target.address, "HOLDFAST_ADMIN=http://"+admin); err != nil {
				t.Errorf("%v of\n%s\n%s", err, script, printed)
			}
		})
	}
}
