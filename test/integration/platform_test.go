package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/testwait"
)

// A platform such as Kubernetes calls `raft step-down` before it stops a node: a leader hands over
// to the first member by name. It calls `raft keep-peers` before it makes a cluster smaller: the
// surplus members are removed, even the leader. No request fails.
func TestStepDownAndKeepPeersFailNoRequest(t *testing.T) {
	broker := startMosquitto(t)
	m := startMembers(t, 5, "mqtt://"+broker.address, "--log.level", "info")
	m.awaitAgreement(t, 5)
	l := startLoad(t, broker.address, 8, 10*time.Millisecond)
	l.progress(50)

	if out, code := m.other(m.leader(t)).operate(t, "raft", "transfer-leader", "n5"); code != 0 {
		t.Fatal(out)
	}
	testwait.Until(t, "n5 leads", func() bool { return m.leader(t).id == "n5" })
	if out, code := m[1].operate(t, "raft", "step-down"); code != 0 ||
		!strings.Contains(out, "does not lead") {
		t.Errorf("a follower: code %d: %s", code, out)
	}
	if out, code := m[4].operate(t, "raft", "step-down"); code != 0 ||
		!strings.Contains(out, "handed over to n1") {
		t.Errorf("the leader: code %d: %s", code, out)
	}
	testwait.Until(t, "n1 leads", func() bool { return m.leader(t).id == "n1" })

	if out, code := m[0].operate(t, "raft", "transfer-leader", "n4"); code != 0 {
		t.Fatal(out)
	}
	testwait.Until(t, "n4 leads", func() bool { return m.leader(t).id == "n4" })
	if out, code := m[0].operate(t, "raft", "keep-peers", "n1", "n2", "n3"); code != 2 {
		t.Errorf("without --yes: code %d: %s", code, out)
	}
	if out, code := m[0].operate(t, "raft", "keep-peers", "x1", "--yes"); code != 2 {
		t.Errorf("nobody is left: code %d: %s", code, out)
	}
	for _, asked := range []*server{m[4], m[0]} {
		// first a member that is itself removed, then n1, when no surplus member is left
		if out, code := asked.operate(t, "raft", "keep-peers", "n1", "n2", "n3",
			"--yes"); code != 0 {
			t.Fatal(out)
		}
	}
	for _, gone := range m[3:] {
		select {
		case <-gone.exited:
		case <-time.After(20 * time.Second):
			t.Errorf("%s was removed and goes on", gone.id)
		}
	}
	m[:3].awaitAgreement(t, 3)
	l.progress(50)
	l.stop()
	l.check(t, broker.address)

	// A node without a leader cannot tell which members are surplus: keep-peers fails. Only
	// --if-any accepts that no node answers.
	m[1].kill()
	m[2].kill()
	testwait.Until(t, "n1 has no leader", func() bool {
		out, code := m[0].operate(t, "status", "-o", "json")
		return code == 0 && strings.Contains(out, `"leader":""`)
	})
	if out, code := m[0].operate(t, "raft", "keep-peers", "n1", "n2", "n3", "--yes", "--timeout",
		"3s"); code == 0 {
		t.Errorf("without a leader: code %d: %s", code, out)
	}
	m[0].kill()
	if out, code := m[0].operate(t, "raft", "keep-peers", "n1", "--yes", "--if-any", "--timeout",
		"4s"); code != 0 || !strings.Contains(out, "nobody listens") {
		t.Errorf("nobody is there: code %d: %s", code, out)
	}
	if _, code := m[0].operate(t, "raft", "keep-peers", "n1", "--yes", "--timeout",
		"2s"); code == 0 {
		t.Errorf("nobody is there, without --if-any: code %d", code)
	}
}

// step-down of the only member succeeds, although no other voter can lead.
func TestStepDownOfTheOnlyMemberSucceeds(t *testing.T) {
	broker := startMosquitto(t)
	s := newServer(t, "mqtt://"+broker.address, t.TempDir())
	s.waitReady(t)
	if out, code := s.operate(t, "raft", "step-down"); code != 0 ||
		!strings.Contains(out, "no other voter") {
		t.Errorf("code %d: %s", code, out)
	}
}

// `snapshot save` into a folder names the file by the time, and keeps only the newest files, as
// many as --keep says. It also writes to pipes and through symbolic links. `snapshot restore` reads
// a pipe.
func TestSnapshotsInFoldersAndPipes(t *testing.T) {
	broker := startMosquitto(t)
	s := newServer(t, "mqtt://"+broker.address, t.TempDir())
	s.waitReady(t)
	store := connectClient(t, broker.address)
	if _, err := store.Set(t.Context(), "k", []byte("before")); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "f[1]")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	const future = "holdfast-2999-01-01T000000Z.snap" // saved when a clock was wrong
	for _, name := range []string{
		"holdfast-2001-01-01T000000Z.snap",
		"holdfast-2002-01-01T000000Z.snap", "holdfast-2003-01-01T000000Z.snap.part",
		"holdfast-before-upgrade.snap", future,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, code := s.operate(t, "raft", "snapshot", "save", folder, "--keep", "3"); code != 0 {
		t.Fatal(out)
	}
	var names []string
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if len(names) != 4 || names[0] != "holdfast-2001-01-01T000000Z.snap" ||
		names[1] != "holdfast-2002-01-01T000000Z.snap" ||
		names[3] != "holdfast-before-upgrade.snap" {
		t.Fatalf("in the folder: %q", names)
	}
	if out, code := holdfast(t, "127.0.0.1:1", "", "raft", "snapshot", "inspect",
		filepath.Join(folder, names[2])); code != 0 || !strings.Contains(out, "1 keys") {
		t.Errorf("code %d: %s", code, out)
	}
	if out, code := holdfast(t, "127.0.0.1:1", "", "raft", "snapshot", "save", folder, "--keep",
		"3", "--admin", "http://127.0.0.1:1"); code == 0 {
		t.Errorf("saved without a cluster: %s", out)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != len(names) {
		t.Errorf("a command that failed left %d files of %d, %v", len(left), len(names), err)
	}
	if _, code := s.operate(t, "raft", "snapshot", "save", filepath.Join(folder, "one.snap"),
		"--keep", "2"); code != 2 {
		t.Errorf("--keep with a file: code %d", code)
	}
	link, behind := filepath.Join(folder, "link"), filepath.Join(t.TempDir(), "behind")
	if err := os.Symlink(behind, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(behind, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(folder, "dangling")
	if err := os.Symlink(filepath.Join(t.TempDir(), "missing"), dangling); err != nil {
		t.Fatal(err)
	}
	if out, code := s.operate(t, "raft", "snapshot", "save", dangling); code != 2 {
		t.Errorf("a link to nothing: code %d: %s", code, out)
	}
	pipe := filepath.Join(folder, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan int, 1)
	go func() {
		data, _ := os.ReadFile(pipe)
		read <- len(data)
	}()
	for _, to := range []string{link, pipe} {
		before, _ := os.Lstat(to)
		if out, code := s.operate(t, "raft", "snapshot", "save", to); code != 0 {
			t.Errorf("code %d: %s", code, out)
		}
		if after, err := os.Lstat(to); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s was replaced: %v", to, err)
		}
	}
	if n := <-read; n == 0 {
		t.Error("nothing came through the pipe")
	}
	if info, err := os.Stat(behind); err != nil || info.Size() == 0 {
		t.Errorf("nothing is in the file behind the link: %v", err)
	}

	snapshot, code := s.operate(t, "raft", "snapshot", "save", "-")
	if code != 0 {
		t.Fatalf("code %d", code)
	}
	if _, err := store.Set(t.Context(), "k", []byte("after")); err != nil {
		t.Fatal(err)
	}
	restore := func(input string) (string, int) {
		return holdfast(t, "127.0.0.1:1", input, "raft", "snapshot", "restore", "-", "--yes",
			"--admin", "http://"+s.admin)
	}
	if out, code := restore(snapshot[:len(snapshot)-1]); code != 3 {
		t.Errorf("half a snapshot: code %d: %s", code, out)
	}
	if out, code := restore(snapshot); code != 0 {
		t.Errorf("code %d: %s", code, out)
	}
	if value, _, err := store.Get(t.Context(), "k"); string(value) != "before" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
}

// `holdfast health` reports whether a node is live and ready, for images that hold no other
// program.
func TestHealthCommandShowsReadiness(t *testing.T) {
	broker := startMosquitto(t)
	s := newServer(t, "mqtt://"+broker.address, t.TempDir())
	s.waitReady(t)
	ask := func(arguments ...string) (string, int) {
		return holdfast(t, "127.0.0.1:1", "",
			append([]string{"health", "--health.listen", s.health}, arguments...)...)
	}
	if out, code := ask(); code != 0 || !strings.HasPrefix(out, "ok\n") {
		t.Errorf("ready: code %d: %s", code, out)
	}
	broker.kill()
	testwait.Until(t, "it is not ready without its broker",
		func() bool { _, code := ask(); return code == 1 })
	if out, code := ask("--live"); code != 0 || out != "ok\n" {
		t.Errorf("live: code %d: %s", code, out)
	}
	s.kill()
	if _, code := ask("--live"); code != 3 {
		t.Errorf("nobody is there: code %d", code)
	}
}

// A node can use the embedded broker as a separate process (`holdfast broker`). If nodes have a
// password, no other client can use their client ids.
func TestEmbeddedBrokerCarriesACluster(t *testing.T) {
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string]struct{ broker, server []string }{
		"open": {},
		"password": {
			[]string{"--node-password-file", password},
			[]string{"--broker.username", "holdfast-node", "--broker.passwordFile", password},
		},
	} {
		t.Run(name, func(t *testing.T) {
			address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
			broker := start(t, binary,
				append([]string{"broker", "--listen", address}, flags.broker...)...)
			testwait.Until(t, "the broker listens",
				func() bool { return strings.Contains(broker.output.String(), address) })
			s := newServer(t, "mqtt://"+address, t.TempDir(), flags.server...)
			s.waitReady(t)
			store := connectClient(t, address)
			if _, err := store.Set(t.Context(), "k", []byte("v")); err != nil {
				t.Fatal(err)
			}
			other, err := client.Connect(t.Context(),
				client.Config{Addresses: []string{address}, ClientID: "holdfast-other-in"})
			if err == nil {
				_ = other.Close()
			}
			if taken := err == nil; taken != (name == "open") {
				t.Errorf("another client under a node's id: %v", err)
			}
			if name == "password" { // the password changes while broker and node run
				if err := os.WriteFile(password, []byte("another\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				if code, _ := s.stop(); code != 0 {
					t.Errorf("the node: code %d", code)
				}
				s.start(t)
				s.waitReady(t)
			}
			if code, _ := s.stop(); code != 0 {
				t.Errorf("the node: code %d", code)
			}
			if code, _ := broker.stop(); code != 0 {
				t.Errorf("the broker: code %d", code)
			}
		})
	}
}

// When the file with the broker password changes, the node uses the new password for its next
// connection, without a restart.
func TestPasswordIsReadAgain(t *testing.T) {
	folder := t.TempDir()
	hashed, secret := filepath.Join(folder, "passwd"), filepath.Join(folder, "password")
	set := func(password string) {
		if err := os.WriteFile(secret, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(need(t, "mosquitto_passwd"), "-c", "-b", hashed, "store",
			password).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	set("first")
	broker := startMosquitto(t, "user root", "password_file "+hashed, "allow_anonymous false")
	s := newServer(t, "mqtt://"+broker.address, t.TempDir(), "--broker.username", "store",
		"--broker.passwordFile", secret)
	s.waitReady(t)
	set("second")
	broker.kill()
	testwait.Until(t, "it has lost its broker",
		func() bool { return httpStatus("http://"+s.health+"/readyz") != http.StatusOK })
	broker.start(t)
	s.waitReady(t)
}

// A server that systemd started as a service of Type=notify reports its start and its stop to
// systemd.
func TestSystemdLearnsOfStartAndStop(t *testing.T) {
	address := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	broker := startMosquitto(t) // before NOTIFY_SOCKET is set: Mosquitto would write to it, too
	t.Setenv("NOTIFY_SOCKET", address)
	s := newServer(t, broker.address, t.TempDir())
	told := func() string {
		message := make([]byte, 100)
		_ = socket.SetReadDeadline(time.Now().Add(20 * time.Second)) // reading fails then
		n, err := socket.Read(message)
		if err != nil {
			t.Fatal(err)
		}
		return string(message[:n])
	}
	if got := told(); got != "READY=1" {
		t.Errorf("first %q", got)
	}
	s.waitReady(t)
	s.stop()
	if got := told(); got != "STOPPING=1" {
		t.Errorf("then %q", got)
	}
}

// A server that was started with SIGHUP ignored, as nohup does, is not stopped by SIGHUP.
func TestIgnoredHangUpDoesNotStopTheServer(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	p := start(t, "sh", "-c", `trap "" HUP; exec "$0" "$@"`, binary, "dev", "--listen", address,
		"--data", filepath.Join(t.TempDir(), "dev"))
	testwait.Until(t, "holdfast dev is ready",
		func() bool { return strings.Contains(p.output.String(), "Holdfast is ready") })
	if err := p.command.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for i := range 30 { // longer than a stop takes
		if _, code := holdfast(t, address, "", "set", "k", fmt.Sprint(i), "--timeout",
			"3s"); code != 0 {
			t.Fatalf("SET %d after the signal: exit code %d", i, code)
		}
	}
}
