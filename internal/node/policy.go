package node

import (
	"bytes"
	"context"
	"os"
	"time"

	"holdfast/cluster/offer"
	"holdfast/internal/policy/policyfile"
	"holdfast/internal/settings"
)

// NewOffer returns what a node with these settings offers to the cluster.
func NewOffer(s *settings.Settings) (offer.Offer, error) {
	wanted := offer.Offer{Settings: s.Replicated(AvailableMemory()), KeepPolicy: s.PolicyFile == ""}
	if s.PolicyFile != "" && s.PolicyFile != settings.None {
		policy, err := policyfile.Read(s.PolicyFile)
		if err != nil {
			return offer.Offer{}, err
		}
		wanted.Settings.Policy = policy
	}
	return wanted, nil
}

// followPolicy reads the policy file once a second. If its content has changed, and is the same at the next read, followPolicy offers the new policy to the
// cluster: a file that is being written must not count. A file that does not parse leaves the old policy in force.
func (n *Node) followPolicy(ctx context.Context) {
	const interval = time.Second
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var watched contentWatch // the first content counts as a change. If NewOffer read the same policy, that changes nothing
	readable := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		content, err := os.ReadFile(n.config.PolicyFile)
		if (err == nil) != readable {
			if readable = err == nil; readable {
				n.config.Log.Info("the policy file is readable again", "file", n.config.PolicyFile)
			} else {
				n.config.Log.Warn("the policy file cannot be read: the old policy stays in force", "file", n.config.PolicyFile, "error", err)
			}
		}
		if !watched.changed(content, err == nil) {
			continue
		}
		policy, err := policyfile.Parse(content)
		if err != nil {
			n.config.Log.Error("the policy file does not parse: the old policy stays in force", "file", n.config.PolicyFile, "error", err)
			continue
		}
		wanted := n.config.Offer
		wanted.Settings.Policy, wanted.KeepPolicy = policy, false
		n.Cluster.SetOffer(wanted)
		n.config.Log.Info("the policy file was read", "file", n.config.PolicyFile)
	}
}

// contentWatch finds out when a file that is read at intervals has a new content, and is not being written. Its zero value has seen no content.
type contentWatch struct {
	accepted []byte // of the last change; nil before the first
	before   []byte // of the read before; nil if that failed
}

// changed reports whether the content is another one than at the last change, and the same as at the read before. ok is false if the file cannot be read.
func (w *contentWatch) changed(content []byte, ok bool) bool {
	if !ok {
		w.before = nil
		return false
	}
	settled := w.before != nil && bytes.Equal(content, w.before)
	w.before = content
	if !settled || w.accepted != nil && bytes.Equal(content, w.accepted) {
		return false
	}
	w.accepted = content
	return true
}
