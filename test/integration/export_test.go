package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/client"
)

// exportRig is a store with an admin API, and a client of it.
type exportRig struct {
	t      *testing.T
	broker string
	admin  string
	store  *client.Client
}

func startExport(t *testing.T, extra ...string) *exportRig {
	broker := startMosquitto(t)
	s := newServer(t, "mqtt://"+broker.address, t.TempDir(), extra...)
	s.waitReady(t)
	return &exportRig{t, broker.address, "http://" + s.admin, connectClient(t, broker.address)}
}

func (r *exportRig) set(key, value string, options ...client.Option) {
	r.t.Helper()
	if _, err := r.store.Set(r.t.Context(), key, []byte(value), options...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *exportRig) export(arguments ...string) string {
	r.t.Helper()
	out, code := holdfast(r.t, r.broker, "",
		append([]string{"keys", "export", "--admin", r.admin}, arguments...)...)
	if code != 0 {
		r.t.Fatalf("exit code %d: %s", code, out)
	}
	return out
}

func (r *exportRig) importing(stdin string, arguments ...string) (string, int) {
	r.t.Helper()
	return holdfast(r.t, r.broker, stdin, append([]string{"keys", "import"}, arguments...)...)
}

// withoutVersions drops the versions, and replaces the milliseconds of each time to live: an import
// keeps neither exactly.
func withoutVersions(lines string) string {
	var out strings.Builder
	for line := range strings.Lines(lines) {
		before, rest, _ := strings.Cut(line, `,"version":"`)
		_, rest, _ = strings.Cut(rest, `"`)
		if i := strings.Index(rest, `"ttl":`); i >= 0 {
			rest = rest[:i] + `"ttl":some` + strings.TrimLeft(rest[i+len(`"ttl":`):], "0123456789")
		}
		out.WriteString(before + rest)
	}
	return out.String()
}

// The import of an export into another store gives the same keys: binary keys and values, times to
// live, fencing tokens. Only the versions differ.
func TestExportAndImportKeepEachKey(t *testing.T) {
	r := startExport(t)
	token, err := client.ParseVersion("1696374425000:1:StateStore")
	if err != nil {
		t.Fatal(err)
	}
	r.set("line-7/recipe", "<steel>, \"2 mm\" é\n")
	r.set("line-7/lock", "plc-a", client.Expire(time.Hour))
	r.set("fenced", "", client.Fence(token))
	r.set("\xff\x00", "\x00\xfe")
	const want = `{"key":"fenced","value":"","token":"1696374425000:1:StateStore"}
{"key":"line-7/lock","value":"plc-a","ttl":some}
{"key":"line-7/recipe","value":"<steel>, \"2 mm\" é\n"}
{"keyBase64":"/wA=","valueBase64":"AP4="}
`
	exported := r.export()
	if got := withoutVersions(exported); got != want {
		t.Fatalf("%s", got)
	}
	if got := withoutVersions(r.export("--pattern", "line-[0-9]/l*")); got != strings.SplitAfter(
		want, "\n")[1] {
		t.Errorf("by pattern: %s", got)
	}
	file := filepath.Join(t.TempDir(), "keys.ndjson")
	if out := r.export(file); out != "" {
		t.Errorf("it printed %q", out)
	}
	if data, err := os.ReadFile(file); err != nil ||
		len(withoutVersions(string(data))) != len(want) {
		t.Errorf("%v: %s", err, data)
	}
	if left, err := filepath.Glob(file + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	other := startExport(t)
	if out, code := other.importing("", file); code != 0 || out != "4 keys stored\n" {
		t.Fatalf("exit code %d: %s", code, out)
	}
	if got := withoutVersions(other.export()); got != want {
		t.Errorf("after the import: %s", got)
	}
}

// An import leaves existing keys alone if asked, changes nothing in a dry run, stops at a bad line,
// and begins at the line of --from.
func TestImportIsCarefulAndResumable(t *testing.T) {
	r := startExport(t)
	token, _ := client.ParseVersion("1696374425000:1:StateStore")
	r.set("same", "v")
	r.set("other", "old")
	r.set("fenced", "v", client.Fence(token))
	lines := `{"key":"same","value":"v"}` + "\n\n" + `{"key":"other","value":"new"}` + "\r\n" +
		`{"key":"new","value":"n"}` + "\n" + `{"key":"fenced","value":"w"}`
	for _, step := range []struct {
		name, stdin string
		arguments   []string
		want        string
		code        int
		keeps       bool // existing keys
	}{
		{
			"dry run", lines,
			[]string{"--dry-run"},
			"nothing is changed: of the lines 1 have a new key, 2 another value, 1 the same value, and 0 would be skipped\n", 0, true,
		},
		{
			"dry run, existing keys stay", lines,
			[]string{"--dry-run", "--if-absent"},
			"nothing is changed: of the lines 1 have a new key, 0 another value, 0 the same value, and 3 would be skipped\n", 0, true,
		},
		{
			"existing keys stay", lines,
			[]string{"--if-absent", "-"},
			"1 keys stored, 3 skipped\n", 0,
			true,
		},
		{"a fenced key needs its token", lines, nil, "", 3, false},
		{
			"the last one counts", `{"key":"twice","value":"1"}` + "\n" +
				`{"key":"twice","value":"2"}`,
			[]string{"-o", "json"},
			`{"stored":2,"skipped":0,"new":0,"changed":0,"unchanged":0}` + "\n", 0, false,
		},
		{"a bad line", `{"key":"k","value":"v","tll":5}`, nil, "", 2, false},
		{"from a line before the first", lines, []string{"--from", "0"}, "", 2, false},
		{
			"from behind the bad line", `{"key":"k"}` + "\n" + `{"key":"from","value":"2"}`,
			[]string{"--from", "2"},
			"1 keys stored\n", 0, false,
		},
		{
			"from behind the last line", `{"key":"k","value":"v"}`,
			[]string{"--from", "3"},
			"", 2,
			false,
		},
		{"nothing", "", nil, "0 keys stored\n", 0, false},
		{"a file that is not there", "", []string{"/nonexistent"}, "", 2, false},
	} {
		t.Run(step.name, func(t *testing.T) {
			r.t = t
			if out, code := r.importing(step.stdin, step.arguments...); out != step.want ||
				code != step.code {
				t.Errorf("%q, exit code %d; want %q, %d", out, code, step.want, step.code)
			}
			if value, _, err := r.store.Get(t.Context(), "other"); step.keeps &&
				(err != nil || string(value) != "old") {
				t.Errorf("an existing key was changed: %q, %v", value, err)
			}
		})
	}
	r.t = t
	if value, _, err := r.store.Get(t.Context(), "other"); err != nil || string(value) != "new" {
		// without --if-absent, until the fenced key
		t.Errorf("an existing key: %q, %v", value, err)
	}
	if value, _, err := r.store.Get(t.Context(), "twice"); err != nil || string(value) != "2" {
		t.Errorf("the later line of one key does not count: %q, %v", value, err)
	}
	if _, _, err := r.store.Get(t.Context(), "k"); err == nil {
		t.Error("a bad line was stored")
	}
}

// An import stops at a bad line, after it has stored the thousand lines before it. The line number
// that it gives for --from is that of the bad line.
func TestImportSaysWhereToGoOn(t *testing.T) {
	r := startExport(t)
	var lines bytes.Buffer
	for n := range 1000 {
		fmt.Fprintf(&lines, "{\"key\":\"k/%04d\",\"value\":\"v\"}\n", n)
	}
	file := filepath.Join(t.TempDir(), "keys.ndjson")
	if err := os.WriteFile(file,
		append(lines.Bytes(), "{\"key\":\"bad\"}\n{\"key\":\"last\",\"value\":\"v\"}\n"...),
		0o600); err != nil {
		t.Fatal(err)
	}
	output, err := exec.CommandContext(t.Context(), binary, "keys", "import", file, "--broker",
		"mqtt://"+r.broker).CombinedOutput()
	if err == nil || !strings.Contains(string(output), "line 1001: value is missing") ||
		!strings.Contains(string(output), "go on with --from 1001") {
		t.Errorf("%v: %s", err, output)
	}
	if out, code := r.importing("", file, "--from", "1002"); code != 0 || out != "1 keys stored\n" {
		t.Errorf("%q, exit code %d", out, code)
	}
	if exported := r.export(); strings.Count(exported, "\n") != 1001 {
		t.Errorf("%d keys", strings.Count(exported, "\n"))
	}
}

// An import stops when the policy denies a key, or a quota is exceeded, and says where to go on.
func TestImportNeedsRightsAndRoom(t *testing.T) {
	lines := `{"key":"allowed/1","value":"v"}` + "\n" + `{"key":"allowed/2","value":"v"}` + "\n" +
		`{"key":"other","value":"v"}` + "\n" + `{"key":"allowed/3","value":"v"}` + "\n"
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	writePolicy(t, policy, `rules: [{principals: {clientIds: ["*"]}, stateStoreResources: [{method: ReadWrite, keyType: Pattern, keys: ["allowed/*"]}]}]`)
	for name, test := range map[string]struct {
		settings []string
		want     string
	}{
		"a policy": {
			[]string{"--policyFile", policy},
			`line 3: set "other": not authorized; go on with --from 3`,
		},
		// different keys are stored in any order
		"a quota": {
			[]string{"--limits.keys", "2"},
			`the quota has been exceeded (limits.keys: 2); go on with --from`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startExport(t, test.settings...)
			_, faults, code := holdfastWith(t, r.broker, lines, "keys", "import", "--client-id",
				"importer")
			if code != 3 || !strings.Contains(faults, test.want) {
				t.Errorf("exit code %d: %s", code, faults)
			}
			if exported := r.export(); strings.Count(exported, "\n") < 2 {
				t.Errorf("what the client may store is not: %s", exported)
			}
		})
	}
}

// An export tries again while no node leads, and goes on with the same page. The admin API is a
// fake that reports "no leader" at every other call.
func TestExportWaitsForALeader(t *testing.T) {
	var asked atomic.Int32
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case asked.Add(1)%2 == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":"no leader","outcome":"not done"}`)
		case r.Method == http.MethodGet:
			_, _ = io.WriteString(w, `{"count":2,"bytes":4}`)
		default:
			body, _ := io.ReadAll(r.Body)
			page := `{"keys":[{"key":"a","value":"1"}],"next":"YQ=="}`
			if strings.Contains(string(body), `"after":"YQ=="`) {
				page = `{"keys":[{"key":"b","value":"2"}],"next":""}`
			}
			_, _ = io.WriteString(w, page)
		}
	}))
	defer admin.Close()
	if out, code := holdfast(t, "", "", "keys", "export", "--admin", admin.URL); code != 0 ||
		out != "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"value\":\"2\"}\n" {
		t.Errorf("%q, exit code %d", out, code)
	}
}

// An export writes to a named pipe, and does not replace it with a file. An import from a pipe
// reports a line that fails at once, although the other end is still open.
func TestExportAndImportUsePipes(t *testing.T) {
	r := startExport(t)
	r.set("k", "v")
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() {
		data, err := os.ReadFile(pipe)
		read <- fmt.Sprintf("%s%v", data, err)
	}()
	r.export(pipe)
	if got := <-read; !strings.HasPrefix(got, `{"key":"k","value":"v",`) ||
		!strings.HasSuffix(got, "}\n<nil>") {
		t.Errorf("%s", got)
	}
	command := exec.CommandContext(t.Context(), binary, "keys", "import", "--broker", "mqtt://"+
		r.broker)
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = input.Close() }()
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(input,
		"{\"key\":\"k\",\"value\":\"v\",\"token\":\"99999999999999:0:StateStore\"}\n"); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err == nil ||
		!strings.Contains(output.String(), "line 1: set \"k\"") ||
		!strings.Contains(output.String(), "--from 1") {
		t.Errorf("%v: %s", err, output.String())
	}
}
