package httpapi

import (
	"bytes"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"holdfast/fsm"
	"holdfast/hlc"
)

// Any node answers with the keys and their values; a pattern that is malformed is the caller's mistake.
func TestExportHasKeysAndValues(t *testing.T) {
	leader, follower := startAPIs(t)
	leader.set("a/text", "v")
	leader.set("a/\xff", "\xfe")
	leader.execute(fsm.Command{Kind: fsm.KindSet, Key: []byte("b"), TTL: 60_000, Timestamp: hlc.Timestamp{Wall: 1, NodeID: "c"}})
	var lines []string
	for after := ""; ; {
		var page ExportPage
		if code := follower.call(http.MethodGet, "/v1/keys/export?"+url.Values{"after": {after}}.Encode(), nil, &page); code != http.StatusOK {
			t.Fatal(code)
		}
		for i := range page.Keys {
			k := &page.Keys[i]
			if k.Version == "" || (k.TTL > 0) != (k.Name() == "b") {
				t.Errorf("%+v", k)
			}
			k.Version, k.TTL = "", 0
			lines = append(lines, string(k.AppendLine(nil)))
		}
		if after = page.Next; after == "" {
			break
		}
	}
	want := []string{`{"key":"a/text","value":"v"}` + "\n", `{"keyBase64":"YS//","valueBase64":"/g=="}` + "\n", `{"key":"b","value":""}` + "\n"}
	if !slices.Equal(lines, want) {
		t.Errorf("%q", lines)
	}
	var page ExportPage
	if follower.call(http.MethodGet, "/v1/keys/export?pattern=a%2Ft%2A", nil, &page); len(page.Keys) != 1 || page.Keys[0].Key != "a/text" {
		t.Errorf("by pattern: %+v", page)
	}
	if code := follower.call(http.MethodGet, "/v1/keys/export?pattern=%5B", nil, nil); code != http.StatusBadRequest {
		t.Errorf("a malformed pattern: %d", code)
	}
}

// FuzzParseExportedKey: what is parsed can be written as a line, which is parsed to the same.
func FuzzParseExportedKey(f *testing.F) {
	for _, line := range []string{
		`{"key":"k","value":"v","version":"1696374425000:1:StateStore","ttl":5,"token":"1696374425000:1:StateStore"}`,
		`{"keyBase64":"/wA=","valueBase64":"AP4="}`, `{"key":"k","value":""}`, `{"key":"k"}`, `{}`, `null`, `{"key":"<\u2028\ud800>","value":"\u0000"}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		key, err := ParseExportedKey(line)
		if err != nil {
			return
		}
		written := key.AppendLine([]byte("before "))
		if !bytes.HasPrefix(written, []byte("before ")) || bytes.IndexByte(written, '\n') != len(written)-1 {
			t.Fatalf("%q", written)
		}
		again, err := ParseExportedKey(written[len("before "):])
		if err != nil || again.Name() != key.Name() || !bytes.Equal(again.Data(), key.Data()) || again.TTL != key.TTL || again.Token != key.Token {
			t.Fatalf("%+v, then %+v, %v", key, again, err)
		}
	})
}
