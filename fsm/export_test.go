package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"holdfast/internal/glob"
)

// exportAll returns all keys of an export, page by page, and how many pages there were.
func exportAll(t fataler, m *Machine, pattern *glob.Pattern) (keys []KeyInfo, pages int) {
	t.Helper()
	for after := ""; ; {
		found, next := m.Export(pattern, after)
		pages++
		keys = append(keys, found...)
		if next == "" {
			return keys, pages
		}
		if next <= after {
			t.Fatalf("the page after %q goes on after %q", after, next)
		}
		after = next
	}
}

// An export has each key once, in byte order, with its value, version, time to live and fencing
// token. Expired keys are left out.
func TestExportHasEachKeyOnce(t *testing.T) {
	l := newLeader(t)
	l.do(l.set("plain", "v"))
	l.do(l.set("expiring", "w", ttl(1000)))
	l.do(l.set("gone", "x", ttl(10)))
	l.do(l.set("fenced", "", token(l.wall)))
	l.do(l.set("\xff\x00", "binary\xfe"))
	l.do(watching("w", "plain"))
	l.pass(100)
	keys, _ := exportAll(t, l.m, nil)
	var names []string
	for i := range keys {
		k := &keys[i]
		names = append(names, k.Key)
		if want := l.m.Read(&Command{Kind: KindGet, Key: []byte(k.Key)}); k.Value != string(
			want.Value) || k.Version != want.version.Timestamp("StateStore") || k.Watchers != nil {
			t.Errorf("%+v, and GET says %+v", k, want)
		}
		if expires := k.Key == "expiring"; expires != (k.TTL >= 0) || expires &&
			(k.TTL < 850 || k.TTL > 950) || (k.Key == "fenced") != (k.Token != nil) {
			t.Errorf("%+v", k)
		}
	}
	if want := []string{"expiring", "fenced", "plain", "\xff\x00"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// A page is bounded by the number of keys and their bytes, and by the keys that it looks at. One
// key may be larger than a page.
func TestExportPagesAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		keys, size, pages int
		pattern           string
	}{
		"number of keys":  {2500, 1, 3, ""},
		"bytes":           {10, 300 << 10, 4, ""},
		"large values":    {3, 2 << 20, 3, ""},
		"keys looked at":  {25_000, 1, 3, "*-none"},
		"none":            {0, 1, 1, ""},
		"behind a prefix": {2500, 1, 1, "k0000[0-4]*"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.configure(func(s *Settings) {
				s.Limits.ValueBytes, s.Limits.TotalBytes,
					s.Limits.Keys = 4<<20, 1<<30, 1<<20
			})
			value := strings.Repeat("v", test.size)
			for from := 0; from < test.keys; from += 1000 {
				var commands []Command
				for i := from; i < min(from+1000, test.keys); i++ {
					commands = append(commands, l.set(fmt.Sprintf("k%06d", i), value))
				}
				l.apply(commands...)
			}
			var pattern *glob.Pattern
			if test.pattern != "" {
				var err error
				if pattern, err = glob.Compile(test.pattern); err != nil {
					t.Fatal(err)
				}
			}
			want := 0
			for i := range test.keys {
				if pattern == nil || pattern.Match(fmt.Sprintf("k%06d", i)) {
					want++
				}
			}
			if keys, pages := exportAll(t, l.m, pattern); len(keys) != want || pages != test.pages {
				t.Errorf("%d keys in %d pages, want %d in %d", len(keys), pages, want, test.pages)
			}
		})
	}
}

// For every pattern, an export has the keys that a SCAN of an unrestricted client has. Neither has
// a key that is not valid UTF-8.
func TestExportMatchesScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLeader(t)
		for _, key := range rapid.SliceOfN(rapid.StringMatching(`[ab/]{1,4}`), 0, 20).Draw(t,
			"keys") {
			l.do(l.set(key, "v"))
		}
		l.do(l.set("a\xff", "v"))
		pattern := rapid.StringMatching(`[ab/*?]{1,5}`).Draw(t, "pattern")
		compiled, err := glob.Compile(pattern)
		if err != nil {
			t.Skip(err)
		}
		scanned, _ := scanAll(t, l.m, *scanOf(pattern, nil), func() {})
		keys, _ := exportAll(t, l.m, compiled)
		var exported []string
		for i := range keys {
			exported = append(exported, keys[i].Key)
		}
		if !slices.Equal(scanned, exported) {
			t.Fatalf("%q: SCAN %q, export %q", pattern, scanned, exported)
		}
	})
}
