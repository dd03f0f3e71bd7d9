package httpapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
	"holdfast/hlc"
)

// Any node exports keys with their values. A malformed request is answered with 400 Bad Request.
func TestExportHasKeysAndValues(t *testing.T) {
	leader, follower := startAPIs(t)
	leader.set("a/text", "v")
	leader.set("a/\xff", "\xfe")
	leader.execute(fsm.Command{
		Kind: fsm.KindSet, Key: []byte("b"), TTL: 60_000,
		Timestamp: hlc.Timestamp{Wall: 1, NodeID: "c"},
	})
	var lines []string
	for after := ""; ; {
		var page ExportPage
		if code := follower.call(http.MethodPost, "/v1/keys/export",
			[]byte(`{"after":"`+after+`"}`), &page); code != http.StatusOK {
			t.Fatal(code)
		}
		for i := range page.Keys {
			k := &page.Keys[i]
			if k.Version == "" || (k.TTL != nil) != (k.Name() == "b") {
				t.Errorf("%+v", k)
			}
			k.Version, k.TTL = "", nil
			lines = append(lines, string(k.AppendLine(nil)))
		}
		if after = page.Next; after == "" {
			break
		}
	}
	want := []string{
		`{"key":"a/text","value":"v"}` + "\n",
		`{"keyBase64":"YS//","valueBase64":"/g=="}` + "\n", `{"key":"b","value":""}` + "\n",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("%q", lines)
	}
	var page ExportPage
	if follower.call(http.MethodPost, "/v1/keys/export", []byte(`{"pattern":"a/t*"}`),
		&page); len(page.Keys) != 1 || page.Keys[0].Key != "a/text" {
		t.Errorf("by pattern: %+v", page)
	}
	for _, body := range []string{`{"pattern":"["}`, `{"after":"?"}`} {
		t.Run(body, func(t *testing.T) {
			if code := follower.call(http.MethodPost, "/v1/keys/export", []byte(body),
				nil); code != http.StatusBadRequest {
				t.Errorf("%s: %d", body, code)
			}
		})
	}
}

// The leader may receive a forwarded request and not answer it. If the request changes nothing, its
// outcome is "not done". Otherwise it is unknown.
func TestForwardedRequestWithoutAnAnswer(t *testing.T) {
	_, follower := startAPIs(t)
	hangUp := func(context.Context, raft.Server) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			_, _ = there.Read(make([]byte, 1))
			_ = there.Close()
		}()
		return here, nil
	}
	outside := httptest.NewServer(Admin(AdminConfig{
		Name: "follower", Node: follower.node, Ready: func() error { return nil },
		Notes: func() []string { return nil },
		Dial:  hangUp, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Version: "test", Mirrors: follower.mirrors,
	}))
	defer outside.Close()
	follower.url = outside.URL
	for _, test := range []struct {
		method, path string
		code         int
		outcome      string
	}{
		{http.MethodPost, ExportPath, http.StatusServiceUnavailable, "not done"},
		{http.MethodGet, "/v1/keys", http.StatusServiceUnavailable, "not done"},
		{http.MethodDelete, "/v1/watches?client=c", http.StatusGatewayTimeout, "unknown"},
	} {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			var failure Error
			if code := follower.call(test.method, test.path, []byte("{}"),
				&failure); code != test.code || failure.Outcome != test.outcome {
				t.Errorf("%d %+v", code, failure)
			}
		})
	}
}

// A page may begin after a key that is longer than the headers of a request may be.
func TestExportGoesOnBehindALongKey(t *testing.T) {
	leader, follower := startAPIs(t)
	long := strings.Repeat("\xff", 60<<10)
	leader.set(long, "v")
	leader.set(long+"\xff", "w")
	var page ExportPage
	body := fmt.Sprintf(`{"after":%q}`, base64.StdEncoding.EncodeToString([]byte(long)))
	if code := follower.call(http.MethodPost, "/v1/keys/export", []byte(body),
		&page); code != http.StatusOK || len(page.Keys) != 1 || page.Keys[0].Name() != long+"\xff" {
		t.Errorf("%d, %d keys", code, len(page.Keys))
	}
}

// ParseExportedKey refuses what encoding/json would silently change or drop.
func TestExportLinesAreParsedStrictly(t *testing.T) {
	for name, test := range map[string]struct{ line, why string }{
		"lone first half of a pair":   {`{"key":"k\ud800","value":"v"}`, "not valid"},
		"lone second half of a pair":  {`{"key":"k","value":"\udc00"}`, "not valid"},
		"first half before an escape": {`{"key":"\ud800\n","value":"v"}`, "not valid"},
		"first half at the end":       {`{"key":"k","value":"\ud83d`, "not valid"},
		"bytes that are not UTF-8":    {"{\"key\":\"\xff\",\"value\":\"v\"}", "not valid"},
		"a name given twice":          {`{"key":"a","key":"b","value":"v"}`, "given twice"},
		"another case":                {`{"key":"a","Value":"v"}`, "unknown"},
		"an unknown field":            {`{"key":"a","value":"v","tll":5}`, "unknown"},
		"no time to live":             {`{"key":"a","value":"v","ttl":0}`, "ttl is 0"},
		"negative time to live":       {`{"key":"a","value":"v","ttl":-1}`, "ttl is -1"},
		"two objects":                 {`{"key":"a","value":"v"}{}`, "behind"},
		"an array":                    {`["a"]`, "no JSON object"},
		"an unfinished object":        {`{"key":"a","value":"v"`, "EOF"},
		"no key":                      {`{"value":"v"}`, "key is missing"},
		"no value":                    {`{"key":"a","value":null}`, "value is missing"},
		"two keys":                    {`{"key":"a","keyBase64":"YQ==","value":"v"}`, "exclude"},
		"a malformed token":           {`{"key":"a","value":"v","token":"1:2"}`, "token"},
		"malformed Base64":            {`{"keyBase64":"?","value":"v"}`, "keyBase64"},
	} {
		t.Run(name, func(t *testing.T) {
			if key, err := ParseExportedKey([]byte(test.line)); err == nil ||
				!strings.Contains(err.Error(), test.why) {
				t.Errorf("%+v, %v; want %q", key, err, test.why)
			}
		})
	}
	key, err := ParseExportedKey(
		[]byte(`{"key":"\ud83d\ude00\\ud800","value":"\u0000","ttl":null}`))
	if err != nil || key.Key != "\U0001F600\\ud800" || *key.Value != "\x00" || key.TTL != nil {
		t.Errorf("%+v, %v", key, err)
	}
}

// FuzzParseExportedKey: what is parsed can be written as a line, which is parsed to the same.
func FuzzParseExportedKey(f *testing.F) {
	for _, line := range []string{
		`{"key":"k","value":"v","version":"1696374425000:1:StateStore","ttl":5,"token":"1696374425000:1:StateStore"}`,
		`{"keyBase64":"/wA=","valueBase64":"AP4="}`, `{"keyBase64":"0000","valueBase64":""}`,
		`{"key":"k","value":""}`, `{"key":"k"}`, `{}`, `null`,
		`{"key":"<\u2028\ud83d\ude00>","value":"\u0000"}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		key, err := ParseExportedKey(line)
		if err != nil {
			return
		}
		written := key.AppendLine([]byte("before "))
		if !bytes.HasPrefix(written, []byte("before ")) ||
			bytes.IndexByte(written, '\n') != len(written)-1 {
			t.Fatalf("%q", written)
		}
		again, err := ParseExportedKey(written[len("before "):])
		if err != nil || again.Name() != key.Name() || !bytes.Equal(again.Data(), key.Data()) ||
			(again.TTL == nil) != (key.TTL == nil) || again.TTL != nil && *again.TTL != *key.TTL ||
			again.Token != key.Token {
			t.Fatalf("%+v, then %+v, %v", key, again, err)
		}
	})
}
