package offer

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"

	"holdfast/fsm"
)

// Offer is what a node wants the settings of the cluster to be.
type Offer struct {
	Settings fsm.Settings
	// KeepPolicy leaves the authorization policy in force as it is. Settings.Policy is then
	// ignored. It is true for a node without a policy file.
	KeepPolicy bool
}

// command returns the Configure command that replaces all settings by the offer's.
func (o *Offer) command() fsm.Command {
	settings := o.Settings
	return fsm.Command{Kind: fsm.KindConfigure, Settings: &settings, KeepPolicy: o.KeepPolicy}
}

// encode returns the request of MethodOffer: a log entry that has the offer's Configure command,
// and the set of changed parts as its Number.
func (o *Offer) encode(changed parts) []byte {
	return fsm.AppendEntry(nil,
		&fsm.Entry{Number: uint64(changed), Commands: []fsm.Command{o.command()}})
}

// parts is a set of parts of the settings. An offer replaces only the parts in its set. But a
// Configure command always carries all settings. So the leader, and not the member that offers,
// fills in the other parts: a member that is catching up would bring back older settings.
type parts uint64

const (
	policyPart   parts = 1 << iota // the policy
	mirrorsPart                    // the mirrors
	settingsPart                   // all settings but the policy and the mirrors
	allParts           = policyPart | mirrorsPart | settingsPart
	// whole stands for no set: all settings are replaced, and the policy unless the offer keeps it,
	// without a merge.
	whole parts = 0
)

// has reports whether the set has at least one of these parts.
func (p parts) has(some parts) bool { return p&some != 0 }

// mergedWith returns an offer that has the settings in force, with the changed parts replaced by
// those of o.
func (o *Offer) mergedWith(inForce fsm.Settings, changed parts) *Offer {
	if changed == whole {
		return o
	}
	replacesPolicy := changed.has(policyPart) && !o.KeepPolicy
	merged := Offer{Settings: inForce, KeepPolicy: !replacesPolicy}
	if changed.has(settingsPart) {
		merged.Settings = o.Settings
		merged.Settings.Mirrors, merged.Settings.Policy = inForce.Mirrors, inForce.Policy
	}
	if changed.has(mirrorsPart) {
		merged.Settings.Mirrors = o.Settings.Mirrors
	}
	if replacesPolicy {
		merged.Settings.Policy = o.Settings.Policy
	}
	return &merged
}

// totalBytes returns the limit on keys and values as an operator writes it.
func totalBytes(s *fsm.Settings) any {
	if s.TotalBytesAuto {
		return "auto"
	}
	return s.Limits.TotalBytes
}

// differences returns which settings differ, with their values here and in force.
func differences(here, inForce *fsm.Settings) (list []string) {
	for _, setting := range []struct {
		name          string
		here, inForce any
	}{
		{"limits.keyBytes", here.Limits.KeyBytes, inForce.Limits.KeyBytes},
		{"limits.valueBytes", here.Limits.ValueBytes, inForce.Limits.ValueBytes},
		{"limits.keys", here.Limits.Keys, inForce.Limits.Keys},
		{"limits.totalBytes", totalBytes(here), totalBytes(inForce)},
		{"limits.watches", here.Limits.Watches, inForce.Limits.Watches},
		{"limits.dedupEntries", here.Limits.DedupEntries, inForce.Limits.DedupEntries},
		{"limits.keysPerClient", here.Limits.KeysPerClient, inForce.Limits.KeysPerClient},
		{"limits.bytesPerClient", here.Limits.BytesPerClient, inForce.Limits.BytesPerClient},
		{"limits.watchesPerClient", here.Limits.WatchesPerClient, inForce.Limits.WatchesPerClient},
		{"limits.dedupEntriesPerClient", here.Limits.DedupPerClient, inForce.Limits.DedupPerClient},
		{"protocol.caseInsensitive", here.CaseInsensitive, inForce.CaseInsensitive},
		{"protocol.dialect", here.Dialect, inForce.Dialect},
		{"watch.ttl (ms)", here.WatchTTL, inForce.WatchTTL},
		{"watch.notificationExpiry (ms)", here.NotificationExpiry, inForce.NotificationExpiry},
	} {
		if setting.here != setting.inForce {
			list = append(list, fmt.Sprintf("%s: here %v, in force %v", setting.name, setting.here,
				setting.inForce))
		}
	}
	if !reflect.DeepEqual(here.Mirrors, inForce.Mirrors) && len(here.Mirrors)+
		len(inForce.Mirrors) > 0 {
		list = append(list, "mirrors")
	}
	if here.Policy != nil && inForce.Policy == nil {
		list = append(list, "policyFile")
	}
	return list
}

// fingerprint has hashes of an offer's parts, by which a node knows what it offered last. They are
// of the encoded settings, which leave out what is zero: a new setting must be zero by default, or
// else all nodes of a new build make an offer.
type fingerprint struct{ settings, policy, mirrors [sha256.Size]byte }

func (o *Offer) fingerprint() (f fingerprint) {
	settings := *o
	settings.Settings.Policy, settings.Settings.Mirrors, settings.KeepPolicy = nil, nil, false
	if settings.Settings.TotalBytesAuto {
		settings.Settings.Limits.TotalBytes = 0 // the leader sets it
	}
	policy := Offer{Settings: fsm.Settings{Policy: o.Settings.Policy}, KeepPolicy: o.KeepPolicy}
	if o.KeepPolicy {
		policy.Settings.Policy = nil
	}
	mirrors := Offer{Settings: fsm.Settings{Mirrors: o.Settings.Mirrors}}
	f.settings, f.policy, f.mirrors = sha256.Sum256(settings.encode(whole)),
		sha256.Sum256(policy.encode(whole)), sha256.Sum256(mirrors.encode(whole))
	return f
}

// bytes returns the encoding for the Store: the hashes of the settings, the policy and the mirrors.
func (f *fingerprint) bytes() []byte {
	return slices.Concat(f.settings[:], f.policy[:],
		f.mirrors[:])
}

// readFingerprint decodes what bytes returned. ok is false for data of any other length.
func readFingerprint(data []byte) (f fingerprint, ok bool) {
	if len(data) != 3*sha256.Size {
		return f, false
	}
	copy(f.settings[:], data)
	copy(f.policy[:], data[sha256.Size:])
	copy(f.mirrors[:], data[2*sha256.Size:])
	return f, true
}
