package integration

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/testcert"
	"holdfast/internal/testwait"
)

// list returns the members, according to the admin API of this node.
func (s *server) list(t testing.TB) (list []memberInfo) {
	t.Helper()
	testwait.Until(t, "the members are listed", func() bool {
		list = nil
		code, err := s.api(http.MethodGet, "/v1/members", nil, &list)
		return err == nil && code == http.StatusOK
	})
	return list
}

// operate runs a command against a node's admin API.
func (s *server) operate(t testing.TB, arguments ...string) (string, int) {
	t.Helper()
	return holdfast(t, "127.0.0.1:1", "", append(arguments, "--admin", "http://"+s.admin)...)
}

// wipe empties the data folder of a process that does not run.
func (s *server) wipe(t testing.TB) {
	t.Helper()
	if err := os.RemoveAll(s.dataDir); err != nil {
		t.Fatal(err)
	}
}

// awaitAgreement waits until there are size members, each of them a reachable voter at most 10
// entries behind the leader, and their states agree.
func (m members) awaitAgreement(t testing.TB, size int) {
	t.Helper()
	testwait.Until(t, "all members vote and are in step", func() bool {
		list := m.running()[0].list(t)
		if len(list) != size {
			return false
		}
		for _, member := range list {
			if !member.Voter || member.State == "unreachable" || member.TrailsLeaderBy > 10 {
				return false
			}
		}
		return true
	})
	testwait.Until(t, "all replicas agree", func() bool {
		_, code := m.running()[0].operate(t, "raft", "verify")
		return code == 0
	})
}

// † A node that restarts with an emptied disk at its old address is a new member with a new Raft
// id: it must not vote under the old one. Its join removes the old member. Requests are served
// meanwhile.
func TestWipedNodeIsANewMember(t *testing.T) {
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info")
	l := startLoad(t, broker.address, 8, 10*time.Millisecond)
	for name, pick := range map[string]func() *server{
		"a follower": func() *server { return m.other(m.leader(t)) },
		"the leader": func() *server { return m.leader(t) },
	} {
		wiped := pick()
		before := wiped.idOf(t, m.other(wiped))
		wiped.kill()
		wiped.wipe(t)
		l.progress(50)
		wiped.start(t)
		wiped.waitReady(t)
		m.awaitAgreement(t, 3)
		if after := wiped.idOf(t, m.leader(t)); after == before ||
			!strings.HasPrefix(after, wiped.id+".") {
			t.Errorf("%s: the id was %s and is %s", name, before, after)
		}
	}
	l.progress(50)
	l.stop()
	l.check(t, broker.address)
}

// idOf returns the Raft id of a member, according to the node that is asked.
func (s *server) idOf(t testing.TB, asked *server) string {
	t.Helper()
	for _, member := range asked.list(t) {
		if member.Node == s.id {
			return member.ID
		}
	}
	return ""
}

// A node that is in no list of peers joins, and votes when it has caught up. It can be demoted, and
// made a voter again. A member that is removed stops with a message, and does not join again before
// its data folder is emptied.
func TestJoinedNodeVotesAndRemovedOneStaysOut(t *testing.T) {
	t.Parallel() // it mostly waits
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info")
	l := startLoad(t, broker.address, 8, 10*time.Millisecond)
	l.progress(100)
	peers := fmt.Sprintf("n1=%s,n2=%s,n3=%s", m[0].peer, m[1].peer, m[2].peer)
	fourth := newMember(t, "n4", "mqtt://"+broker.address, fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		peers, "--log.level", "info")
	fourth.start(t)
	fourth.waitReady(t)
	for _, member := range fourth.list(t) {
		if !member.Voter {
			t.Errorf("%s is ready and does not vote: an operator who waits for readiness would take the next vote away", member.Node)
		}
	}
	m = append(m, fourth)
	m.awaitAgreement(t, 4)

	if out, code := fourth.operate(t, "raft", "demote", "n4"); code != 2 {
		t.Errorf("without --yes: code %d: %s", code, out)
	}
	if out, code := fourth.operate(t, "raft", "demote", "n4", "--yes"); code != 0 {
		t.Error(out)
	}
	<-time.After(4 * time.Second) // autopilot would have promoted it by now
	for _, member := range fourth.list(t) {
		if member.Node == "n4" && member.Voter {
			t.Error("autopilot has made a demoted member a voter")
		}
	}
	if out, code := m[0].operate(t, "raft", "add-voter", fourth.peer); code != 0 {
		t.Error(out)
	}
	m.awaitAgreement(t, 4)

	// The leader is removed, by a command to another member.
	leader := m.leader(t)
	if out, code := m.other(leader).operate(t, "raft", "remove-peer", leader.id,
		"--yes"); code != 0 {
		t.Error(out)
	}
	select {
	case <-leader.exited:
	case <-time.After(20 * time.Second):
		t.Fatal("a node that was removed goes on")
	}
	if out := leader.output.String(); !strings.Contains(out, "removed from the cluster") {
		t.Error("it does not say that it was removed")
	}
	leader.start(t)
	select {
	case <-leader.exited:
	case <-time.After(20 * time.Second):
		t.Fatal("a node that was removed comes back")
	}
	m.awaitAgreement(t, 3)
	leader.wipe(t)
	leader.start(t)
	leader.waitReady(t)
	m.awaitAgreement(t, 4)
	l.progress(50)
	l.stop()
	l.check(t, broker.address)
}

// Nodes without state bootstrap one cluster, and only after every peer of the list has said that it
// has no state. A node that has lost its disk never bootstraps a second cluster.
func TestNodesBeginOneClusterTogether(t *testing.T) {
	t.Parallel() // it mostly waits
	broker := startMosquitto(t)
	m := prepareMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info")
	m[0].start(t)
	m[1].start(t)
	testwait.Until(t, "two of three wait", func() bool {
		return strings.Contains(m[0].output.String(), "waiting for the cluster") &&
			strings.Contains(m[1].output.String(), "waiting for the cluster")
	})
	<-time.After(time.Second)
	if httpStatus("http://"+m[0].health+"/livez") != http.StatusOK ||
		httpStatus("http://"+m[0].health+"/readyz") == http.StatusOK {
		t.Error("a node that waits for the others is alive, and not ready")
	}
	m[2].start(t)
	m.waitReady(t)
	m.awaitAgreement(t, 3)
	store := connectClient(t, broker.address)
	if _, err := store.Set(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	// n1, which bootstrapped the cluster, loses its disk while the others are down: it waits for
	// them.
	for _, s := range m {
		s.kill()
	}
	m[0].wipe(t)
	m[0].start(t)
	<-time.After(2 * time.Second)
	if httpStatus("http://"+m[0].health+"/readyz") == http.StatusOK {
		t.Fatal("a node without state began a second cluster")
	}
	m[1].start(t)
	m[2].start(t)
	m.waitReady(t)
	m.awaitAgreement(t, 3)
	if value, _, err := store.Get(t.Context(), "k"); string(value) != "v" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
}

// A restore brings back the keys, versions and fencing tokens of the backup. Later versions are
// greater than all that were given before it. A damaged backup is refused, and changes nothing.
func TestBackupRestoresKeysVersionsAndTokens(t *testing.T) {
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info")
	store := connectClient(t, broker.address)
	token, _ := client.ParseVersion("1000:0:StateStore")
	saved, err := store.Set(t.Context(), "lock", []byte("holder"), client.Fence(token))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "backup.snap")
	if out, code := m.other(m.leader(t)).operate(t, "raft", "snapshot", "save", file); code != 0 {
		t.Fatal(out)
	}
	later, err := store.Set(t.Context(), "later", []byte("gone after the restore"))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	follower := m.other(m.leader(t))
	var told struct {
		Error, Outcome string
	}
	damaged := bytes.Clone(whole)
	damaged[len(damaged)/2] ^= 1
	for name, body := range map[string][]byte{
		"damaged": damaged, "cut off": whole[:len(whole)-10],
		"empty": nil,
	} {
		t.Run(name, func(t *testing.T) {
			if code, err := follower.api(http.MethodPut, "/v1/snapshot", bytes.NewReader(body),
				&told); err != nil || code != http.StatusConflict || told.Outcome != "not done" {
				t.Errorf("%d %+v %v", code, told, err)
			}
		})
	}
	if _, _, err := store.Get(t.Context(), "later"); err != nil {
		t.Errorf("a restore that was refused changed something: %v", err)
	}
	if out, code := follower.operate(t, "raft", "snapshot", "restore", file, "--yes"); code != 0 {
		t.Fatal(out)
	}
	if _, version, err := store.Get(t.Context(), "lock"); version != saved || err != nil {
		t.Errorf("lock: %v %v; want %v", version, err, saved)
	}
	if _, _, err := store.Get(t.Context(), "later"); err == nil {
		t.Error("a key that is not in the backup is still there")
	}
	older, _ := client.ParseVersion("999:0:StateStore")
	if _, err := store.Set(t.Context(), "lock", nil, client.Fence(older)); err == nil {
		t.Error("an older token passes after the restore")
	}
	next, err := store.Set(t.Context(), "next", nil)
	if err != nil || next.Compare(later) <= 0 {
		t.Errorf("the version %v after the restore does not follow %v: %v", next, later, err)
	}
	m.awaitAgreement(t, 3)
	// The restored state survives a restart of all members.
	for _, s := range m {
		s.kill()
	}
	for _, s := range m {
		s.start(t)
	}
	m.waitReady(t)
	if _, version, err := store.Get(t.Context(), "lock"); version != saved || err != nil {
		t.Errorf("lock after a restart: %v %v; want %v", version, err, saved)
	}
	m.awaitAgreement(t, 3)
}

// When a majority has lost its disks, `raft recover` makes the surviving node the only member, and
// the others join it anew.
func TestSurvivorOfALostQuorumRecovers(t *testing.T) {
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info")
	store := connectClient(t, broker.address)
	if _, err := store.Set(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	m.awaitAgreement(t, 3)
	last := m[2]
	m[0].kill()
	m[1].kill()
	if out, code := last.operate(t, "raft", "list-peers"); code != 0 ||
		strings.Count(out, "unreachable") != 2 {
		t.Errorf("without a leader: code %d: %s", code, out)
	}
	last.kill()
	m[0].wipe(t)
	m[1].wipe(t)
	if err := os.Remove(filepath.Join(last.dataDir, "identity.json")); err != nil {
		// it gets a new id
		t.Fatal(err)
	}
	arguments := append([]string{"raft", "recover"}, last.arguments[1:]...)
	if out, code := holdfast(t, broker.address, "", arguments...); code != 2 {
		t.Errorf("without --yes: code %d: %s", code, out)
	}
	if out, code := holdfast(t, broker.address, "", append(arguments, "--yes")...); code != 0 {
		t.Fatal(out)
	}
	for _, s := range m {
		s.start(t)
	}
	m.waitReady(t)
	m.awaitAgreement(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if value, _, err := store.Get(ctx, "k"); string(value) != "v" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
}

// Members authenticate each other by certificates. A node whose certificate lacks its node name
// does not start. A node without a certificate, or with one of another authority, does not join. A
// renewed certificate is read without a restart.
func TestMembersAuthenticateByCertificates(t *testing.T) {
	broker := startMosquitto(t)
	ca := testcert.NewAuthority(t)
	certificate := func(name string, hosts ...string) []string {
		ca.Issue(name, hosts...)
		return []string{
			"--cluster.tls.certFile", ca.File(name + ".crt"), "--cluster.tls.keyFile",
			ca.File(name + ".key"), "--cluster.tls.caFile", ca.File("ca.crt"),
			"--log.level", "debug",
		}
	}
	var addresses, peers []string
	for i := range 4 {
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", freePort(t)))
		peers = append(peers, fmt.Sprintf("n%d=%s", i+1, addresses[i]))
	}
	var m members
	for i := range 3 {
		id := fmt.Sprintf("n%d", i+1)
		s := newMember(t, id, "mqtt://"+broker.address, addresses[i], strings.Join(peers[:3], ","),
			certificate(id, id, "127.0.0.1")...)
		s.start(t)
		m = append(m, s)
	}
	m.waitReady(t)
	m.awaitAgreement(t, 3)
	misnamed := newMember(t, "n4", "mqtt://"+broker.address, addresses[3],
		strings.Join(peers[:3], ","), certificate("stranger", "stranger", "127.0.0.1")...)
	misnamed.start(t)
	<-misnamed.exited // the others would refuse it: TestCertificatesNameMembers
	if code := misnamed.process.command.ProcessState.ExitCode(); code != 2 ||
		!strings.Contains(misnamed.output.String(), "must have n4, the id of the node, as a name") {
		t.Errorf("a certificate of another name: code %d", code)
	}
	for name, extra := range map[string][]string{
		"another authority": strangerCertificate(t, ca),
		"no certificate":    {"--cluster.tls.insecure", "--log.level", "debug"},
	} {
		t.Run(name, func(t *testing.T) {
			stranger := newMember(t, "n4", "mqtt://"+broker.address, addresses[3],
				strings.Join(peers[:3], ","), extra...)
			stranger.start(t)
			testwait.Until(t, name+" is refused",
				func() bool {
					return strings.Contains(stranger.output.String(),
						"waiting for the cluster")
				})
			if name == "another authority" {
				testwait.Until(t, "both sides say why", func() bool {
					return strings.Contains(body("http://"+stranger.health+"/readyz"),
						"refuses the certificate of this node: tls: ") &&
						slices.ContainsFunc(m, func(s *server) bool {
							return strings.Contains(s.output.String(),
								"refused because of its certificate")
						})
				})
			}
			<-time.After(500 * time.Millisecond)
			if list := m[0].list(t); len(list) != 3 {
				t.Errorf("a stranger is a member: %v", list)
			}
			stranger.kill()
		})
	}
	// The certificates are renewed while the nodes run. The restart of one makes new connections,
	// for which they are read again.
	for _, s := range m {
		ca.Issue(s.id, s.id, "127.0.0.1")
	}
	restarted := m.other(m.leader(t))
	restarted.kill()
	restarted.start(t)
	restarted.waitReady(t)
	m.awaitAgreement(t, 3)
	for _, s := range m {
		if s != restarted && !strings.Contains(s.output.String(),
			"the certificates were read again") {
			t.Errorf("%s has not read its certificate again", s.id)
		}
	}
}

func strangerCertificate(t *testing.T, ca *testcert.Authority) []string {
	t.Helper()
	other := testcert.NewAuthority(t)
	other.Issue("n4", "n4", "127.0.0.1")
	return []string{
		"--cluster.tls.certFile", other.File("n4.crt"), "--cluster.tls.keyFile",
		other.File("n4.key"), "--cluster.tls.caFile", ca.File("ca.crt"),
		"--log.level", "debug",
	}
}

// A node that restarts at another address, the former leader included, announces it, and the other
// members reach it there.
func TestMovedNodeIsReachedAtItsNewAddress(t *testing.T) {
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info")
	m.awaitAgreement(t, 3)
	for name, pick := range map[string]func() *server{
		"a follower": func() *server { return m.other(m.leader(t)) },
		"the leader": func() *server { return m.leader(t) },
	} {
		moved := pick()
		moved.kill()
		before := moved.peer
		moved.peer = fmt.Sprintf("127.0.0.1:%d", freePort(t))
		for i := range moved.arguments {
			moved.arguments[i] = strings.ReplaceAll(moved.arguments[i], before, moved.peer)
		}
		moved.start(t)
		moved.waitReady(t)
		testwait.Until(t, "the new address is known of "+name, func() bool {
			for _, member := range m.leader(t).list(t) {
				if member.Node == moved.id && member.Address == moved.peer {
					return true
				}
			}
			return false
		})
		m.awaitAgreement(t, 3)
	}
}

// A node's log is converted while it is stopped, and only then does the node start with the other
// setting. With the default setting it starts with either log.
func TestNodeStartsOnlyWithTheLogStoreOfItsLog(t *testing.T) {
	broker := startMosquitto(t)
	dir := t.TempDir()
	s := newServer(t, "mqtt://"+broker.address, dir, "--cluster.logStore", "boltdb")
	s.waitReady(t)
	if out, code := holdfast(t, broker.address, "", "set", "k", "v"); code != 0 {
		t.Fatal(out)
	}
	restart := func(logStore string) {
		t.Helper()
		s.stop()
		s.arguments = append(s.arguments, "--cluster.logStore", logStore)
		s.start(t)
		s.waitReady(t)
		if out, code := holdfast(t, broker.address, "", "get", "k"); code != 0 ||
			strings.TrimSpace(out) != "v" {
			t.Errorf("%s, %d: %s", logStore, code, out)
		}
	}
	restart("auto")
	if out, code := holdfast(t, broker.address, "", "raft", "convert-log", "--node.id", "n1",
		"--node.dataDir", dir, "--cluster.logStore", "wal"); code == 0 {
		t.Errorf("the log of a node that runs was converted: %s", out)
	}
	s.stop()
	s.arguments = append(s.arguments, "--cluster.logStore", "wal")
	s.start(t)
	<-s.exited
	if out := s.output.String(); !strings.Contains(out, "convert-log") {
		t.Errorf("a node does not say how to go on: %s", out)
	}
	for _, want := range []string{"is now one of wal", "is one of wal already"} {
		if out, code := holdfast(t, broker.address, "", "raft", "convert-log", "--node.id", "n1",
			"--node.dataDir", dir, "--cluster.logStore", "wal"); code != 0 ||
			!strings.Contains(out, want) {
			t.Errorf("%d: %s", code, out)
		}
	}
	s.start(t)
	s.waitReady(t)
	restart("auto")
	if out, code := holdfast(t, broker.address, "", "raft", "convert-log", "--node.id", "n1",
		"--node.dataDir", dir); code != 2 {
		// --cluster.logStore is missing
		t.Errorf("%d: %s", code, out)
	}
}
