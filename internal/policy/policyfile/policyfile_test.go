package policyfile

import (
	"errors"
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
	for _, text := range []string{single, list} {
		t.Run(text, func(t *testing.T) {
			parsed, err := Parse([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			for _, who := range []policy.Principal{{ClientID: "line-1"}, {Username: "u"}, {Attributes: []policy.Attribute{{Name: "role", Value: "b"}, {Name: "site", Value: "a"}}}} {
				if parsed.FirstRule(&who, policy.Read, []byte("n7")) == 0 || parsed.FirstRule(&who, policy.Write, []byte("\x00\xff")) == 0 || parsed.FirstRule(&who, policy.Write, []byte("n7")) != 0 {
					t.Errorf("%+v", who)
				}
			}
		})
	}
	none, err := Parse([]byte("rules: []"))
	if err != nil || none.FirstRule(&policy.Principal{ClientID: "x"}, policy.Read, []byte("k")) != 0 {
		t.Errorf("no rules: %v", err)
	}
}

func TestRuleWithoutResourcesIsNamed(t *testing.T) {
	if _, err := Parse([]byte("principals: {clientIds: [a]}")); err == nil || !strings.Contains(err.Error(), "stateStoreResources") {
		t.Error(err)
	}
}

// What could only deny everything by mistake is an error.
func TestPolicyThatDeniesEverythingByMistakeIsRejected(t *testing.T) {
	for _, text := range []string{
		"", "{}", "rules:", "principals: {clientIds: [a]}", "rule: []", "rules: []\n---\nrules: []",
		"rules: [{principals: {clientId: [a]}}]",
		"rules: [{stateStoreResources: [{method: Read}]}]",
		"rules: [{stateStoreResources: [{method: read, keys: [k]}]}]",
		"rules: [{stateStoreResources: [{method: Read, keyType: Glob, keys: [k]}]}]",
		"rules: [{stateStoreResources: [{method: Read, keys: ['[']}]}]",
		"rules: [{stateStoreResources: [{method: Read, keyType: Binary, keys: ['!']}]}]",
		"rules: [{}]\nprincipals: {clientIds: [a]}\nstateStoreResources: [{method: Read, keys: [k]}]",
		"[oops",
	} {
		t.Run(text, func(t *testing.T) {
			if _, err := Parse([]byte(text)); !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v", text, err)
			}
		})
	}
}
