package fsm

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"holdfast/internal/glob"
	"holdfast/internal/policy"
)

func scanOf(pattern string, token []byte) *Command {
	return &Command{Kind: KindScan, Key: []byte(pattern), Value: token}
}

// scanAll returns all keys of a scan, page by page, and how many pages there were. between is
// called after each page but the last.
func scanAll(t fataler, m *Machine, command Command, between func()) (keys []string, pages int) {
	t.Helper()
	for {
		result := m.Read(&command)
		if result.Code != CodeKeys {
			t.Fatalf("%q: %+v", command.Key, result)
		}
		pages++
		keys = append(keys, result.Page.Keys...)
		if result.Page.Next == "" {
			return keys, pages
		}
		command.Value = []byte(result.Page.Next)
		between()
	}
}

func setOf(key string) Command {
	return Command{Kind: KindSet, Key: []byte(key), Value: []byte("v")}
}

func (l *testLeader) setAll(keys ...string) {
	l.t.Helper()
	for _, key := range keys {
		if result := l.do(setOf(key)); result.Code != CodeOK {
			l.t.Fatalf("SET %.40q: %+v", key, result)
		}
	}
}

func TestScanRejectsBadArguments(t *testing.T) {
	l := newLeader(t)
	seal := newSealer(l.m.scanSecret).seal
	valid := seal("key")
	damaged := func(at int) []byte {
		token := []byte(valid)
		token[at] ^= 1
		return token
	}
	for name, test := range map[string]struct {
		command *Command
		want    ErrorCode
	}{
		"empty pattern":             {scanOf("", nil), ErrorSyntax},
		"unclosed class":            {scanOf("a[b", nil), ErrorSyntax},
		"longest pattern":           {scanOf(strings.Repeat("a", glob.MaxSize), nil), NoError},
		"pattern that is too long":  {scanOf(strings.Repeat("a", glob.MaxSize+1), nil), ErrorQuota},
		"pattern that was left out": {&Command{Kind: KindScan, Oversize: true}, ErrorQuota},
		"token":                     {scanOf("a", []byte(valid)), NoError},
		"empty token":               {scanOf("a", []byte{}), ErrorInvalidContinuationToken},
		"token without a key":       {scanOf("a", []byte(seal(""))), ErrorInvalidContinuationToken},
		"token of another format":   {scanOf("a", damaged(0)), ErrorInvalidContinuationToken},
		"token with another MAC":    {scanOf("a", damaged(1)), ErrorInvalidContinuationToken},
		"token with another key": {
			scanOf("a", damaged(len(valid)-1)),
			ErrorInvalidContinuationToken,
		},
		"token cut off": {
			scanOf("a", []byte(valid[:len(valid)-1])),
			ErrorInvalidContinuationToken,
		},
		"token with more": {
			scanOf("a", []byte(valid+"\n")),
			ErrorInvalidContinuationToken,
		},
		"token that is too long": {
			scanOf("a", make([]byte, MaxContinuationToken+1)),
			ErrorInvalidContinuationToken,
		},
		"token of another store": {
			scanOf("a", []byte(newSealer(l.m.scanSecret+1).seal("key"))),
			ErrorInvalidContinuationToken,
		},
		"unidentified": {&Command{
			Kind: KindScan, Key: []byte("*"),
			Unidentified: true,
		}, ErrorNotAuthorized},
		"verb in lower case": {&Command{
			Kind: KindScan, Key: []byte("*"),
			CaseError: ErrorUnknownCommand,
		}, ErrorUnknownCommand},
	} {
		t.Run(name, func(t *testing.T) {
			if result := l.m.Read(test.command); result.Error != test.want ||
				(test.want == NoError) != (result.Code == CodeKeys) {
				t.Errorf("%+v", result)
			}
		})
	}
}

// The bytes of a token are a format: a client may keep one across an upgrade.
func TestContinuationTokenKeepsItsFormat(t *testing.T) {
	const golden = "01411c27d5c1d11dfd26bfc9e116bc7951ea5b1addfe682d3682dc3d03e15b77667a2be2cc378017db432584033098876ceb095d056fa8050869990ed7da504e9a722e7af44137caf4d41fea57c6dae8626c7df2fbb14a497379ae1665680ee38f3bb0f599308a03dd4cff81eeb0469243778c6a87163d50a4b6ec9663307d3fa16d6306eea1a2320c60234399a81793c0"
	sealer := newSealer(7)
	if token := hex.EncodeToString([]byte(sealer.seal("key"))); token != golden {
		t.Errorf("%s, want %s", token, golden)
	}
	token, _ := hex.DecodeString(golden)
	if after, valid := sealer.open(string(token)); !valid || after != "key" {
		t.Errorf("%q, %v", after, valid)
	}
	if token := sealer.seal("a longer key"); strings.Contains(token, "key") ||
		len(token) != len(sealer.seal("key")) {
		t.Error("a token shows its key, or how long that is")
	}
	for size := range 300 {
		key := strings.Repeat("\x00", size) + "\x01"
		if after, valid := sealer.open(sealer.seal(key)); !valid || after != key {
			t.Errorf("a key of %d bytes comes back as %q", len(key), after)
		}
	}
}

// Whatever a client sends as a token, only the tokens that seal returns are valid.
func FuzzToken(f *testing.F) {
	sealer := newSealer(7)
	f.Add(sealer.seal("key"))
	f.Add("\x01" + strings.Repeat("\x00", tokenMAC+tokenBlock))
	f.Fuzz(func(t *testing.T, token string) {
		if after, valid := sealer.open(token); valid && sealer.seal(after) != token {
			t.Fatalf("%x is taken for the token of %q", token, after)
		}
	})
}

// The secret of the tokens outlasts a leadership: a client may keep a token.
func TestTokensOutlastALeadership(t *testing.T) {
	l := newLeader(t)
	secret := l.m.scanSecret
	l.start()
	if secret == 0 || l.m.scanSecret != secret {
		t.Errorf("%d was the secret, and another leadership has %d", secret, l.m.scanSecret)
	}
}

// Tokens of a store that was backed up are valid where the backup is restored.
func TestTokensSurviveARestore(t *testing.T) {
	from := newLeader(t)
	from.setAll("a", "b")
	token := newSealer(from.m.scanSecret).seal("a")
	to := &testLeader{t: t, m: New(), wall: startWall, term: 100}
	to.start()
	snapshot := from.snapshot()
	to.do(Command{Kind: KindStage, Nonce: 3, Value: snapshot})
	if result := to.do(Command{
		Kind: KindRestore, Nonce: 3,
		Offset: uint64(len(snapshot)),
	}); result.Code != CodeOK {
		t.Fatalf("%+v", result)
	}
	if result := to.m.Read(scanOf("*", []byte(token))); result.Code != CodeKeys ||
		!slices.Equal(result.Page.Keys, []string{"b"}) {
		t.Errorf("%+v", result)
	}
}

// A page does not keep the values of its keys in memory.
func TestPageHasCopiesOfItsKeys(t *testing.T) {
	l := newLeader(t)
	l.setAll("a", "b")
	page := l.m.Read(scanOf("*", nil)).Page
	found, _ := l.m.values.find([]byte("a"))
	if unsafe.StringData(page.Keys[0]) == unsafe.StringData(found.data) {
		t.Error("a key of the page is a part of the record")
	}
	if unsafe.StringData(page.Keys[1]) != (*byte)(
		unsafe.Add(unsafe.Pointer(unsafe.StringData(page.Keys[0])), 1)) {
		t.Error("the keys of a page are not in one piece")
	}
}

func TestScanPagesAreBounded(t *testing.T) {
	l := newLeader(t)
	var many []string
	for i := range 2*maxPageKeys + 1 {
		many = append(many, fmt.Sprintf("many/%06d", i))
	}
	l.setAll(many...)
	var long []string
	for i := range 10 {
		long = append(long, fmt.Sprintf("long/%d/%s", i, strings.Repeat("x", 60_000)))
	}
	l.setAll(long...)
	for name, test := range map[string]struct {
		pattern string
		keys    []string
		pages   int
	}{
		"by keys":               {"many/*", many, 3},
		"exactly a page":        {"many/0000??", many[:100], 1},
		"a page that is full":   {"many/000*", many[:1000], 1},
		"by bytes":              {"long/*", long, 3},
		"literal":               {"many/000007", many[7:8], 1},
		"nothing":               {"other/*", nil, 1},
		"invalid UTF-8":         {"many\xff*", nil, 1},
		"everything but a page": {"m*", many, 3},
	} {
		t.Run(name, func(t *testing.T) {
			keys, pages := scanAll(t, l.m, *scanOf(test.pattern, nil), func() {})
			if !slices.Equal(keys, test.keys) || pages != test.pages {
				t.Errorf("%d keys in %d pages, want %d in %d", len(keys), pages, len(test.keys),
					test.pages)
			}
		})
	}
}

// A page ends after a number of keys were examined, even if few of them match. So an empty page
// with a token is possible.
func TestScanOfASparsePatternGivesUpItsPage(t *testing.T) {
	l := newLeader(t)
	for i := range 2*maxPageVisits + 10 {
		l.apply(setOf(fmt.Sprintf("k/%07d", i)))
	}
	l.setAll("k/needle")
	result := l.m.Read(scanOf("k/*needle", nil))
	if result.Code != CodeKeys || len(result.Page.Keys) != 0 || result.Page.Next == "" {
		t.Fatalf("%+v", result)
	}
	keys, pages := scanAll(t, l.m, *scanOf("k/*needle", nil), func() {})
	if !slices.Equal(keys, []string{"k/needle"}) || pages != 3 {
		t.Errorf("%q in %d pages", keys, pages)
	}
	if _, pages := scanAll(t, l.m, *scanOf("k/n*dle", nil), func() {}); pages != 1 {
		t.Errorf("%d pages although the literal prefix leaves one key", pages)
	}
}

// A page ends earlier if matching takes many steps.
func TestScanIsBoundedBySteps(t *testing.T) {
	l := newLeader(t)
	for i := range 8 {
		l.setAll(fmt.Sprintf("%d%s", i, strings.Repeat("a", 60_000)))
	}
	for name, pattern := range map[string]string{"many characters": "*" + strings.Repeat("?a", 40) +
		"b*", "many ranges": "*[" + strings.Repeat("é", 80) + "]*"} {
		t.Run(name, func(t *testing.T) {
			if keys, pages := scanAll(t, l.m, *scanOf(pattern, nil), func() {}); len(keys) != 0 ||
				pages < 8 {
				t.Errorf("%d keys in %d pages", len(keys), pages)
			}
		})
	}
}

// A page ends earlier if the policy takes many steps, too.
func TestScanIsBoundedByStepsOfThePolicy(t *testing.T) {
	l := newLeader(t)
	for i := range 8 {
		l.setAll(fmt.Sprintf("%d%s", i, strings.Repeat("a", 60_000)))
	}
	slow := "*" + strings.Repeat("?a", 40) + "b*"
	compiled, err := policy.Compile(
		[]policy.Rule{{
			ClientIDs: []string{"*"},
			Resources: []policy.Resource{{Access: policy.Read, Keys: []string{slow}}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	settings, _ := l.m.Settings()
	settings.Policy = compiled
	l.do(Command{Kind: KindConfigure, Settings: &settings})
	command := *scanOf("*", nil)
	command.Principal = policy.Principal{ClientID: "a"}
	if keys, pages := scanAll(t, l.m, command, func() {}); len(keys) != 0 || pages < 8 {
		t.Errorf("%d keys in %d pages", len(keys), pages)
	}
}

func TestScanLeavesOutExpiredKeys(t *testing.T) {
	l := newLeader(t)
	brief := setOf("a")
	brief.TTL = 1000
	l.do(brief)
	l.setAll("b")
	l.elapsed += 2000
	l.do(Command{Kind: KindAdvance})
	if keys, _ := scanAll(t, l.m, *scanOf("*", nil), func() {}); !slices.Equal(keys,
		[]string{"b"}) {
		t.Errorf("%q", keys)
	}
}

func TestScanShowsOnlyWhatTheCallerMayRead(t *testing.T) {
	l := newLeader(t)
	l.setAll("open/1", "mine/a/1", "mine/b/1", "secret/1")
	compiled, err := policy.Compile([]policy.Rule{
		{
			ClientIDs: []string{"*"},
			Resources: []policy.Resource{{
				Access: policy.Read,
				Keys:   []string{"open/*", "mine/{principal.clientId}/*"},
			}},
		},
		{
			ClientIDs: []string{"a"},
			Resources: []policy.Resource{{Access: policy.Write, Keys: []string{"*"}}},
		},
		{
			Usernames: []string{"root"},
			Resources: []policy.Resource{{Access: policy.ReadWrite, Keys: []string{"*"}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	settings, _ := l.m.Settings()
	settings.Policy = compiled
	l.do(Command{Kind: KindConfigure, Settings: &settings})
	for name, test := range map[string]struct {
		principal policy.Principal
		want      []string
	}{
		"client a": {policy.Principal{ClientID: "a"}, []string{"mine/a/1", "open/1"}},
		"client b": {policy.Principal{ClientID: "b"}, []string{"mine/b/1", "open/1"}},
		"nobody":   {policy.Principal{}, nil},
		"root": {
			policy.Principal{Username: "root"},
			[]string{"mine/a/1", "mine/b/1", "open/1", "secret/1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			command := *scanOf("*", nil)
			command.Principal = test.principal
			if keys, _ := scanAll(t, l.m, command, func() {}); !slices.Equal(keys, test.want) {
				t.Errorf("%q, want %q", keys, test.want)
			}
		})
	}
}

// A shortened page goes on after its last key.
func TestShortenedPageGoesOnAfterItsLastKey(t *testing.T) {
	l := newLeader(t)
	l.setAll("a", "b", "c")
	page := l.m.Read(scanOf("*", nil)).Page
	if page.First(3) != page {
		t.Error("a page that is short enough is changed")
	}
	short := page.First(2)
	rest := l.m.Read(scanOf("*", []byte(short.Next))).Page
	if !slices.Equal(short.Keys, []string{"a", "b"}) || !slices.Equal(rest.Keys, []string{"c"}) ||
		rest.Next != "" {
		t.Errorf("%+v, then %+v", short, rest)
	}
}

// If a later version puts a SCAN into the log by mistake, replicas must not diverge: it is an
// error, as is any command that the machine does not execute.
func TestScanInTheLogIsAnError(t *testing.T) {
	l := newLeader(t)
	if result := l.do(*scanOf("*", nil)); result.Code != CodeError || result.Error != ErrorSyntax {
		t.Errorf("%+v", result)
	}
}

// The keys may change between the pages. A key that exists throughout the scan is found, and no key
// is found twice. The keys are in byte order. Each of them existed when its page was read. The
// state may be restored from a snapshot between the pages.
func TestScanIsCompleteWhileKeysChange(t *testing.T) {
	name := rapid.StringMatching(`[ab]{1,2}(/[0-9é]{1,3})?`)
	rapid.Check(t, func(t *rapid.T) {
		l := newLeader(t)
		l.setAll("a\xff", "\xc3") // never found
		present := make(map[string]bool)
		set := func(key string) {
			l.setAll(key)
			present[key] = true
		}
		for _, key := range rapid.SliceOfN(name, 0, 40).Draw(t, "keys") {
			set(key)
		}
		text := rapid.SampledFrom([]string{
			"*", "a*", "b/*", "?", "a/?", "*[0-5]", "[!a]*",
			"ab*é*",
		}).Draw(t, "pattern")
		pattern, err := glob.Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		throughout := maps.Clone(present)
		var found []string
		command := scanOf(text, nil)
		for more := true; more; {
			result := l.m.Read(command)
			if result.Code != CodeKeys {
				t.Fatalf("%+v", result)
			}
			page := result.Page
			if len(page.Keys) > 0 {
				page = page.First(rapid.IntRange(1, len(page.Keys)).Draw(t, "page"))
			}
			for _, key := range page.Keys {
				if !present[key] || !pattern.Match(key) {
					t.Errorf("found %q, which is not there or does not match", key)
				}
			}
			found = append(found, page.Keys...)
			command.Value, more = []byte(page.Next), page.Next != ""
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				key := name.Draw(t, "key")
				if rapid.Bool().Draw(t, "delete") {
					l.do(Command{Kind: KindDel, Key: []byte(key)})
					delete(present, key)
					delete(throughout, key)
				} else {
					set(key)
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "restore") == 0 {
				replica := New()
				if err := replica.Restore(bytes.NewReader(l.snapshot())); err != nil {
					t.Fatal(err)
				}
				l.m = replica
			}
		}
		if !slices.IsSortedFunc(found, strings.Compare) ||
			len(slices.Compact(slices.Clone(found))) != len(found) {
			t.Errorf("not in order, or twice: %q", found)
		}
		for key := range throughout {
			if pattern.Match(key) && !slices.Contains(found, key) {
				t.Errorf("%q was there throughout, and was not found: %q", key, found)
			}
		}
	})
}

func BenchmarkScanPage(b *testing.B) {
	l := newLeader(b)
	for i := range 100_000 {
		l.apply(setOf(fmt.Sprintf("line/%d/station/%06d/temperature", i%10, i)))
	}
	for name, pattern := range map[string]string{
		"full": "*", "sparse": "line/*/station/99999?/*",
		"literal": "line/5/station/000005/temperature",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.m.Read(scanOf(pattern, nil))
			}
		})
	}
}
