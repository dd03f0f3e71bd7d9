// Package policy decides who may do what with which keys. It is pure: a compiled Policy is
// immutable, and the same question has the same answer on every replica. Reading policy files is
// the business of package policyfile.
package policy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
)

// Access is what a command does to a key.
type Access uint8

// The kinds of access. ReadWrite is both in one.
const (
	Read      Access = 1
	Write     Access = 2
	ReadWrite Access = Read | Write
)

// Attribute is a property of a principal that its broker vouches for.
type Attribute struct{ Name, Value string }

// Principal identifies the client that sends a request. An unknown field is empty, and matches no
// pattern.
type Principal struct {
	ClientID   string
	Username   string
	Attributes []Attribute
}

// KeyType says how the keys of a resource are written.
type KeyType uint8

// The key types.
const (
	// a glob; {principal.clientId} and {principal.username} stand for the principal's own
	Pattern KeyType = iota
	String          // the key itself
	Binary          // the key in standard base64
)

// Resource is a set of keys, and the access to them that a rule grants.
type Resource struct {
	Access  Access
	KeyType KeyType
	Keys    []string
}

// Rule grants its resources to its principals: those that match an entry of any of the first three
// lists. A rule without any principals grants nothing. An entry of Attributes matches each
// principal that has all attributes of the entry.
type Rule struct {
	ClientIDs  []string // globs
	Usernames  []string // globs
	Attributes [][]Attribute
	Resources  []Resource
}

// Policy is a compiled list of rules. What no rule allows is denied.
type Policy struct {
	rules    []Rule
	compiled []compiledRule
}

type compiledRule struct {
	clientIDs, usernames []glob
	attributes           [][]Attribute
	resources            []compiledResource
}

type compiledResource struct {
	access Access
	globs  []glob
	keys   map[string]struct{}
}

// ErrInvalid is wrapped by every error of Compile.
var ErrInvalid = errors.New("invalid policy")

// Compile checks the rules and compiles them into a policy. The policy keeps them: the caller must
// not change them. A policy without rules denies everything.
func Compile(rules []Rule) (*Policy, error) {
	policy := &Policy{rules: rules}
	for i, rule := range rules {
		compiled, err := compileRule(rule)
		if err != nil {
			return nil, fmt.Errorf("%w: rule %d: %w", ErrInvalid, i+1, err)
		}
		policy.compiled = append(policy.compiled, compiled)
	}
	return policy, nil
}

func compileRule(rule Rule) (compiledRule, error) {
	compiled := compiledRule{attributes: rule.Attributes}
	var err error
	if compiled.clientIDs, err = compileGlobs(rule.ClientIDs, false); err != nil {
		return compiledRule{}, fmt.Errorf("client id %w", err)
	}
	if compiled.usernames, err = compileGlobs(rule.Usernames, false); err != nil {
		return compiledRule{}, fmt.Errorf("user name %w", err)
	}
	for _, attributes := range rule.Attributes {
		if len(attributes) == 0 {
			return compiledRule{},
				errors.New("an entry of attributes names no attribute, which would mean everybody")
		}
	}
	for i, resource := range rule.Resources {
		r := compiledResource{access: resource.Access}
		if resource.Access == 0 || resource.Access&^ReadWrite != 0 {
			return compiledRule{},
				fmt.Errorf("resource %d: the access is none of Read, Write, ReadWrite", i+1)
		}
		switch resource.KeyType {
		case Pattern:
			if r.globs, err = compileGlobs(resource.Keys, true); err != nil {
				return compiledRule{}, fmt.Errorf("resource %d: key %w", i+1, err)
			}
		case String, Binary:
			if r.keys, err = exactKeys(resource); err != nil {
				return compiledRule{}, fmt.Errorf("resource %d: %w", i+1, err)
			}
		default:
			return compiledRule{},
				fmt.Errorf("resource %d: the key type is none of Pattern, String, Binary", i+1)
		}
		compiled.resources = append(compiled.resources, r)
	}
	return compiled, nil
}

func exactKeys(resource Resource) (map[string]struct{}, error) {
	keys := make(map[string]struct{}, len(resource.Keys))
	for _, key := range resource.Keys {
		if resource.KeyType == Binary {
			decoded, err := base64.StdEncoding.DecodeString(key)
			if err != nil {
				return nil, fmt.Errorf("key %q is no base64: %w", key, err)
			}
			key = string(decoded)
		}
		keys[key] = struct{}{}
	}
	return keys, nil
}

// Rules returns the rules that the policy was compiled from. The caller must not change them.
func (p *Policy) Rules() []Rule { return p.rules }

// FirstRule returns the number, from 1 on, of the first rule by which the principal may access the
// key, and 0 when none allows it.
func (p *Policy) FirstRule(principal *Principal, access Access, key []byte) int {
	for i := range p.compiled {
		rule := &p.compiled[i]
		if rule.appliesTo(principal) && rule.grants(principal, access, key) {
			return i + 1
		}
	}
	return 0
}

// Grants are what a policy allows a principal. They are immutable, and keep the pointer to the
// principal, which must not change while they are in use.
type Grants struct {
	principal *Principal
	access    Access
	rules     []*compiledRule
}

// Grants returns what the policy allows the principal. It is for checks of many keys: FirstRule
// would match the principal anew for each key.
func (p *Policy) Grants(principal *Principal, access Access) Grants {
	grants := Grants{principal: principal, access: access}
	for i := range p.compiled {
		if p.compiled[i].appliesTo(principal) {
			grants.rules = append(grants.rules, &p.compiled[i])
		}
	}
	return grants
}

// Allow reports whether the principal may access the key.
func (g *Grants) Allow(key []byte) bool {
	return slices.ContainsFunc(g.rules,
		func(r *compiledRule) bool { return r.grants(g.principal, g.access, key) })
}

// Steps returns how many comparisons of up to 16 bytes Allow makes at most for each byte of a key.
// The state machine bounds the cost of an entry by it, so all replicas must compute the same: what
// Steps returns may change only with a new log version (fsm.Version).
func (g *Grants) Steps() (steps int) {
	const bytesPerComparison = 16
	for _, rule := range g.rules {
		for i := range rule.resources {
			steps++
			for _, pattern := range rule.resources[i].globs {
				for j := range pattern {
					steps += 1 + len(pattern[j].ranges) +
						len(pattern[j].literal(g.principal))/bytesPerComparison
				}
			}
		}
	}
	return steps
}

func (r *compiledRule) appliesTo(principal *Principal) bool {
	if principal.ClientID != "" && matchesAny(r.clientIDs, []byte(principal.ClientID), principal) {
		return true
	}
	if principal.Username != "" && matchesAny(r.usernames, []byte(principal.Username), principal) {
		return true
	}
	return slices.ContainsFunc(r.attributes, func(wanted []Attribute) bool {
		for _, attribute := range wanted {
			if !slices.Contains(principal.Attributes, attribute) {
				return false
			}
		}
		return true
	})
}

func (r *compiledRule) grants(principal *Principal, access Access, key []byte) bool {
	for i := range r.resources {
		resource := &r.resources[i]
		if resource.access&access != access {
			continue
		}
		if _, ok := resource.keys[string(key)]; ok || matchesAny(resource.globs, key, principal) {
			return true
		}
	}
	return false
}

func matchesAny(globs []glob, text []byte, principal *Principal) bool {
	return slices.ContainsFunc(globs, func(g glob) bool { return g.matches(text, principal) })
}
