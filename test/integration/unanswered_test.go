package integration

import (
	"strings"
	"testing"
	"time"

	"holdfast/internal/testwait"
	"holdfast/internal/topics"
)

const noStore = "no Holdfast node answers at this broker"

// Where no node is at the broker a command says so after 3 s, and that it was not executed.
func TestCommandSaysThatNoNodeAnswers(t *testing.T) {
	t.Parallel() // it mostly waits
	broker := startMosquitto(t)
	for _, arguments := range [][]string{{"get", "k"}, {"set", "k", "v"}} {
		began := time.Now()
		_, faults, code := holdfastWith(t, broker.address, "", arguments...)
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("%v took %v", arguments, took)
		}
		if code != 3 || !strings.Contains(faults, noStore) ||
			!strings.Contains(faults, arguments[0]+` "k": not executed`) {
			t.Errorf("%v: code %d: %s", arguments, code, faults)
		}
	}
}

// Where somebody takes the requests and does not answer, the outcome of a write is unknown, that of
// a read is none.
func TestOnlyWritesHaveAnUnknownOutcome(t *testing.T) {
	t.Parallel() // it mostly waits
	broker := startMosquitto(t)
	host, port, _ := strings.Cut(broker.address, ":")
	// stdbuf, so that it says at once that it has subscribed
	deaf := start(t, need(t, "stdbuf"), "-oL", need(t, "mosquitto_sub"), "-h", host, "-p", port,
		"-V", "5", "-q", "1", "-d", "-t", topics.Invoke)
	testwait.Until(t, "it subscribes", func() bool {
		return strings.Contains(deaf.output.String(), "Subscribed")
	})
	for verb, want := range map[string]struct {
		code int
		text string
	}{
		"get": {3, `get "k": no answer in time: ` + noStore},
		"set": {4, `set "k": no answer in time: the outcome is unknown: ` + noStore},
	} {
		arguments := []string{verb, "k", "--timeout", "4s"}
		if verb == "set" {
			arguments = []string{verb, "k", "v", "--timeout", "4s"}
		}
		_, faults, code := holdfastWith(t, broker.address, "", arguments...)
		if code != want.code || !strings.Contains(faults, want.text) ||
			!strings.Contains(faults, "no answer yet, waiting for up to 4s") {
			t.Errorf("%s: code %d: %s", verb, code, faults)
		}
	}
	deaf.kill()
}

// A value that begins with a dash looks like a flag: the error says what to write.
func TestValueWithADashIsExplained(t *testing.T) {
	broker := startMosquitto(t)
	newServer(t, "mqtt://"+broker.address, t.TempDir()).waitReady(t)
	if _, faults, code := holdfastWith(t, broker.address, "", "set", "temperature",
		"-5"); code != 2 ||
		!strings.Contains(faults, "put -- before") {
		t.Errorf("code %d: %s", code, faults)
	}
	if out, code := holdfast(t, broker.address, "", "set", "temperature", "--px", "1m", "--",
		"-5"); code != 0 {
		t.Errorf("code %d: %s", code, out)
	}
	if out, code := holdfast(t, broker.address, "", "get", "temperature"); code != 0 ||
		out != "-5" {
		t.Errorf("code %d: %q", code, out)
	}
}

// Whoever meets a limit is told which and its bound, by the error, the log and a metric.
func TestLimitThatWasMetIsNamed(t *testing.T) {
	broker := startMosquitto(t)
	s := newServer(t, "mqtt://"+broker.address, t.TempDir(), "--limits.keys", "1")
	s.waitReady(t)
	if out, code := holdfast(t, broker.address, "", "set", "a", "1"); code != 0 {
		t.Fatalf("code %d: %s", code, out)
	}
	for range 2 {
		if _, faults, code := holdfastWith(t, broker.address, "", "set", "b", "1"); code != 3 ||
			!strings.Contains(faults,
				`set "b": the quota has been exceeded (limits.keys: 1)`) {
			t.Errorf("code %d: %s", code, faults)
		}
	}
	if !strings.Contains(s.metrics(t), `holdfast_quota_refusals_total{limit="limits.keys"} 2`) {
		t.Error("it is not counted")
	}
	if n := strings.Count(s.output.String(), `limit="limits.keys: 1"`); n != 1 {
		t.Errorf("it is logged %d times", n)
	}
}

// Who cannot have a lock is told who has it.
func TestLockSaysWhoHoldsIt(t *testing.T) {
	broker := startMosquitto(t)
	newServer(t, "mqtt://"+broker.address, t.TempDir()).waitReady(t)
	if out, code := holdfast(t, broker.address, "", "set", "master", "plc-a"); code != 0 {
		t.Fatalf("code %d: %s", code, out)
	}
	_, faults, code := holdfastWith(t, broker.address, "", "lock", "master", "--wait", "0s", "--",
		"true")
	if code != 5 || !strings.Contains(faults,
		`could not acquire the lock "master": plc-a holds it`) {
		t.Errorf("code %d: %s", code, faults)
	}
}

// A broker that does what the store needs passes `holdfast broker check`, also beside a cluster.
func TestMosquittoPassesTheCheckOfBrokers(t *testing.T) {
	target := startBehindMosquitto(t)
	out, code := holdfast(t, target.address, "", "broker", "check")
	if code != 0 || strings.Count(out, "  ok\n") != 9 ||
		!strings.Contains(out, "50 of 50, in order") {
		t.Errorf("code %d:\n%s", code, out)
	}
}
