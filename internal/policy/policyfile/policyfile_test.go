package policyfile

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"holdfast/internal/policy"
)

func TestPolicyFileHoldsOneRuleOrAList(t *testing.T) {
	single := `
principals: {clientIds: ["line-*"], usernames: [u], attributes: [{site: a, role: b}]}
stateStoreResources:
  - {method: Read, keyType: Pattern, keys: ["n[0-9]"]}
  - {method: ReadWrite, keyType: Binary, keys: ["AP8="]}
  - {method: Write, keyType: String, keys: ["*"]}
`
	list := "rules:\n- " + strings.ReplaceAll(strings.TrimSpace(single), "\n", "\n  ")
	for name, text := range map[string]string{"one rule": single, "list": list} {
		t.Run(name, func(t *testing.T) {
			parsed, err := Parse([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			for _, who := range []policy.Principal{
				{ClientID: "line-1"},
				{Username: "u"},
				{Attributes: []policy.Attribute{
					{Name: "role", Value: "b"},
					{Name: "site", Value: "a"},
				}},
			} {
				if parsed.FirstRule(&who, policy.Read, []byte("n7")) == 0 ||
					parsed.FirstRule(&who, policy.Write, []byte("\x00\xff")) == 0 ||
					parsed.FirstRule(&who, policy.Write, []byte("n7")) != 0 {
					t.Errorf("%+v", who)
				}
			}
		})
	}
	for name, text := range map[string]string{
		"no rules":      "rules: []",
		"no principals": "principals: {clientIds: []}\nstateStoreResources: [{method: Read, keys: ['*']}]",
		"no resources":  "principals: {clientIds: [x]}\nstateStoreResources: []",
	} {
		t.Run("an empty list revokes: "+name, func(t *testing.T) {
			none, err := Parse([]byte(text))
			if err != nil || none.FirstRule(&policy.Principal{ClientID: "x"}, policy.Read,
				[]byte("k")) != 0 {
				t.Errorf("%v", err)
			}
		})
	}
}

// A file that is not a policy, or has a rule that allows nothing, is refused, and the error says
// what is wrong.
func TestInvalidPolicyFileIsRefused(t *testing.T) {
	for name, test := range map[string]struct{ text, why string }{
		"empty file":           {"", "would deny everything"},
		"empty document":       {"{}", "would deny everything"},
		"rules without a list": {"rules:", "would deny everything"},
		"misspelt rules":       {"rule: []", "field rule not found"},
		"misspelt principals": {
			"rules: [{principals: {clientId: [a]}}]",
			"field clientId not found",
		},
		"two documents":         {"rules: []\n---\nrules: []", "more than one YAML document"},
		"no YAML":               {"[oops", "yaml"},
		"rule without anything": {"rules: [{}]", "rule 1: principals are missing"},
		"no resources": {
			"principals: {clientIds: [a]}",
			"rule 1: stateStoreResources are missing",
		},
		"no resources in a list": {
			"rules: [{principals: {clientIds: [a]}}]",
			"rule 1: stateStoreResources are missing",
		},
		"no principals": {
			"stateStoreResources: [{method: Read, keys: [k]}]",
			"rule 1: principals are missing",
		},
		"no keys": {rulesFor("{method: Read}"), "resource 1: keys are missing"},
		"unknown method": {
			rulesFor("{method: read, keys: [k]}"),
			"must be Read, Write or ReadWrite",
		},
		"unknown key type": {
			rulesFor("{method: Read, keyType: Glob, keys: [k]}"),
			"must be Pattern, String or Binary",
		},
		"malformed pattern": {rulesFor("{method: Read, keys: ['[']}"), "without its"},
		"malformed base64": {
			rulesFor("{method: Read, keyType: Binary, keys: ['!']}"),
			"base64",
		},
		"rule and list": {rulesFor("{method: Read, keys: [k]}") +
			"\nprincipals: {clientIds: [a]}", "exclude each other"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse([]byte(test.text)); !errors.Is(err, ErrInvalid) ||
				!strings.Contains(err.Error(), test.why) {
				t.Errorf("%v, want %q", err, test.why)
			}
		})
	}
}

// rulesFor returns a policy file in which one client has a resource.
func rulesFor(resource string) string {
	return "rules: [{principals: {clientIds: [a]}, stateStoreResources: [" + resource + "]}]"
}

// The policy in the operator's manual works when it is pasted.
func TestPolicyOfTheManualIsValid(t *testing.T) {
	manual, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(manual), "## Authorization\n")
	_, text, begins := strings.Cut(text, "    rules:\n")
	text, _, ends := strings.Cut(text, "\n\n")
	if !found || !begins || !ends {
		t.Fatal("the manual has no policy")
	}
	parsed, err := Parse([]byte("    rules:\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	if parsed.FirstRule(&policy.Principal{ClientID: "line-1"}, policy.Read, []byte("n7")) != 1 {
		t.Error("line-1 may not read n7")
	}
}

// readSettled returns a content only when two reads in a row have found it: the file may be
// half-written.
func TestContentIsReadUntilItIsSettled(t *testing.T) {
	for name, test := range map[string]struct {
		reads []string
		want  string
		err   error
	}{
		"settled":           {reads: []string{"whole", "whole"}, want: "whole"},
		"being written":     {reads: []string{"", "half", "whole", "whole"}, want: "whole"},
		"empty":             {reads: []string{"", ""}},
		"never the same":    {err: errChanging},
		"removed meanwhile": {reads: []string{"whole"}, err: os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			got, err := readSettled(func() ([]byte, error) {
				reads++
				switch {
				case test.err == errChanging:
					return fmt.Append(nil, reads), nil
				case reads > len(test.reads):
					return nil, os.ErrNotExist
				}
				return []byte(test.reads[reads-1]), nil
			}, func() {})
			if string(got) != test.want || !errors.Is(err, test.err) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
