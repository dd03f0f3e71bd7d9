package glob

import (
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestPatternsMatchAsDocumented(t *testing.T) {
	for _, test := range []struct {
		pattern string
		matches []string
		others  []string
	}{
		{"a", []string{"a"}, []string{"", "b", "aa"}},
		{"*", []string{"", "a", "a/b/c", "日本"}, []string{"\xff", "a\xc3"}},
		{"a*", []string{"a", "ab", "a/b"}, []string{"", "ba"}},
		{"*a", []string{"a", "ba", "aa"}, []string{"ab"}},
		{"a*a", []string{"aa", "aba"}, []string{"a", "ab"}},
		{"**", []string{"", "x"}, nil},
		{"a**b*", []string{"ab", "axbx"}, []string{"a", "ba"}},
		{
			"line/*/temperature",
			[]string{"line/7/temperature", "line/7/b/temperature", "line//temperature"},
			[]string{"line/temperature"},
		},
		{"?", []string{"a", "é", "日", "/"}, []string{"", "ab"}},
		{"a?c", []string{"abc", "a/c", "aéc"}, []string{"ac", "abbc"}},
		{"*?x", []string{"ax", "日x", "axx"}, []string{"x"}},
		{"[abc]", []string{"a", "c"}, []string{"d", "ab", ""}},
		{"[a-c]x", []string{"ax", "cx"}, []string{"dx", "x"}},
		{"[!a-c]", []string{"d", "é"}, []string{"a", "c", "", "dd"}},
		{"[а-я]*", []string{"ж", "жx"}, []string{"x"}},
		{"[*]", []string{"*"}, []string{"a", ""}},
		{"[?]", []string{"?"}, []string{"a"}},
		{"[[]", []string{"["}, []string{"a"}},
		{"a[*]*", []string{"a*", "a*b"}, []string{"ab"}},
		{"[a-]", []string{"a", "-"}, []string{"b"}},
		{"[-a]", []string{"a", "-"}, []string{"b"}},
		{"[a!]", []string{"a", "!"}, []string{"b"}},
		{"[^a]", []string{"^", "a"}, []string{"b"}},
		{"[]]", []string{"]"}, []string{"a", "", "[]"}},
		{"[!]]", []string{"a", "["}, []string{"]", ""}},
		{"[]a]x", []string{"]x", "ax"}, []string{"bx"}},
		{"[]-_]", []string{"]", "^", "_"}, []string{"a", "["}},
		{"[z-a]", nil, []string{"a", "z", "m", ""}},
		{"[z-ab]", []string{"b"}, []string{"a", "z"}},
		{"[!z-a]", []string{"a", "z"}, []string{""}},
		{"x[z-a]*", nil, []string{"x", "xa"}},
		{"a]", []string{"a]"}, []string{"a"}},
		{"*[0-9]?[0-9]*z", []string{"1x1z", "a1x2bz"}, []string{"11z", "1x1"}},
		{"a\xff*", nil, []string{"a\xff", "a", "ab"}},
	} {
		t.Run(test.pattern, func(t *testing.T) {
			p, err := Compile(test.pattern)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range test.matches {
				if !p.Match(key) {
					t.Errorf("does not match %q", key)
				}
			}
			for _, key := range test.others {
				if p.Match(key) {
					t.Errorf("matches %q", key)
				}
			}
		})
	}
}

func TestMalformedPatternsAreRejected(t *testing.T) {
	for _, pattern := range []string{
		"", "[", "a[", "[a", "[!", "[]", "[!]", "[a-", "[]a", "[!]a",
		"x[a-z",
	} {
		t.Run(pattern, func(t *testing.T) {
			if _, err := Compile(pattern); err != ErrSyntax {
				t.Errorf("%v", err)
			}
		})
	}
}

// A search for literal text agrees with strings.Index, also where it takes another way.
func TestIndexFindsTheFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alphabet := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 6000, -1)
		text := alphabet.Draw(t, "text")
		literal := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 40, -1).Draw(t, "literal")
		if at := rapid.IntRange(0, len(text)).Draw(t, "at"); rapid.Bool().Draw(t, "inside") {
			literal = text[at:min(at+1000, len(text))]
		}
		if got, want := index(text, literal), strings.Index(text, literal); got != want {
			t.Fatalf("%d, want %d", got, want)
		}
	})
}

// † Matching takes time that grows with the key, and not with the product of key and pattern:
// aaaa…b is the worst case for a plain search.
func TestRepetitiveTextIsMatchedInLinearTime(t *testing.T) {
	key := strings.Repeat("a", MaxWatchedKey)
	p, err := Compile("*" + strings.Repeat("a", MaxSize/2) + "b*")
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 200
	began := time.Now()
	for range rounds {
		if p.Match(key) {
			t.Fatal("it matches")
		}
	}
	if each := time.Since(began) / rounds; each > time.Millisecond {
		// 0.02 ms, with the race detector 0.1
		t.Errorf("a match takes %v", each)
	}
}

func TestLongPatternIsRefusedAtOnce(t *testing.T) {
	began := time.Now()
	if _, err := Compile(strings.Repeat("k", 16<<20)); err != ErrTooLong {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("it took %v", took)
	}
	if _, err := Compile(strings.Repeat("k", MaxSize)); err != nil {
		t.Errorf("the longest pattern: %v", err)
	}
}

// A compiled pattern takes at most five times MaxSize bytes: the store keeps thousands of patterns.
func TestCompiledPatternIsSmall(t *testing.T) {
	const patterns, most = 1000, 5 * MaxSize
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	for _, text := range []string{
		strings.Repeat("*a", MaxSize/2), strings.Repeat("a", MaxSize),
		strings.Repeat("[*]b*", MaxSize/5),
	} {
		t.Run(text[:5], func(t *testing.T) {
			compiled := make([]*Pattern, patterns)
			before := heap()
			for i := range compiled {
				var err error
				if compiled[i], err = Compile(text); err != nil {
					t.Fatal(err)
				}
			}
			if each := (heap() - before) / patterns; each > most {
				t.Errorf("%d bytes, want at most %d", each, most)
			}
			runtime.KeepAlive(compiled)
		})
	}
}

// Steps counts each comparison of a character, also those with each range of a class.
func TestStepsCountRanges(t *testing.T) {
	for pattern, want := range map[string]int{
		"abc*": 11, "a?c*": 11 + 3, "a?c*b[xy]": 11 + 3 + 3,
		"*[a-cx-z]?*": 11, "*[a-é]?*": 11, "*[a-éö]?[ü]*": 33, "[!abcde]": 11 + 5,
	} {
		t.Run(pattern, func(t *testing.T) {
			if p, err := Compile(pattern); err != nil || p.Steps(10) != want {
				t.Errorf("%d steps, %v", p.Steps(10), err)
			}
		})
	}
}

// † A pattern has the weight 1, so that a client may have a thousand. A comparison with what is
// beyond ASCII weighs 8 between two stars, and so does each comparison there that no search makes.
// At the ends a comparison weighs 1/100.
func TestWeightCountsWildcardsBetweenStars(t *testing.T) {
	for pattern, want := range map[string]int{
		"abc": 1, "a*b*c*": 1, "a?*[xy]": 1, "*?*": 1, "*[!a]*": 1, "*a?*": 1, "*[ab]??*": 1,
		"lines/*/st00?/x*": 1, "*é?*": 8, "*[a-éö]?*": 16,
		strings.Repeat("*?", 9) + "*": 8, "*" + strings.Repeat("?", 64) + "*": 1, "*" +
			strings.Repeat("?", 65) + "*": 8 * 65,
		"\xff*?*": 1, strings.Repeat("?", 99) + "*": 1, strings.Repeat("?", 1000) + "*a*": 10,
	} {
		t.Run(pattern, func(t *testing.T) {
			if p, err := Compile(pattern); err != nil || p.Weight() != want {
				t.Errorf("%d, %v", p.Weight(), err)
			}
		})
	}
}

func TestPrefixIsTheLiteralBeginning(t *testing.T) {
	for pattern, want := range map[string]string{
		"*": "", "abc": "abc", "ab*": "ab", "a?c": "a", "a[*]b*": "a*b", "a[bc]": "a", "日*": "日",
		"[!a]b": "", "ab[c]?": "abc",
	} {
		t.Run(pattern, func(t *testing.T) {
			p, err := Compile(pattern)
			if err != nil || p.Prefix() != want {
				t.Errorf("%q, %v", p.Prefix(), err)
			}
		})
	}
}

// Matching is not exponential: Steps is at most about MaxSize for each byte of the key. The time
// limit leaves room for slow machines.
func TestMatchDoesNotExplode(t *testing.T) {
	key := strings.Repeat("a", 64<<10)
	for _, pattern := range []string{strings.Repeat("a*", 500) + "b", strings.Repeat("*a", 500) +
		"b", "*" + strings.Repeat("?a", 500) + "b*", "*[" + strings.Repeat("b", 1020) + "]*"} {
		t.Run(pattern, func(t *testing.T) {
			p, err := Compile(pattern)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if p.Match(key) {
				t.Errorf("%.20q… matches", pattern)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("%.20q… took %v", pattern, took)
			}
		})
	}
}

// matches is the definition of the pattern language, without a thought of speed.
func matches(pattern, key []rune) bool {
	if len(pattern) == 0 {
		return len(key) == 0
	}
	switch {
	case pattern[0] == '*':
		return matches(pattern[1:], key) || len(key) > 0 && matches(pattern, key[1:])
	case len(key) == 0:
		return false
	case pattern[0] == '?':
		return matches(pattern[1:], key[1:])
	case pattern[0] != '[':
		return pattern[0] == key[0] && matches(pattern[1:], key[1:])
	}
	rest := pattern[1:]
	negated := rest[0] == '!'
	if negated {
		rest = rest[1:]
	}
	in := false
	for rest[0] != ']' {
		low, high := rest[0], rest[0]
		rest = rest[1:]
		if rest[0] == '-' && rest[1] != ']' {
			high, rest = rest[1], rest[2:]
		}
		in = in || low <= key[0] && key[0] <= high
	}
	return in != negated && matches(rest[1:], key[1:])
}

func TestMatchAgainstTheDefinition(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		"*", "?", "a", "b", "é", "/", "[ab]", "[!a]", "[a-é]",
		"[*]", "]", "-",
	})
	text := rapid.SampledFrom([]string{"a", "b", "é", "/", "*", "]", "-", "日"})
	rapid.Check(t, func(t *rapid.T) {
		pattern := strings.Join(rapid.SliceOfN(piece, 1, 8).Draw(t, "pattern"), "")
		key := strings.Join(rapid.SliceOfN(text, 0, 8).Draw(t, "key"), "")
		p, err := Compile(pattern)
		if err != nil {
			t.Fatal(err)
		}
		want := matches([]rune(pattern), []rune(key))
		if p.Match(key) != want {
			t.Fatalf("%q matches %q: %v, want %v", pattern, key, !want, want)
		}
		if want && !strings.HasPrefix(key, p.Prefix()) {
			t.Fatalf("%q matches %q, which does not begin with %q", pattern, key, p.Prefix())
		}
	})
}

func FuzzCompile(f *testing.F) {
	for _, pattern := range []string{"a*[b-d]?", "[", "[!]", "[a-", "\xff*", "[\xff]"} {
		f.Add(pattern, "abc")
	}
	f.Fuzz(func(t *testing.T, pattern, key string) {
		p, err := Compile(pattern)
		if err != nil {
			return
		}
		if p.Match(key) && (!utf8.ValidString(key) || !strings.HasPrefix(key, p.Prefix())) {
			t.Fatalf("%q matches %q", pattern, key)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	for name, pattern := range map[string]string{
		"prefix": "line/*", "infix": "line/*/temperature",
		"class": "line/[0-9]*/t?mp*",
	} {
		b.Run(name, func(b *testing.B) {
			p, err := Compile(pattern)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				p.Match("line/7/station/12/temperature")
			}
		})
	}
}

// A search finds what comparing at each place finds.
func TestSearchFindsTheFirst(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		"?", "a", "b", "é", "日", "[ab]", "[!a]", "[!é]", "[a-é]",
		"[é-日]", "[b日]", "[!b-é]",
	})
	text := rapid.SampledFrom([]string{"a", "b", "é", "日", "c"})
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOfN(piece, 1,
			rapid.SampledFrom([]int{1, 3, 8, maxSearched}).Draw(t, "most")).Draw(t, "segment")
		p, err := Compile("*?" + strings.Join(pieces[1:], "") + "*")
		if err != nil {
			t.Fatal(err)
		}
		s := p.segment(1)
		if len(p.searches) != 1 || len(s.elements) != len(pieces) {
			t.Fatalf("%d searches for %d elements", len(p.searches), len(s.elements))
		}
		in := strings.Join(rapid.SliceOfN(text, 0, 80).Draw(t, "text"), "")
		rest, found := p.searches[0].find(in, s.elements)
		if wantRest, want := s.find(in); found != want || rest != wantRest {
			t.Fatalf("%q in %q: %q, %t; want %q, %t", pieces, in, rest, found, wantRest, want)
		}
	})
}
