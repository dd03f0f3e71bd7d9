package offer

import (
	"bytes"
	"crypto/sha256"

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

// part says what an offer replaces of the settings in force. Only the leader fills in the rest: its state is the newest. Another member, which may be
// catching up, would bring back older settings. Members that are older ignore the part and propose the offer as it is.
type part uint64

const (
	whole      part = iota // all settings, and the policy unless the offer keeps it
	policyOnly             // the policy
	additions              // what newer versions of the log add: shares of clients if none are in force, and mirrors if the offer has any
)

// over returns the offer with the settings in force where the part does not replace them.
func (o *Offer) over(inForce fsm.Settings, p part) *Offer {
	filled := *o
	switch p {
	case policyOnly:
		filled.Settings = inForce
		filled.Settings.Policy = o.Settings.Policy
	case additions:
		limits := &inForce.Limits
		if limits.WatchesPerClient == 0 && limits.DedupPerClient == 0 {
			limits.WatchesPerClient, limits.DedupPerClient = o.Settings.Limits.WatchesPerClient, o.Settings.Limits.DedupPerClient
		}
		if len(o.Settings.Mirrors) > 0 {
			inForce.Mirrors = o.Settings.Mirrors
		}
		filled = Offer{Settings: inForce, KeepPolicy: true}
	}
	return &filled
}

// Fingerprint returns bytes that are the same for the same offer: one half for the settings, one for the policy.
func (o *Offer) Fingerprint() []byte {
	settings, policy := *o, *o
	settings.Settings.Policy, settings.KeepPolicy = nil, false
	policy.Settings = fsm.Settings{Policy: o.Settings.Policy}
	if o.KeepPolicy {
		policy.Settings.Policy = nil
	}
	first, second := sha256.Sum256(settings.encode(whole)), sha256.Sum256(policy.encode(whole))
	return append(first[:], second[:]...)
}

// asOf returns the offer without settings that a version of the log does not know.
func (o Offer) asOf(version uint32) *Offer {
	o.Settings = o.Settings.Before(version)
	return &o
}

// changed returns the offer to propose, and the part of it that differs from what this node offered last.
func (o *Offer) changed(last, now []byte) (*Offer, part) {
	changed := *o
	const half = sha256.Size
	switch {
	case len(last) != len(now):
	case bytes.Equal(last[half:], now[half:]): // the policy is as it was
		changed.KeepPolicy = true
	case bytes.Equal(last[:half], now[:half]): // the settings are
		return &changed, policyOnly
	}
	return &changed, whole
}
