package offer

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"holdfast/fsm"
)

// Offer is what a node wants the settings of the cluster to be.
type Offer struct {
	Settings fsm.Settings
	// KeepPolicy leaves the policy in force as it is: the node has no policy file.
	KeepPolicy bool
}

func (o *Offer) command() fsm.Command {
	settings := o.Settings
	return fsm.Command{Kind: fsm.KindConfigure, Settings: &settings, KeepPolicy: o.KeepPolicy}
}

// encode returns the offer as the log has it, with a part as the entry's number.
func (o *Offer) encode(p part) []byte {
	return fsm.AppendEntry(nil, &fsm.Entry{Number: uint64(p), Commands: []fsm.Command{o.command()}})
}

// part says what an offer replaces of the settings in force; parts may be combined with |. Only the leader fills in the rest: its state is the newest. Another
// member, which may be catching up, would bring back older settings. Members with an older build ignore the part and propose the offer as it is.
type part uint64

const (
	policyPart       part = 1 << iota // the policy
	mirrorsPart                       // the mirrors
	clientLimitsPart                  // the shares of clients, if none are in force
	settingsPart                      // all settings but the policy and the mirrors; the shares of clients are among them, whatever is in force
	allParts              = policyPart | mirrorsPart | clientLimitsPart | settingsPart
	// whole is all settings, and the policy unless the offer keeps it.
	whole part = 0
)

// mergedWith returns the settings in force with the parts of the offer in their place.
func (o *Offer) mergedWith(inForce fsm.Settings, p part) *Offer {
	if p == whole {
		return o
	}
	filled := Offer{Settings: inForce, KeepPolicy: p&policyPart == 0 || o.KeepPolicy}
	if p&settingsPart != 0 {
		filled.Settings = o.Settings
		filled.Settings.Mirrors, filled.Settings.Policy = inForce.Mirrors, inForce.Policy
	}
	if limits := &filled.Settings.Limits; p&clientLimitsPart != 0 && limits.WatchesPerClient == 0 && limits.DedupPerClient == 0 {
		limits.WatchesPerClient, limits.DedupPerClient = o.Settings.Limits.WatchesPerClient, o.Settings.Limits.DedupPerClient
	}
	if p&mirrorsPart != 0 {
		filled.Settings.Mirrors = o.Settings.Mirrors
	}
	if p&policyPart != 0 {
		filled.Settings.Policy = o.Settings.Policy
	}
	return &filled
}

// keepsOtherClientLimits reports whether mergedWith would leave shares of clients in force that are not those of the offer.
func (o *Offer) keepsOtherClientLimits(inForce *fsm.Limits, p part) bool {
	wanted := &o.Settings.Limits
	isSet := inForce.WatchesPerClient != 0 || inForce.DedupPerClient != 0
	return p&(clientLimitsPart|settingsPart) == clientLimitsPart && isSet &&
		(inForce.WatchesPerClient != wanted.WatchesPerClient || inForce.DedupPerClient != wanted.DedupPerClient)
}

// forVersion returns the offer without settings that a version of the log does not know.
func (o Offer) forVersion(version uint32) *Offer {
	o.Settings = o.Settings.ForVersion(version)
	return &o
}

// fingerprint has hashes of an offer's parts.
type fingerprint struct{ settings, policy, mirrors [sha256.Size]byte }

func (o *Offer) fingerprint() (f fingerprint) {
	settings := *o
	settings.Settings.Policy, settings.Settings.Mirrors, settings.KeepPolicy = nil, nil, false
	policy := Offer{Settings: fsm.Settings{Policy: o.Settings.Policy}, KeepPolicy: o.KeepPolicy}
	if o.KeepPolicy {
		policy.Settings.Policy = nil
	}
	mirrors := Offer{Settings: fsm.Settings{Mirrors: o.Settings.Mirrors}}
	f.settings, f.policy, f.mirrors = sha256.Sum256(settings.encode(whole)), sha256.Sum256(policy.encode(whole)), sha256.Sum256(mirrors.encode(whole))
	return f
}

// offered is what a member remembers of its last offer.
type offered struct {
	fingerprint
	version uint32 // the newest version of the log in force under which the settings had this hash; 0 is unknown
}

// bytes returns the three hashes, and the version in big-endian order.
func (o *offered) bytes() []byte {
	return binary.BigEndian.AppendUint32(slices.Concat(o.settings[:], o.policy[:], o.mirrors[:]), o.version)
}

// readOffered reads what bytes wrote. Older builds wrote no version, and those that knew no mirrors two hashes. ok is false if it is none of these.
func readOffered(data []byte) (o offered, ok bool) {
	const hashes = 3 * sha256.Size
	switch len(data) {
	case 2 * sha256.Size:
		none := (&Offer{}).fingerprint()
		data = slices.Concat(data, none.mirrors[:])
	case hashes:
	case hashes + 4:
		o.version = binary.BigEndian.Uint32(data[hashes:])
	default:
		return o, false
	}
	copy(o.settings[:], data)
	copy(o.policy[:], data[sha256.Size:])
	copy(o.mirrors[:], data[2*sha256.Size:])
	return o, true
}
