package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"holdfast/internal/testwait"
	"holdfast/resp"
)

// setKeys sets keys, one after the other.
func setKeys(t *testing.T, p *peer, keys []string) {
	t.Helper()
	for _, key := range keys {
		if reply := p.call(request{
			payload:    array("SET", key, "v"),
			properties: []string{"__ts", now()},
		}); string(reply.Payload) != "+OK\r\n" {
			t.Fatalf("SET %s: %q", key, reply.Payload)
		}
	}
}

// scanPages returns the keys of each page of a SCAN.
func scanPages(t *testing.T, p *peer, pattern string) (pages [][]string) {
	t.Helper()
	for token := ""; ; {
		var page []string
		page, token = scanPage(t, p, pattern, token)
		pages = append(pages, page)
		if token == "" {
			return pages
		}
	}
}

// scanPage returns the keys of one page of a SCAN, and the continuation token, which is empty on
// the last page.
func scanPage(t *testing.T, p *peer, pattern, token string) (keys []string, next string) {
	t.Helper()
	arguments := []string{"SCAN", pattern}
	if token != "" {
		arguments = append(arguments, token)
	}
	m := p.call(request{payload: array(arguments...)})
	reply, err := resp.ReadReply(m.Payload)
	if err != nil || reply.Kind != resp.ReplyPage {
		t.Fatalf("SCAN %s: %.80q", pattern, m.Payload)
	}
	for _, key := range reply.Keys {
		keys = append(keys, string(key))
	}
	next = string(reply.Next)
	// The same as literal bytes: an array of the keys, and of the token unless this is the last
	// page.
	bulk := func(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }
	literal := fmt.Sprintf("*%d\r\n*%d\r\n", 1+min(1, len(next)), len(keys))
	for _, key := range keys {
		literal += bulk(key)
	}
	if next != "" {
		literal += bulk(next)
	}
	if string(m.Payload) != literal {
		t.Errorf("SCAN %s: %.80q, want %.80q", pattern, m.Payload, literal)
	}
	return keys, next
}

// A SCAN of more keys than a page holds goes on with the continuation token of each page. `holdfast
// scan` prints the keys of all pages.
func TestScanGoesOnFromPageToPage(t *testing.T) {
	t.Parallel() // it mostly waits
	onBoth(t, nil, func(t *testing.T, target *target) {
		p := connect(t, target, "scanner", false)
		var keys []string
		for i := range 1200 {
			keys = append(keys, fmt.Sprintf("many/%04d", i))
		}
		setKeys(t, p, keys)
		pages := scanPages(t, p, "many/*")
		if len(pages) != 2 || len(pages[0]) != 1000 ||
			!slices.Equal(slices.Concat(pages...), keys) {
			t.Errorf("%d pages with %d keys", len(pages), len(slices.Concat(pages...)))
		}
		// The pattern of a later page may be another one.
		_, token := scanPage(t, p, "many/*", "")
		if rest, _ := scanPage(t, p, "many/*9", token); !slices.Equal(rest,
			slices.DeleteFunc(slices.Clone(pages[1]),
				func(key string) bool { return key[len(key)-1] != '9' })) {
			t.Errorf("another pattern with the token of a page: %q", rest)
		}
		if target.name == "external" {
			return // the command needs a login there, and brokers do not differ in it
		}
		for output, line := range map[string]func(string) string{
			"text": func(key string) string { return key },
			"json": func(key string) string {
				encoded,
					_ := json.Marshal(key)
				return string(encoded)
			},
		} {
			t.Run(output, func(t *testing.T) {
				out, code := holdfast(t, target.address, "", "scan", "many/*", "-o", output)
				lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
				if code != 0 || len(lines) != len(keys) || lines[7] != line(keys[7]) {
					t.Errorf("code %d, %d lines: %.40q", code, len(lines), out)
				}
			})
		}
		if out, code := holdfast(t, target.address, "", "scan", "nothing/*"); code != 0 ||
			out != "" {
			t.Errorf("a scan of nothing: code %d, %q", code, out)
		}
		if _, code := holdfast(t, target.address, "", "scan", "["); code == 0 {
			t.Error("a pattern that is a syntax error is no error of the command")
		}
	})
}

// The broker's maximum packet size bounds a page: the keys come on more pages.
func TestScanFitsIntoTheBrokersPackets(t *testing.T) {
	broker := startMosquitto(t, "max_packet_size 4000")
	newServer(t, "mqtt://"+broker.address, t.TempDir()).waitReady(t)
	p := connect(t, &target{address: broker.address}, "scanner", false)
	var keys []string
	for i := range 200 {
		keys = append(keys, fmt.Sprintf("packets/%03d/%s", i, strings.Repeat("x", 60)))
	}
	setKeys(t, p, keys)
	if pages := scanPages(t, p, "packets/*"); len(pages) < 4 ||
		!slices.Equal(slices.Concat(pages...), keys) {
		t.Errorf("%d pages with %d keys", len(pages), len(slices.Concat(pages...)))
	}
}

// SCAN returns only the keys that the client may read, also if the client claims another id in
// __srcId.
func TestScanShowsOnlyKeysThatTheClientMayRead(t *testing.T) {
	g := startGuarded(t)
	startGuardedServer(t, g)
	press, robot := g.connect(t, "press-1", "press"), g.connect(t, "robot-1", "robot")
	setKeys(t, press, []string{"own/press-1"})
	setKeys(t, robot, []string{"own/robot-1"})
	for name, test := range map[string]struct {
		peer       *peer
		properties []string
		want       string
	}{
		"press": {press, nil, "*1\r\n*1\r\n$11\r\nown/press-1\r\n"},
		"robot": {robot, nil, "*1\r\n*1\r\n$11\r\nown/robot-1\r\n"},
		"robot that claims to press": {
			robot,
			[]string{"__srcId", "press-1"},
			"*1\r\n*1\r\n$11\r\nown/robot-1\r\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if reply := test.peer.call(request{
				payload:    array("SCAN", "own/*"),
				properties: test.properties,
			}); string(reply.Payload) != test.want {
				t.Errorf("%q, want %q", reply.Payload, test.want)
			}
		})
	}
}

// A continuation token stays valid after kill -9 of all nodes and their restart, and after a leader
// change.
func TestScanTokenSurvivesRestartsAndLeaders(t *testing.T) {
	broker := startMosquitto(t, "max_packet_size 4000")
	m := startMembers(t, 3, "mqtt://"+broker.address)
	p := connect(t, &target{address: broker.address}, "scanner", false)
	var keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprintf("restarts/%03d/%s", i, strings.Repeat("x", 60)))
	}
	setKeys(t, p, keys)
	found, token := scanPage(t, p, "restarts/*", "")
	for _, disturb := range []func(){
		func() {
			for _, s := range m {
				s.kill()
			}
			for _, s := range m {
				s.start(t)
			}
		},
		func() { m.leader(t).stop() },
	} {
		disturb()
		testwait.Until(t, "a leader serves", func() bool {
			_, code := holdfast(t, broker.address, "", "get", keys[0], "--timeout", "2s")
			return code == 0
		})
		if token == "" {
			t.Fatal("the scan has ended already")
		}
		page, next := scanPage(t, p, "restarts/*", token)
		found, token = append(found, page...), next
	}
	for token != "" {
		page, next := scanPage(t, p, "restarts/*", token)
		found, token = append(found, page...), next
	}
	if !slices.Equal(found, keys) {
		t.Errorf("%d keys, want %d", len(found), len(keys))
	}
}

// SCANs beyond the limit on those that run at a time are refused. The client library sends them
// again, and all succeed.
func TestManyScansAtATimeAreRefusedAndAskedAgain(t *testing.T) {
	broker := startMosquitto(t)
	s := newServer(t, "mqtt://"+broker.address, t.TempDir())
	s.waitReady(t)
	store := connectClient(t, broker.address)
	if _, err := store.Set(t.Context(), "scan/a", []byte("v")); err != nil {
		t.Fatal(err)
	}
	refused := func() bool {
		const counter = `holdfast_requests_refused_total{reason="scans"} `
		return strings.Contains(s.metrics(t), counter) &&
			!strings.Contains(s.metrics(t), counter+"0\n")
	}
	testwait.Until(t, "a scan is refused", func() bool {
		var work sync.WaitGroup
		for range 50 {
			work.Go(func() {
				for key, err := range store.Keys(t.Context(), "scan/*") {
					if key != "scan/a" || err != nil {
						t.Errorf("%q, %v", key, err)
					}
				}
			})
		}
		work.Wait()
		return refused()
	})
}
