package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"holdfast/client"
	"holdfast/internal/load"
)

// result is what was found of one broker.
type result struct {
	name, version string
	conformance   string
	attacks       string
	kill, stop    outage // of the leader
	restart       outage // of the broker
	watchEnds     string // how long after its disconnect a client's watches ended
	rates         []string
	session       []finding // what `holdfast broker check` has found
	skipped       bool
	problems      []error
}

// outage is the effect of a failure on the load: gap is the longest time that an answered request
// took, and failed is the number of failed requests.
type outage struct {
	measured bool
	gap      time.Duration
	failed   int
}

func (o outage) String() string {
	if !o.measured {
		return "–"
	}
	return fmt.Sprintf("%.1f s, %d", o.gap.Seconds(), o.failed)
}

func check(ctx context.Context, t *tools, b broker) *result {
	began := time.Now()
	r := &result{name: b.name}
	problem := func(what string, err error) {
		if err != nil {
			r.problems = append(r.problems, fmt.Errorf("%s: %w", what, err))
		}
	}
	i, err := launch(ctx, t, b)
	if errors.Is(err, errNoRelease) && !required() {
		fmt.Printf("%s: left out: %v\n", b.name, err)
		r.skipped = true
		return r
	}
	if err != nil {
		problem("start", err)
		return r
	}
	defer i.close()
	r.version = i.version
	c, err := startCluster(ctx, t, i)
	if err == nil {
		problem("conformance", r.conform(ctx, t, i))
		problem("session", r.checkSession(ctx, t, i))
		problem("watches", r.watches(ctx, i, c))
		problem("rates", r.measure(ctx, i))
		err = r.failures(ctx, t, i, c)
	}
	problem("failures", err)
	c.close()
	if b.plugin && b.suite != thisMachine {
		// make test and make test-sdk run them with this machine's Mosquitto
		problem("attacks", r.attack(ctx, t, i))
	} else if b.plugin {
		r.attacks = "by `make test`, `make test-sdk`"
	}
	problem("log", i.checkLog())
	fmt.Printf("%s: %s in %.0f s\n", b.name, i.version, time.Since(began).Seconds())
	return r
}

// finding is what `holdfast broker check -o json` prints a line of.
type finding struct {
	Check, Found string
	OK           bool
}

// checkSession runs `holdfast broker check`.
func (r *result) checkSession(ctx context.Context, t *tools, i *instance) error {
	arguments := []string{"broker", "check", "--broker", "mqtt://" + i.address, "-o", "json"}
	if i.user != "" {
		arguments = append(arguments, "--username", i.user, "--password-file",
			filepath.Join(i.folder, "nodes", "password"))
	}
	output, err := exec.CommandContext(ctx, t.holdfast, arguments...).Output()
	for decoder := json.NewDecoder(bytes.NewReader(output)); decoder.More(); {
		var f finding
		if decodeErr := decoder.Decode(&f); decodeErr != nil {
			return errors.Join(err, decodeErr)
		}
		r.session = append(r.session, f)
	}
	failed := ""
	for _, f := range r.session {
		if !f.OK {
			failed += f.Check
		}
	}
	if failed != i.sticks || (err != nil) != (failed != "") {
		return fmt.Errorf("%v, want %q to fail: %s", err, i.sticks, output)
	}
	return nil
}

// checkLog returns an error if the broker's log is so long that it must have a line for each
// message.
func (i *instance) checkLog() error {
	const most = 20_000
	text, err := os.ReadFile(i.process.log)
	if lines := strings.Count(string(text), "\n"); err == nil && lines > most {
		err = fmt.Errorf("%d lines, want at most %d; the last: %s", lines, most,
			last(string(text), 1))
	}
	return err
}

// failures kills the leader, stops it, and restarts the broker, under load.
func (r *result) failures(ctx context.Context, t *tools, i *instance, c cluster) error {
	l, err := startLoad(ctx, i)
	if err != nil {
		return err
	}
	end := func(stop func(n *node) error) func() error {
		return func() error {
			leader, err := c.leader()
			if err != nil {
				return err
			}
			if err := stop(leader); err != nil {
				return err
			}
			if err := l.progress(200); err != nil {
				return err
			}
			if err := leader.start(); err != nil {
				return err
			}
			return c.waitReady()
		}
	}
	for _, step := range []struct {
		what string
		into *outage
		do   func() error
	}{
		{
			"kill -9 of the leader", &r.kill,
			end(func(n *node) error { n.process.kill(); return nil }),
		},
		{"SIGTERM of the leader", &r.stop, end(func(n *node) error { return n.process.stop() })},
		{"a restart of the broker", &r.restart, func() error {
			if err := i.process.stop(); err != nil {
				return err
			}
			return i.start(t)
		}},
	} {
		if step.into.gap, step.into.failed, err = l.during(step.what, step.do); err != nil {
			l.stop()
			l.work.Wait()
			return err
		}
		step.into.measured = true
	}
	lost := l.end(ctx, i) // the load has ended: l.failed does not change any more
	if len(l.failed) > 0 {
		err = fmt.Errorf("requests failed: %v", l.failed)
	}
	return errors.Join(err, lost)
}

var (
	verdicts = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL): (\S+)`)
	begins   = regexp.MustCompile(`^=== (?:RUN|CONT|NAME) +(\S+)`)
)

// conform runs the conformance tests of test/integration against the cluster.
func (r *result) conform(ctx context.Context, t *tools, i *instance) error {
	text, err := integration(ctx, t, i,
		"TestCommandsAreAnsweredByteForByte|TestMalformedRequestsAreRefused|TestInvalidResponseTopicIsNotAnswered|TestCopiesTakeEffectOnceAndAreAnsweredAlike|TestNotificationsOfEveryKindOfChange|TestExpiryIsNotifiedOnceWithItsVersion|TestMirrorShowsEachKeyAsItIs|TestScanGoesOnFromPageToPage|TestPatternWatchNotifiesByteForByte|TestTransactionNotifiesByteForByte",
		"HOLDFAST_TEST_BROKER="+i.address, "HOLDFAST_TEST_USERNAME="+i.user)
	passed, failed := tally(text)
	cases := 0
	if found := regexp.MustCompile(`(\d+) cases`).FindStringSubmatch(text); found != nil {
		cases, _ = strconv.Atoi(found[1]) // always a number
	}
	r.conformance = fmt.Sprintf("%d cases, %d of %d tests", cases, passed, passed+failed)
	if err == nil && cases == 0 {
		err = errors.New("no case was run")
	}
	return err
}

// attack runs the tests of the plugin and the driver, with the broker's own programs.
func (r *result) attack(ctx context.Context, t *tools, i *instance) error {
	shims, err := shims(t, i)
	if err != nil {
		return err
	}
	text, err := integration(ctx, t, i,
		"TestAttacks|TestRefusedLoginEndsNoDelivery|TestPublisherWithInvalidResponseTopicIsKickedOnMosquitto|TestEachLibraryIsUnderstoodOnTheWire|TestNotificationsWithoutSubscriptionPrecedeReplies|TestQueuedRequests|TestDeafClient|TestWatchesEndWithTheirClientOnMosquitto|TestLateDisconnectEndsNoNewWatchOnMosquitto|TestProtocolsGoLibraryWorks",
		"PATH="+shims+":"+os.Getenv("PATH"), "HOLDFAST_LIBRARIES=1")
	passed, failed := tally(text)
	r.attacks = fmt.Sprintf("%d of %d tests", passed, passed+failed)
	if err == nil && passed == 0 {
		err = errors.New("no test was run")
	}
	return err
}

// shims returns a folder with scripts that run the broker's programs, and make, inside the broker's
// root (the folder with its Debian release). The folder is empty for a broker of this machine.
func shims(t *tools, i *instance) (string, error) {
	folder := filepath.Join(i.folder, "shims")
	if err := os.MkdirAll(folder, 0o755); err != nil || i.root == "" {
		return folder, err
	}
	var failures []error
	for program, path := range map[string]string{
		"mosquitto": "/usr/sbin/mosquitto", "mosquitto_ctrl": "/usr/bin/mosquitto_ctrl",
		"mosquitto_passwd": "/usr/bin/mosquitto_passwd",
		"mosquitto_sub":    "/usr/bin/mosquitto_sub", "make": "/usr/bin/make",
	} {
		script := fmt.Sprintf(
			"#!/bin/sh\nexec unshare --mount sh -c 'mount --bind /tmp %[1]s/tmp && mount --bind /dev %[1]s/dev && mount -t proc proc %[1]s/proc && cd / && exec chroot %[1]s %[2]s \"$@\"' sh \"$@\"\n", i.root, path)
		failures = append(failures, os.WriteFile(filepath.Join(folder, program), []byte(script),
			0o755))
	}
	return folder, errors.Join(failures...)
}

// integration runs tests of test/integration and returns what they printed.
func integration(ctx context.Context, t *tools, i *instance, tests string,
	environment ...string,
) (string, error) {
	command := exec.CommandContext(ctx, t.integration, "-test.v", "-test.timeout", "10m",
		"-test.run", tests)
	command.Dir = filepath.Join(t.repository, "test/integration")
	command.Env = append(append(os.Environ(), "TMPDIR=/tmp"), environment...)
	output, err := command.CombinedOutput()
	log := filepath.Join(t.output, i.name+"-tests.log")
	if file, failure := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY,
		0o644); failure == nil {
		_, _ = file.Write(output) // it is for people
		_ = file.Close()
	}
	if err != nil {
		err = fmt.Errorf("%w, see %s: %s", err, log, last(failedLines(string(output)), 40))
	}
	return string(output), err
}

func tally(text string) (passed, failed int) {
	for _, verdict := range verdicts.FindAllStringSubmatch(text, -1) {
		if verdict[1] == "PASS" {
			passed++
		} else {
			failed++
		}
	}
	return passed, failed
}

// failedLines returns what the tests that failed say, without the output of programs that they
// logged.
func failedLines(text string) string {
	var failed []string
	said := make(map[string][]string) // by test
	name := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if began := begins.FindStringSubmatch(line); began != nil {
			name = began[1]
			continue
		}
		if verdict := verdicts.FindStringSubmatch(line); verdict != nil {
			if verdict[1] == "FAIL" {
				failed = append(append(failed, line), said[verdict[2]]...)
			}
			continue
		}
		if strings.Contains(line, "_test.go:") && !strings.Contains(line, ": output of ") {
			said[name] = append(said[name], line)
		}
	}
	return strings.Join(failed, "\n")
}

// watches finds how long a watch lasts whose client has disconnected, while its key changes twice a
// second.
func (r *result) watches(ctx context.Context, i *instance, c cluster) error {
	const key, watchers = "watched", "watcher"
	watcher, err := connect(ctx, i, watchers)
	if err != nil {
		return err
	}
	events, err := watcher.Watch(ctx, key)
	if err != nil {
		return err
	}
	writer, err := connect(ctx, i, "writer")
	if err != nil {
		return err
	}
	defer func() { _ = writer.Close() }()
	if _, err := writer.Set(ctx, key, []byte("seen")); err != nil {
		return err
	}
	select {
	case e := <-events.Events():
		if e.Kind == client.EventGap || string(e.Value) != "seen" {
			return fmt.Errorf("the watcher got %+v", e)
		}
	case <-time.After(10 * time.Second):
		return errors.New("no notification came")
	}
	// PUBACK 0x10 ends a watch only if it was last renewed more than 5 s before the change
	<-time.After(6 * time.Second)
	left := time.Now()
	if err := watcher.Close(); err != nil {
		return err
	}
	for time.Since(left) < 30*time.Second {
		if _, err := writer.Set(ctx, key, []byte("unseen")); err != nil {
			return err
		}
		if count, err := c.watches(watchers); err == nil && count == 0 {
			r.watchEnds = fmt.Sprintf("%.1f s", time.Since(left).Seconds())
			return nil
		}
		<-time.After(500 * time.Millisecond)
	}
	if i.watchesStay {
		r.watchEnds = "`watch.ttl`"
		return nil
	}
	return errors.New("the watch of a client that has disconnected does not end")
}

// measure measures the rate of SETs at 1, 64 and 256 outstanding requests.
func (r *result) measure(ctx context.Context, i *instance) error {
	const connections = 4
	var clients []*client.Client
	defer func() {
		for _, c := range clients {
			_ = c.Close() // everything is answered
		}
	}()
	for number := range connections {
		c, err := connect(ctx, i, fmt.Sprintf("rate-%d", number))
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	value := make([]byte, 100)
	for _, outstanding := range []int{1, 64, 256} {
		measured, err := load.Run(ctx,
			load.Options{
				Outstanding: outstanding, Warmup: 500 * time.Millisecond,
				Duration: 1500 * time.Millisecond,
			},
			func(ctx context.Context, worker int) error {
				_, err := clients[worker%connections].Set(ctx, fmt.Sprintf("rate/%d", worker),
					value)
				return err
			})
		if err != nil {
			return err
		}
		r.rates = append(r.rates, fmt.Sprintf("%.0f", measured.Rate))
	}
	return nil
}
