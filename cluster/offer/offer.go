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

// encode returns the offer as the log has it.
func (o *Offer) encode() []byte {
	return fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{o.command()}})
}

// Fingerprint returns bytes that are the same for the same offer: one half for the settings, one for the policy.
func (o *Offer) Fingerprint() []byte {
	settings, policy := *o, *o
	settings.Settings.Policy, settings.KeepPolicy = nil, false
	policy.Settings = fsm.Settings{Policy: o.Settings.Policy}
	if o.KeepPolicy {
		policy.Settings.Policy = nil
	}
	first, second := sha256.Sum256(settings.encode()), sha256.Sum256(policy.encode())
	return append(first[:], second[:]...)
}

// asOf returns the offer without settings that a version of the log does not know.
func (o Offer) asOf(version uint32) *Offer {
	o.Settings = o.Settings.Before(version)
	return &o
}

// changed returns the offer to propose. If only the settings or only the policy differ from what this node offered last, the other half is what is in
// force. Otherwise it is the whole offer.
func (o *Offer) changed(configured bool, last, now []byte, inForce fsm.Settings) *Offer {
	changed := *o
	const half = sha256.Size
	switch {
	case !configured || len(last) != len(now):
	case bytes.Equal(last[half:], now[half:]): // the policy is as it was
		changed.KeepPolicy = true
	case bytes.Equal(last[:half], now[:half]): // the settings are
		policy := changed.Settings.Policy
		changed.Settings = inForce
		changed.Settings.Policy = policy
	}
	return &changed
}
