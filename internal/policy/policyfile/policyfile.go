// Package policyfile reads authorization policies from YAML.
package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"holdfast/internal/policy"
)

// document is a policy file: one rule, or a list of them under "rules".
type document struct {
	Rules []rule `yaml:"rules"`
	rule  `yaml:",inline"`
}

type rule struct {
	Principals          principals `yaml:"principals"`
	StateStoreResources []resource `yaml:"stateStoreResources"`
}

type principals struct {
	ClientIDs  []string            `yaml:"clientIds"`
	Usernames  []string            `yaml:"usernames"`
	Attributes []map[string]string `yaml:"attributes"`
}

type resource struct {
	Method  string   `yaml:"method"`
	KeyType string   `yaml:"keyType"`
	Keys    []string `yaml:"keys"`
}

// ErrInvalid is wrapped by every error about the content of a file.
var ErrInvalid = errors.New("invalid policy file")

// Read reads and compiles a policy file.
func Read(name string) (*policy.Policy, error) {
	data, err := readSettled(func() ([]byte, error) { return os.ReadFile(name) },
		func() { time.Sleep(100 * time.Millisecond) })
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	parsed, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return parsed, nil
}

// errChanging says that a file had another content at each read.
var errChanging = errors.New("the file changes all the time")

// readSettled reads a file until two reads in a row, with a pause between them, found the same
// content: a part of a file that is being written may be a valid policy.
func readSettled(read func() ([]byte, error), pause func()) ([]byte, error) {
	const attempts = 50
	var before []byte
	for range attempts {
		data, err := read()
		if err != nil {
			return nil, err
		}
		if before != nil && bytes.Equal(data, before) {
			return data, nil
		}
		before = data
		pause()
	}
	return nil, errChanging
}

// Parse compiles the content of a policy file. Unknown YAML keys are errors: a misspelt one would
// silently deny, or allow.
func Parse(data []byte) (*policy.Policy, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	var content document
	if err := decoder.Decode(&content); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the file is empty, which would deny everything; write 'rules: []' if that is meant")
		}
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := decoder.Decode(&document{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: there is more than one YAML document in the file", ErrInvalid)
	}
	sources := content.Rules
	switch single := content.hasPrincipals() || content.StateStoreResources != nil; {
	case single && sources != nil:
		return nil, fmt.Errorf("%w: a single rule and a list of rules exclude each other",
			ErrInvalid)
	case single:
		sources = []rule{content.rule}
	case sources == nil:
		return nil, fmt.Errorf(
			"%w: there are no rules, which would deny everything; write 'rules: []' if that is meant", ErrInvalid)
	}
	var rules []policy.Rule
	for i, source := range sources {
		converted, err := convert(source)
		if err != nil {
			return nil, fmt.Errorf("%w: rule %d: %w", ErrInvalid, i+1, err)
		}
		rules = append(rules, converted)
	}
	compiled, err := policy.Compile(rules)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return compiled, nil
}

func (r *rule) hasPrincipals() bool {
	return r.Principals.ClientIDs != nil || r.Principals.Usernames != nil ||
		r.Principals.Attributes != nil
}

// convert converts a rule. It refuses a rule without any list of principals, and one without a list
// of resources: it allows nothing, probably by mistake. A list that is present but empty is
// accepted: it revokes access on purpose.
func convert(source rule) (policy.Rule, error) {
	switch {
	case !source.hasPrincipals():
		return policy.Rule{}, errors.New("principals are missing: nobody gets access by it")
	case source.StateStoreResources == nil:
		return policy.Rule{}, errors.New(
			"stateStoreResources are missing: it gives access to nothing")
	}
	converted := policy.Rule{
		ClientIDs: source.Principals.ClientIDs,
		Usernames: source.Principals.Usernames,
	}
	for _, set := range source.Principals.Attributes {
		var attributes []policy.Attribute
		for name, value := range set {
			attributes = append(attributes, policy.Attribute{Name: name, Value: value})
		}
		slices.SortFunc(attributes,
			func(a, b policy.Attribute) int { return strings.Compare(a.Name, b.Name) })
		converted.Attributes = append(converted.Attributes, attributes)
	}
	for i, from := range source.StateStoreResources {
		if len(from.Keys) == 0 {
			return policy.Rule{}, fmt.Errorf("resource %d: keys are missing", i+1)
		}
		to := policy.Resource{Keys: from.Keys}
		switch from.Method {
		case "Read":
			to.Access = policy.Read
		case "Write":
			to.Access = policy.Write
		case "ReadWrite":
			to.Access = policy.ReadWrite
		default:
			return policy.Rule{},
				fmt.Errorf("resource %d: method is %q: must be Read, Write or ReadWrite", i+1,
					from.Method)
		}
		switch from.KeyType {
		case "", "Pattern":
			to.KeyType = policy.Pattern
		case "String":
			to.KeyType = policy.String
		case "Binary":
			to.KeyType = policy.Binary
		default:
			return policy.Rule{},
				fmt.Errorf("resource %d: keyType is %q: must be Pattern, String or Binary", i+1,
					from.KeyType)
		}
		converted.Resources = append(converted.Resources, to)
	}
	return converted, nil
}
