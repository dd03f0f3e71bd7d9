package policy

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPolicyPatternsMatchKeys(t *testing.T) {
	// a token such as {principal.clientId} matches this text literally: the star is no wildcard
	principal := &Principal{ClientID: "line-*", Username: "u"}
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"n[0-9]", "n7", true},
		{"n[0-9]", "n77", false},
		{"n[0-9]", "nx", false},
		{"*", "", true},
		{"*", "a/b\x00", true},
		{"", "", true},
		{"", "a", false},
		{"a*b*c", "a/x/b/y/bc", true},
		{"a*b*c", "acb", false},
		{"?", "ä", false},
		{"??", "ä", true},
		{"[!a]", "b", true},
		{"[^a]", "a", false},
		{"[]a]", "]", true},
		{"[a-]", "-", true},
		{"[[]x", "[x", true},
		{"{x}*", "{x}y", true},
		{"clients/{principal.clientId}/*", "clients/line-*/x", true},
		{"clients/{principal.clientId}/*", "clients/line-1/x", false},
		{"*{principal.username}", "uu", true},
	} {
		t.Run(test.pattern, func(t *testing.T) {
			g, err := compileGlob(test.pattern, true)
			if err != nil || g.matches([]byte(test.text), principal) != test.want {
				t.Errorf("%q on %q: want %v, error %v", test.pattern, test.text, test.want, err)
			}
		})
	}
	if g, _ := compileGlob("{principal.clientId}*", true); g.matches([]byte("x"), &Principal{}) {
		t.Error("the token of an unknown client matches the empty text")
	}
	for _, pattern := range []string{"[", "[a", "[]", "[z-a]", "{principal.x}", "{principal."} {
		t.Run(pattern, func(t *testing.T) {
			if _, err := compileGlob(pattern, true); err == nil {
				t.Errorf("%q compiles", pattern)
			}
		})
	}
}

// path.Match is an independent model of the patterns, for texts without a slash: a star of
// path.Match does not match a slash.
func TestGlobAgainstPathMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`([ab*?]|\[ab\]|\[a-b\]|\[\^a\])*`).Draw(t, "pattern")
		text := rapid.StringMatching(`[abc]*`).Draw(t, "text")
		g, err := compileGlob(pattern, false)
		want, wantErr := path.Match(pattern, text)
		if err != nil || wantErr != nil || g.matches([]byte(text), &Principal{}) != want {
			t.Fatalf("%q on %q: want %v; %v, %v", pattern, text, want, err, wantErr)
		}
	})
}

func TestGlobIsNotExponential(t *testing.T) {
	g, _ := compileGlob(strings.Repeat("a*", 50)+"b", false)
	start := time.Now()
	if g.matches([]byte(strings.Repeat("a", 4000)), &Principal{}) ||
		time.Since(start) > time.Second {
		t.Fatalf("took %v", time.Since(start))
	}
}

func TestPolicyAllowsByRule(t *testing.T) {
	policy, err := Compile([]Rule{
		{
			ClientIDs: []string{"line-*"},
			Resources: []Resource{
				{Read, Pattern, []string{"n[0-9]", "clients/{principal.clientId}/*"}},
				{ReadWrite, Binary, []string{"AP8="}},
				{Write, String, []string{"*"}},
			},
		},
		{Usernames: []string{"admin"}, Resources: []Resource{{ReadWrite, Pattern, []string{"*"}}}},
		{
			Attributes: [][]Attribute{{{"site", "a"}, {"role", "op"}}},
			Resources:  []Resource{{Read, String, []string{"s"}}},
		},
		{Resources: []Resource{{ReadWrite, Pattern, []string{"*"}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	line := Principal{ClientID: "line-1"}
	for _, test := range []struct {
		principal Principal
		access    Access
		key       string
		want      bool
	}{
		{line, Read, "n1", true},
		{line, Write, "n1", false},
		{line, ReadWrite, "n1", false},
		{line, Read, "clients/line-1/x", true},
		{line, Read, "clients/line-2/x", false},
		{line, Write, "\x00\xff", true},
		{line, Write, "*", true},
		{line, Write, "x", false},
		{Principal{}, Read, "n1", false},
		{Principal{ClientID: "admin"}, Read, "x", false},
		{Principal{Username: "admin"}, ReadWrite, "x", true},
		{Principal{Attributes: []Attribute{{"site", "a"}}}, Read, "s", false},
		{Principal{Attributes: []Attribute{{"role", "op"}, {"site", "a"}}}, Read, "s", true},
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			if got := policy.FirstRule(&test.principal, test.access,
				[]byte(test.key)) != 0; got != test.want {
				t.Errorf("%+v %d %q: %v", test.principal, test.access, test.key, got)
			}
			grants := policy.Grants(&test.principal, test.access)
			if got := grants.Allow([]byte(test.key)); got != test.want {
				t.Errorf("grants of %+v %d %q: %v", test.principal, test.access, test.key, got)
			}
		})
	}
}

// The steps of matching a key grow with the length of the client id or user name that a token
// stands for.
func TestMatchingStepsGrowWithTheClientID(t *testing.T) {
	policy, err := Compile([]Rule{{
		ClientIDs: []string{"*"},
		Resources: []Resource{{Read, Pattern, []string{"*{principal.clientId}/[ab]"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	steps := func(clientID string) int {
		grants := policy.Grants(&Principal{ClientID: clientID}, Read)
		return grants.Steps()
	}
	if short, long := steps("a"), steps(strings.Repeat("a", 16_000)); short != 7 || long != short+
		1000 {
		t.Errorf("%d and %d steps", short, long)
	}
}

func TestCompileRejectsInvalidRules(t *testing.T) {
	for name, rule := range map[string]Rule{
		"client id":              {ClientIDs: []string{"["}},
		"user name":              {Usernames: []string{"["}},
		"attributes without any": {Attributes: [][]Attribute{{}}},
		"no access":              {Resources: []Resource{{0, Pattern, nil}}},
		"unknown access":         {Resources: []Resource{{4, Pattern, nil}}},
		"pattern of keys":        {Resources: []Resource{{Read, Pattern, []string{"["}}}},
		"base64 of a binary key": {Resources: []Resource{{Read, Binary, []string{"!"}}}},
		"unknown type of a key":  {Resources: []Resource{{Read, 9, nil}}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Compile([]Rule{rule}); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v", rule, err)
			}
		})
	}
}
