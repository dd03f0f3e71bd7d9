package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"holdfast/internal/testwait"
)

// mosquitto_rr, a plain MQTT 5 request-response client, can send requests and prints their replies.
func TestMosquittoRRSetsAndGets(t *testing.T) {
	onBoth(t, nil, func(t *testing.T, target *target) {
		host, port, _ := strings.Cut(target.address, ":")
		rr := func(payload string, properties ...string) string {
			t.Helper()
			arguments := []string{
				"-h", host, "-p", port, "-V", "5", "-q", "1", "-W", "5", "-t", invokeTopic, "-e",
				"clients/rr/response", "-m", payload,
				"-D", "publish", "correlation-data", strconv.FormatUint(1e15+counter.Add(1), 10),
			}
			for i := 0; i < len(properties); i += 2 {
				arguments = append(arguments, "-D", "publish", "user-property", properties[i],
					properties[i+1])
			}
			output, err := exec.CommandContext(t.Context(), need(t, "mosquitto_rr"),
				arguments...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			return strings.TrimSuffix(string(output), "\n")
		}
		for _, step := range []struct{ payload, want string }{
			{"*3\r\n$3\r\nSET\r\n$8\r\ngreeting\r\n$5\r\nhello\r\n", "+OK\r\n"},
			{"*2\r\n$3\r\nGET\r\n$8\r\ngreeting\r\n", "$5\r\nhello\r\n"},
			{"*2\r\n$3\r\nDEL\r\n$8\r\ngreeting\r\n", ":1\r\n"},
			{"*2\r\n$3\r\nGET\r\n$8\r\ngreeting\r\n", "$-1\r\n"},
			{
				array("TXN", array("SET", "greeting", "hi"), array("GET", "none")),
				"*2\r\n+OK\r\n$-1\r\n",
			},
			{array("SCAN", "greet*"), "*1\r\n*1\r\n$8\r\ngreeting\r\n"},
			{array("KEYNOTIFY", "greet*", "GLOB"), "+OK\r\n"},
		} {
			if got := rr(step.payload, "__ts", now()); got != step.want {
				t.Errorf("%q: %q, want %q", step.payload, got, step.want)
			}
		}
	})
}

// A client with Debian's python3-paho-mqtt sets, gets, deletes and watches keys
// (testdata/first_steps.py).
func TestPythonPahoSetsGetsAndWatches(t *testing.T) {
	// Debian's Python, not another that may come first in the path.
	const python = "/usr/bin/python3"
	if output, err := exec.Command(python, "-c", "import paho.mqtt").CombinedOutput(); err != nil {
		t.Fatalf("python3-paho-mqtt is missing: make packages installs it\n%s", output)
	}
	script, err := filepath.Abs("testdata/first_steps.py")
	if err != nil {
		t.Fatal(err)
	}
	onBoth(t, nil, func(t *testing.T, target *target) {
		host, port, _ := strings.Cut(target.address, ":")
		output, err := exec.CommandContext(t.Context(), python, script, host, port).CombinedOutput()
		if err != nil || !strings.HasSuffix(strings.TrimSpace(string(output)), "all steps done") {
			t.Errorf("%v\n%s", err, output)
		}
	})
}

// The client commands print what they should, with the exit codes that scripts rely on.
func TestClientCommandsPrintAndExitAsDocumented(t *testing.T) {
	onBoth(t, nil, func(t *testing.T, target *target) {
		for _, step := range []struct {
			arguments string
			stdin     string
			want      string // "*" for anything
			code      int
		}{
			{"get greeting", "", "", 1},
			{"set greeting hello", "", "*", 0},
			{"get greeting", "", "hello", 0},
			{"set greeting hello --nx", "", "", 1},
			{"set greeting hello --nex", "", "*", 0},
			{"set greeting hi --nex=hello --px 1h", "", "*", 0},
			{"set greeting hi --nex=hello", "", "", 1},
			{"set stdin", "from\x00stdin\n", "*", 0},
			{"get stdin", "", "from\x00stdin\n", 0},
			{"vdel greeting hello", "", "", 1},
			{"vdel greeting hi", "", "*", 0},
			{"del greeting", "", "", 1},
			{"del stdin", "", "*", 0},
			{"get", "", "", 2},
			{"get a b", "", "", 2},
			{"set k v --px 0s", "", "", 2},
			{"set k v --nx --nex", "", "", 2},
			{"set k v --fence x", "", "", 2},
			{"set k v --fence=", "", "", 2}, // as in --fence=$UNSET
			{"set k v --if-version=", "", "", 2},
			{"del k --if-version=", "", "", 2},
			{"set k v --if-version x", "", "", 2},
			{"set k v --if-version 1:0:StateStore --nx", "", "", 2},
			{"set k v --if-version 1:0:StateStore", "", "", 1},
			{"del k --if-version 1:0:StateStore", "", "", 1},
			{"scan no-such-*", "", "", 0},
			{"scan [", "", "", 2},
			{"watch --glob [", "", "", 2},
			{"scan", "", "", 2},
			{"nonsense", "", "", 2},
			{"get k --nonsense", "", "", 2},
			{"set fenced 1 --fence 1000:0:StateStore", "", "*", 0},
			{"set fenced 2", "", "", 3},
			{"set fenced 2 --fence 999:0:StateStore", "", "", 3},
			{"get k --broker mqtt://127.0.0.1:1", "", "", 3},
			{"lock l -- sh -c exit\t7", "", "", 7},
		} {
			arguments := strings.Fields(step.arguments)
			for i := range arguments {
				arguments[i] = strings.ReplaceAll(arguments[i], "\t", " ")
			}
			if strings.HasPrefix(step.arguments, "lock") {
				arguments = []string{"lock", "l", "--", "sh", "-c", "exit 7"}
			}
			t.Run(step.arguments, func(t *testing.T) {
				got, code := holdfast(t, target.address, step.stdin, arguments...)
				if code != step.code || (step.want != "*" && got != step.want) {
					t.Errorf("printed %q, code %d; want %q, %d", got, code, step.want, step.code)
				}
			})
		}
		version, _ := holdfast(t, target.address, "", "set", "guarded", "v")
		for _, verb := range [][]string{{"set", "guarded", "w"}, {"del", "guarded"}} {
			t.Run(strings.Join(verb, " "), func(t *testing.T) {
				_, faults, code := holdfastWith(t, target.address, "",
					append(verb, "--if-version", "1:0:StateStore")...)
				if want := "the value is of version " + strings.TrimSpace(version); code != 1 ||
					!strings.Contains(faults, want) {
					t.Errorf("%v: code %d, %q; want 1, %q", verb, code, faults, want)
				}
			})
		}
	})
}

// holdfast lock runs a program while it holds a lock, gives it the fencing token, and exits with
// its code. A second holder is refused.
func TestLockCommandRunsAProgramUnderALock(t *testing.T) {
	target := startBehindMosquitto(t)
	dir := t.TempDir()
	started, release := filepath.Join(dir, "started"), filepath.Join(dir, "release")
	t.Setenv("HOLDFAST_BROKER", "mqtt://"+target.address)
	holder := start(t, binary, "lock", "master", "--ttl", "2s", "--", "sh", "-c",
		"echo \"$HOLDFAST_FENCING_TOKEN\" > "+started+".new; mv "+started+".new "+started+
			"; while [ ! -e "+release+" ]; do sleep 0.05; done; exit 3")
	testwait.Until(t, "the command runs", func() bool { return exists(started) })
	token, err := os.ReadFile(started)
	if err != nil || !newer(strings.TrimSpace(string(token)), "") {
		t.Errorf("token %q, %v", token, err)
	}
	if _, code := holdfast(t, target.address, "", "lock", "master", "--wait", "0s", "--",
		"true"); code != 5 {
		t.Errorf("a second holder: code %d", code)
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-holder.exited
	if code := holder.command.ProcessState.ExitCode(); code != 3 {
		t.Errorf("the command's code is 3, the lock's %d", code)
	}
	if _, code := holdfast(t, target.address, "", "get", "master"); code != 1 {
		t.Errorf("the lock was not given back: code %d", code)
	}

	// When another client sets the key of the lock, the lock is lost, and the program is ended.
	loser := start(t, binary, "lock", "master", "--ttl", "1s", "--", "sh", "-c", "touch "+
		filepath.Join(dir, "again")+"; sleep 600")
	testwait.Until(t, "the command runs",
		func() bool { return exists(filepath.Join(dir, "again")) })
	if _, code := holdfast(t, target.address, "", "set", "master", "thief"); code != 0 {
		t.Fatal("set")
	}
	<-loser.exited
	if code := loser.command.ProcessState.ExitCode(); code != 6 {
		t.Errorf("a lock that is lost: code %d", code)
	}
}

// The program that holdfast lock runs can read from the terminal. After it has ended, the calling
// script can read from the terminal again.
func TestLockGivesTheTerminalBack(t *testing.T) {
	target := startBehindMosquitto(t)
	t.Setenv("HOLDFAST_BROKER", "mqtt://"+target.address)
	t.Setenv("HOLDFAST", binary)
	command := exec.CommandContext(t.Context(), "script", "--quiet", "--return", "--command",
		`sh -c '"$HOLDFAST" lock l -- sh -c "read line && echo locked=\$line" && read line && echo after=$line'`, filepath.Join(t.TempDir(), "typescript"))
	command.Stdin = strings.NewReader("one\ntwo\n")
	output, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "locked=one") ||
		!strings.Contains(string(output), "after=two") {
		t.Errorf("%v: %q", err, output)
	}
}
