// Package page tests the status page of a real cluster in Debian's Chromium: in light and dark, in
// the window of a desktop and of a phone. It is a module of its own, so that the product does not
// depend on the browser's driver.
package page

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// dev is `holdfast dev`, with its broker and its admin port.
type dev struct {
	program, broker, admin string
	process                *os.Process
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func startDev(t *testing.T) *dev {
	t.Helper()
	d := &dev{
		program: filepath.Join(t.TempDir(), "holdfast"), broker: freePort(t),
		admin: freePort(t),
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", d.program, "./cmd/holdfast")
	build.Dir = "../.."
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	command := exec.Command(d.program, "dev", "--listen", d.broker, "--admin.listen", d.admin,
		"--mirrors", "*=mirror/")
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	d.process = command.Process
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "Holdfast is ready") {
			go func() {
				for lines.Scan() { // so that it never waits for a reader
				}
			}()
			return d
		}
	}
	t.Fatal("holdfast dev does not start")
	return nil
}

// do runs a command against the broker.
func (d *dev) do(t *testing.T, arguments ...string) {
	t.Helper()
	arguments = append([]string{arguments[0], "--broker", d.broker}, arguments[1:]...)
	if output, err := exec.CommandContext(t.Context(), d.program,
		arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", arguments, err, output)
	}
}

// hold starts a command that runs until the test ends.
func (d *dev) hold(t *testing.T, arguments ...string) {
	t.Helper()
	arguments = append([]string{arguments[0], "--broker", d.broker}, arguments[1:]...)
	command := exec.CommandContext(t.Context(), d.program, arguments...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
}

// consoleErrors collects what must not happen in the browser: uncaught exceptions, console calls
// and log entries.
type consoleErrors struct {
	mu  sync.Mutex
	all []string
}

func (c *consoleErrors) listen(event any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		c.all = append(c.all, e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		c.all = append(c.all, fmt.Sprintf("console.%s", e.Type))
	case *log.EventEntryAdded:
		c.all = append(c.all, e.Entry.Text)
	}
}

func browser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("chromium is missing: install Debian's package (make test-page)")
		}
		t.Skip("chromium is missing: install Debian's package (make test-page)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
		chromedp.NoSandbox)
	allocated, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocated)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// report is the folder of the screenshots, for people to look at.
const report = "../../report/page"

// picture returns tasks that save a screenshot, and check that the page is not wider than the
// window.
func picture(t *testing.T, name string, width, height int64, scheme string) chromedp.Tasks {
	var image []byte
	var wide bool
	return chromedp.Tasks{
		chromedp.EmulateViewport(width, height),
		chromedp.ActionFunc(func(ctx context.Context) error {
			return emulation.SetEmulatedMedia().WithFeatures(
				[]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}).Do(ctx)
		}),
		chromedp.Evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth", &wide),
		chromedp.FullScreenshot(&image, 90),
		chromedp.ActionFunc(func(context.Context) error {
			if wide {
				t.Errorf("%s: the page is wider than the window", name)
			}
			if err := os.MkdirAll(report, 0o755); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(report, name+".jpg"), image, 0o644)
		}),
	}
}

func TestStatusPageShowsTheClusterAndItsFaults(t *testing.T) {
	ctx := browser(t)
	d := startDev(t)
	for i := range 5 {
		d.do(t, "set", fmt.Sprintf("a-press/%d", i), strings.Repeat("x", 10*i+1))
	}
	d.do(t, "set", "<img src=x onerror=console.log(1)>", "evil", "--px", "10m")
	d.hold(t, "watch", "a-press/1")
	d.hold(t, "watch", "--glob", "a-*/[0-9]")
	d.hold(t, "lock", "line-4", "--", "sleep", "100")
	d.hold(t, "bench", "--clients", "2", "--rate", "200", "--duration", "2m")
	said := &consoleErrors{}
	chromedp.ListenTarget(ctx, said.listen)

	var body, title, chart string
	err := chromedp.Run(ctx,
		log.Enable(), runtime.Enable(),
		chromedp.Navigate("http://"+d.admin+"/"),
		chromedp.Poll(`document.querySelectorAll('#members tbody tr').length === 3 && document.querySelectorAll('#watches tbody td:not(.none)').length === 6 &&
			document.querySelectorAll('#locks tbody td:not(.none)').length === 8 && parseInt(document.querySelector('#rates dd').textContent) > 50 &&
			[...document.querySelectorAll('#rates dd')].filter(dd => dd.textContent.includes('p99 ≤')).length === 3 && document.querySelector('#members tbody').textContent.includes('≤')`, nil, chromedp.WithPollingTimeout(30*time.Second)),
		chromedp.Title(&title),
		chromedp.Text("body", &body, chromedp.ByQuery),
		chromedp.Poll(`document.querySelector('#chart polyline').getAttribute('points').split(' ').length > 3`, nil, chromedp.WithPollingTimeout(30*time.Second)),
		chromedp.AttributeValue("#chart polyline", "points", &chart, nil, chromedp.ByQuery),
		picture(t, "desk-light", 1280, 900, "light"),
		picture(t, "desk-dark", 1280, 900, "dark"),
		picture(t, "phone-light", 390, 844, "light"),
		picture(t, "phone-dark", 390, 844, "dark"),
	)
	if err != nil {
		t.Fatalf("%v; the page says: %s", err, body)
	}
	for _, want := range []string{
		"leads", "3 members", "n1", "n2", "n3", "follower", "leader", "connected", "a-press/4",
		"41", "line-4", "<img src=x onerror=console.log(1)>", "evil", "no expiry", "queue p50",
		"ago",
		"Requests", "Members", "Keys", "Locks", "Watches", "Mirrors",
		"the broker has what they show", "mirror/…", "a-*/[0-9] (pattern)",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if title != "Holdfast" || !strings.Contains(chart, ",") {
		t.Errorf("title %q, chart %q", title, chart)
	}

	// Only the keys that begin with the prefix are shown. When the node is killed, the page says
	// that it does not answer.
	err = chromedp.Run(ctx,
		chromedp.SendKeys("#prefix", "a-press/", chromedp.ByQuery),
		chromedp.Poll(`document.querySelectorAll('#keys tbody tr').length === 5`, nil,
			chromedp.WithPollingTimeout(20*time.Second)),
	)
	if err != nil {
		t.Errorf("the prefix: %v", err)
	}
	said.mu.Lock()
	if len(said.all) > 0 {
		t.Errorf("the console says %q", said.all)
	}
	said.mu.Unlock()
	if err := d.process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Run(ctx,
		chromedp.Poll(`document.querySelector('#state').textContent.includes('does not answer')`,
			nil, chromedp.WithPollingTimeout(20*time.Second))); err != nil {
		t.Errorf("a node that has gone: %v", err)
	}
}

// TestStatusPageIsSmallAndCheap bounds and logs the size of the page, and the CPU time that one
// open page costs a cluster of three in one process.
func TestStatusPageIsSmallAndCheap(t *testing.T) {
	d := startDev(t)
	weight := 0
	for _, file := range []string{"", "page.css", "page.js"} {
		response, err := http.Get("http://" + d.admin + "/ui/" + file)
		if err != nil {
			t.Fatal(err)
		}
		count, err := bufio.NewReader(response.Body).WriteTo(countTo(&weight))
		_ = response.Body.Close()
		if err != nil || count == 0 || response.StatusCode != http.StatusOK ||
			!strings.Contains(response.Header.Get("Content-Security-Policy"),
				"default-src 'none'") {
			t.Errorf("%q: %d bytes, %v, %v", file, count, response.Status, err)
		}
	}
	const most = 32 << 10
	t.Logf("the page weighs %d bytes", weight)
	if weight > most {
		t.Errorf("the page weighs %d bytes, more than %d", weight, most)
	}
	for i := range 200 {
		d.do(t, "set", fmt.Sprintf("key/%d", i), "value")
	}
	const span = 10 * time.Second
	idle := cpuDuring(t, d.process.Pid, span)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.admin+
		"/ui/events?prefix=", http.NoBody)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	stream := 0
	var reading sync.WaitGroup
	// until it is cancelled
	reading.Go(func() { _, _ = bufio.NewReader(response.Body).WriteTo(countTo(&stream)) })
	open := cpuDuring(t, d.process.Pid, span)
	cancel()
	reading.Wait()
	_ = response.Body.Close()
	t.Logf("CPU of the process: %.2f %% without a page, %.2f %% with one; the stream is %d bytes a second", 100*idle, 100*open, stream/int(span/time.Second))
	if open-idle > 0.05 {
		t.Errorf("an open page costs %.1f %% of a core", 100*(open-idle))
	}
}

type counting struct{ sum *int }

func countTo(sum *int) counting { return counting{sum} }

func (c counting) Write(p []byte) (int, error) {
	*c.sum += len(p)
	return len(p), nil
}

// cpuDuring returns the share of a core that a process takes during a time.
func cpuDuring(t *testing.T, pid int, span time.Duration) float64 {
	t.Helper()
	ticks := func() float64 {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+2:]))
		user, _ := strconv.ParseFloat(fields[11], 64) // the kernel writes numbers
		system, _ := strconv.ParseFloat(fields[12], 64)
		return user + system
	}
	before := ticks()
	<-time.After(span) // the measurement takes real time
	const perSecond = 100
	return (ticks() - before) / perSecond / span.Seconds()
}
