package fsm

import (
	"fmt"

	"holdfast/internal/policy"
)

// DialectRule says in which dialect clients are answered.
type DialectRule uint8

// The dialect rules.
const (
	DialectRuleAuto       DialectRule = 0 // the one of the request
	DialectRuleDocumented DialectRule = 1
	DialectRuleSDK        DialectRule = 2
)

// Settings are what decides outcomes beside the commands themselves. They are replicated, so that a
// request has the same outcome whichever node leads. Until the first Configure, DefaultSettings are
// in force.
type Settings struct {
	Dialect         DialectRule
	CaseInsensitive bool // verbs and options are understood in lower case too
	Limits          Limits
	// TotalBytesAuto says that the leader sets Limits.TotalBytes by the memory of the members.
	TotalBytesAuto bool
	// milliseconds of cluster time after which a watch that was not renewed ends; 0 is never
	WatchTTL int64
	// NotificationExpiry is how long, in milliseconds, a notification is worth delivering.
	NotificationExpiry int64
	Policy             *policy.Policy // nil: authorization is off
	// Mirrors has at most MaxMirrors.
	Mirrors []Mirror
}

// Limits bound the state. 0 is no limit for Keys, TotalBytes, KeysPerClient, BytesPerClient and
// WatchesPerClient. Of the others, except DedupPerClient, 0 allows nothing.
type Limits struct {
	KeyBytes     int64 // of one key
	ValueBytes   int64 // of one value or expected value
	Keys         int64 // number of keys
	TotalBytes   int64 // of keys and values
	Watches      int64 // number of watches
	WatchBytes   int64 // of all watches: keys, patterns and principals
	DedupEntries int64 // number of remembered outcomes; a tenth is reserved for refusals
	// KeysPerClient and BytesPerClient bound what one Owner may have; 0 is no limit.
	KeysPerClient  int64
	BytesPerClient int64 // of keys and values
	// WatchesPerClient and DedupPerClient bound what one client id may have. WatchesPerClient 0 is
	// no limit. DedupPerClient is at most half of DedupEntries, and 0 means that half.
	WatchesPerClient int64
	DedupPerClient   int64 // number of remembered outcomes
	// UnpublishedNotifications and UnpublishedBytes bound the notifications above the delivery
	// watermark: their number and their bytes. Beyond a bound the oldest are dropped.
	UnpublishedNotifications int64
	UnpublishedBytes         int64
}

// DefaultSettings returns what is in force until a Configure is applied.
func DefaultSettings() Settings {
	return Settings{
		Limits: Limits{
			KeyBytes:                 64 << 10,
			ValueBytes:               4 << 20,
			TotalBytes:               1 << 30,
			Watches:                  100_000,
			WatchBytes:               64 << 20,
			DedupEntries:             8_000_000,
			UnpublishedNotifications: 1_000_000,
			UnpublishedBytes:         256 << 20,
		},
		NotificationExpiry: 30_000,
	}
}

// setSettings puts settings in force. configured says that they are not the default ones.
func (m *Machine) setSettings(settings Settings, configured bool) {
	m.settings, m.configured = settings, configured
	m.watches.setPolicy(settings.Policy)
	m.mirrors, _ = compileMirrors(settings.Mirrors) // they were checked when they were read
}

func (s *Settings) dialect(request Dialect) Dialect {
	switch s.Dialect {
	case DialectRuleDocumented:
		return Documented
	case DialectRuleSDK:
		return SDK
	default:
		return request
	}
}

func appendSettings(b []byte, s *Settings) []byte {
	b = appendUint(b, 1, uint64(s.Dialect))
	b = appendBool(b, 2, s.CaseInsensitive)
	b = appendUint(b, 3, uint64(s.Limits.KeyBytes))
	b = appendUint(b, 4, uint64(s.Limits.ValueBytes))
	b = appendUint(b, 5, uint64(s.Limits.Keys))
	b = appendUint(b, 6, uint64(s.Limits.TotalBytes))
	b = appendUint(b, 7, uint64(s.Limits.Watches))
	b = appendUint(b, 8, uint64(s.Limits.DedupEntries))
	b = appendUint(b, 9, uint64(s.WatchTTL))
	b = appendUint(b, 10, uint64(s.NotificationExpiry))
	b = appendUint(b, 11, uint64(s.Limits.UnpublishedNotifications))
	b = appendUint(b, 12, uint64(s.Limits.UnpublishedBytes))
	if s.Policy != nil {
		b = appendBool(b, 13, true)
		for _, rule := range s.Policy.Rules() {
			b = appendMessage(b, 14, func(b []byte) []byte { return appendRule(b, &rule) })
		}
	}
	b = appendUint(b, 15, uint64(s.Limits.WatchBytes))
	b = appendUint(b, 16, uint64(s.Limits.WatchesPerClient))
	b = appendUint(b, 17, uint64(s.Limits.DedupPerClient))
	for _, mirror := range s.Mirrors {
		b = appendMessage(b, 18,
			func(b []byte) []byte {
				return appendBytes(appendBytes(b, 1, mirror.Keys), 2,
					mirror.Topic)
			})
	}
	b = appendBool(b, 19, s.TotalBytesAuto)
	b = appendUint(b, 20, uint64(s.Limits.KeysPerClient))
	return appendUint(b, 21, uint64(s.Limits.BytesPerClient))
}

func (r *reader) settings() *Settings {
	s := &Settings{}
	var rules []policy.Rule
	hasPolicy := false
	inner := r.enter()
	for inner.next() {
		switch inner.field {
		case 1:
			s.Dialect = DialectRule(inner.small(uint64(DialectRuleSDK) + 1))
		case 2:
			s.CaseInsensitive = inner.bool()
		case 3:
			s.Limits.KeyBytes = inner.int()
		case 4:
			s.Limits.ValueBytes = inner.int()
		case 5:
			s.Limits.Keys = inner.int()
		case 6:
			s.Limits.TotalBytes = inner.int()
		case 7:
			s.Limits.Watches = inner.int()
		case 8:
			s.Limits.DedupEntries = inner.int()
		case 9:
			s.WatchTTL = inner.int()
		case 10:
			s.NotificationExpiry = inner.int()
		case 11:
			s.Limits.UnpublishedNotifications = inner.int()
		case 12:
			s.Limits.UnpublishedBytes = inner.int()
		case 13:
			hasPolicy = inner.bool()
		case 15:
			s.Limits.WatchBytes = inner.int()
		case 16:
			s.Limits.WatchesPerClient = inner.int()
		case 17:
			s.Limits.DedupPerClient = inner.int()
		case 18:
			s.Mirrors = append(s.Mirrors, inner.mirror())
		case 19:
			s.TotalBytesAuto = inner.bool()
		case 20:
			s.Limits.KeysPerClient = inner.int()
		case 21:
			s.Limits.BytesPerClient = inner.int()
		case 14:
			rules = append(rules, inner.rule())
		default:
			inner.unknown("Settings")
		}
	}
	if inner.err == nil && hasPolicy {
		var err error
		if s.Policy, err = policy.Compile(rules); err != nil {
			inner.fail(fmt.Errorf("%w: %w", ErrUnknown, err))
		}
	}
	if _, err := compileMirrors(s.Mirrors); err != nil {
		inner.fail(fmt.Errorf("%w: %w", ErrUnknown, err))
	}
	r.leave(&inner)
	return s
}

func (r *reader) mirror() (mirror Mirror) {
	inner := r.enter()
	for inner.next() {
		switch inner.field {
		case 1:
			mirror.Keys = inner.string()
		case 2:
			mirror.Topic = inner.string()
		default:
			inner.unknown("Mirror")
		}
	}
	r.leave(&inner)
	return mirror
}

func appendRule(b []byte, rule *policy.Rule) []byte {
	for _, pattern := range rule.ClientIDs {
		b = appendElement(b, 1, pattern)
	}
	for _, pattern := range rule.Usernames {
		b = appendElement(b, 2, pattern)
	}
	for _, attributes := range rule.Attributes {
		b = appendMessage(b, 3, func(b []byte) []byte { return appendAttributes(b, 1, attributes) })
	}
	for _, resource := range rule.Resources {
		b = appendMessage(b, 4, func(b []byte) []byte {
			b = appendUint(b, 1, uint64(resource.Access))
			b = appendUint(b, 2, uint64(resource.KeyType))
			for _, key := range resource.Keys {
				b = appendElement(b, 3, key)
			}
			return b
		})
	}
	return b
}

func (r *reader) rule() (rule policy.Rule) {
	inner := r.enter()
	for inner.next() {
		switch inner.field {
		case 1:
			rule.ClientIDs = append(rule.ClientIDs, inner.string())
		case 2:
			rule.Usernames = append(rule.Usernames, inner.string())
		case 3:
			rule.Attributes = append(rule.Attributes, inner.attributeSet())
		case 4:
			rule.Resources = append(rule.Resources, inner.resource())
		default:
			inner.unknown("Rule")
		}
	}
	r.leave(&inner)
	return rule
}

func (r *reader) attributeSet() (attributes []policy.Attribute) {
	inner := r.enter()
	for inner.next() {
		if inner.field != 1 {
			inner.unknown("AttributeSet")
			break
		}
		attributes = append(attributes, inner.attribute())
	}
	r.leave(&inner)
	return attributes
}

func (r *reader) resource() (resource policy.Resource) {
	inner := r.enter()
	for inner.next() {
		switch inner.field {
		case 1:
			resource.Access = policy.Access(inner.small(uint64(policy.ReadWrite) + 1))
		case 2:
			resource.KeyType = policy.KeyType(inner.small(uint64(policy.Binary) + 1))
		case 3:
			resource.Keys = append(resource.Keys, inner.string())
		default:
			inner.unknown("Resource")
		}
	}
	r.leave(&inner)
	return resource
}
